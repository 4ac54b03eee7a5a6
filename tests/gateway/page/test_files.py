"""The page is small, needs nothing from elsewhere, and has no inline scripts or styles."""

from __future__ import annotations

import gzip
import posixpath
import re

import httpx
import pytest

from toolbus.edges.gateway.page.files import POLICY, files

pytestmark = pytest.mark.anyio

_SINKS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", ".srcdoc", "setHTML", "DOMParser")


def test_all_files_together_are_small() -> None:
    """Everything that the page loads has at most 300 KB."""
    assert sum(len(each.data) for each in files().values()) <= 300_000


def test_nothing_is_loaded_from_elsewhere() -> None:
    """No file names another site, but for the names of XML namespaces."""
    for name, each in files().items():
        found = set(re.findall(r"https?://[^\"'`\s)]+", each.data.decode()))
        assert found <= {"http://www.w3.org/2000/svg"}, name


def test_no_text_can_become_markup() -> None:
    """No script uses what turns text into markup or code, and the document has no inline script, style or listener."""
    for name, each in files().items():
        if name.endswith(".js"):
            assert not [sink for sink in _SINKS if sink in each.data.decode()], name
    text = files()["index.html"].data.decode()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", text)
    assert "unsafe" not in POLICY


def test_every_import_is_a_file_that_is_loaded_up_front() -> None:
    """Each module that another one imports exists, and the document names it, so that all are loaded side by side."""
    text = files()["index.html"].data.decode()
    for name, each in files().items():
        if not name.endswith(".js"):
            continue
        for imported in re.findall(r'from "(\.[^"]+)"', each.data.decode()):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))
            assert target in files(), f"{name} imports {imported}"
            assert f'href="ui/static/{target}"' in text


async def test_files_are_served_with_the_policy_and_kept_by_tag(address: str) -> None:
    """Every file has its type, the policy and a tag with which it is not sent again; compressed and plain bytes are the same."""
    async with httpx.AsyncClient(base_url=address, trust_env=False) as client:
        for name, each in files().items():
            path = "/" if name == "index.html" else f"/ui/static/{name}"
            answer = await client.get(path)
            assert answer.status_code == 200
            assert answer.content == each.data == gzip.decompress(each.packed)
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["content-type"] == each.kind
            again = await client.get(path, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await client.get("/", headers={"Accept-Encoding": "identity"})).content == files()["index.html"].data


@pytest.mark.parametrize("path", ["nothing.js", "../board.py", "%2e%2e/board.py", "/etc/passwd", "views", "views/../app.py", ""])
async def test_no_other_file_is_served(address: str, path: str) -> None:
    """Names that are no file of the page are not found."""
    async with httpx.AsyncClient(base_url=address, trust_env=False) as client:
        assert (await client.get(f"/ui/static/{path}")).status_code == 404
