"""The built site: each public name is in its reference, its search finds words, and it has a selector of versions."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import toolbus
from tests.test_sync_names import _OF_CALLS, _OF_EXECUTORS
from toolbus.bus.values import results
from website.build import _generate, build
from website.links import faults
from website.stage import DOCS, ROOT, SiteError, prepared

pytestmark = pytest.mark.timeout(300)

API = DOCS / "reference" / "api"
# Modules whose ``__all__`` is public.
PACKAGES = ("", ".sync", ".middleware", ".agent", ".testing", ".toolkit", ".toolkit.learning", ".edges.mounts")


def defined_by_adapters() -> set[str]:
    """Return the public functions and classes of the adapters, read and not imported: their packages take seconds to load."""
    found = set()
    for module in ("openai", "anthropic", "openai_agents", "langchain", "pydantic_ai"):
        for node in ast.parse((ROOT / "toolbus" / "adapters" / f"{module}.py").read_text("utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
                found.add(f"toolbus.adapters.{module}.{node.name}")
    return found


ADAPTERS = defined_by_adapters()


def public_names() -> dict[str, Any]:
    """Return each public name with its object: of the packages, of the package's docstring, and every exception."""
    found = {f"toolbus{each}.{name}": None for each in PACKAGES for name in importlib.import_module(f"toolbus{each}").__all__}
    for module, text in re.findall(r"^- ``(toolbus[\w.]+)``: (.*)$", str(toolbus.__doc__), re.MULTILINE):
        found |= {f"{module}.{name}": None for name in re.findall(r"``(\w+)``", text)}
    found |= dict.fromkeys(ADAPTERS)
    errors = [each for each in vars(results).values() if isinstance(each, type) and issubclass(each, toolbus.ToolbusError)]
    found |= {f"toolbus.bus.values.results.{each.__name__}": None for each in errors if each.__module__ == results.__name__}
    return {name: located(name) for name in found}


def located(name: str) -> Any:
    """Return the object of a public name; that of an adapter is its name."""
    if name in ADAPTERS:
        return name
    module, _, own = name.rpartition(".")
    return getattr(importlib.import_module(module), own)


def directives() -> list[str]:
    """Return the names that the pages of the reference ask the docstrings of."""
    pages = [prepared(page.read_text("utf-8"), page, page, "main") for page in API.glob("*.md")]
    return [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]


@pytest.mark.usefixtures("slow")
def test_every_public_name_is_in_the_reference() -> None:
    """A new public name is missing until a page of the reference has it; a name that is public twice is there once at least."""
    named = directives()
    there = [located(name) for name in named]
    missing = [name for name, each in public_names().items() if each not in named and not any(each is other for other in there)]
    assert sorted(set(missing)) == []


@pytest.mark.usefixtures("slow")
def test_the_reference_names_only_what_exists_and_is_public() -> None:
    """No entry is private, stands twice, or names nothing."""
    named = directives()
    assert len(named) > 100
    assert len(named) == len(set(named))
    assert not [name for name in named if "._" in name]
    for name in named:
        located(name)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a built page that are names of toolbus."""
    return set(re.findall(r'id="(toolbus\.[\w.]+)"', page.read_text("utf-8")))


@pytest.mark.usefixtures("slow")
def test_the_site_is_built(tmp_path: Path) -> None:
    """The site has the reference, the search, the selector of versions, and links to the files of its tag."""
    site = tmp_path / "built"
    build(site, ref="v9.9.9")
    has_the_reference(site)
    finds_words(site)
    pages = sorted(site.rglob("index.html"))
    assert len(pages) > 80
    texts = [page.read_text("utf-8") for page in pages]
    # The theme reads the list of versions beside the site's folder by this.
    assert all('"provider":"mike"' in text.replace(" ", "") for text in texts)
    assert all("assets/favicon.svg" in text for text in texts)
    assert any("https://github.com/toolbus/toolbus/blob/v9.9.9/" in text for text in texts)


def has_the_reference(site: Path) -> None:
    """Check that each entry and public member has an anchor to link to, with its docstring, and what is no user's has none."""
    shown = {name for page in (site / "reference" / "api").rglob("index.html") for name in anchors(page)}
    assert set(directives()) - shown == set()
    assert {
        "toolbus.ToolBus.call",
        "toolbus.Worker.run",
        "toolbus.bus.values.options.CallOptions.timeout",
        "toolbus.Settings.lease",
    } <= shown
    assert [name for name in shown if "._" in name] == []
    inner = {f"toolbus.Call.{name}" for name in _OF_CALLS}
    inner |= {f"toolbus.bus.client.executor.executor.ToolExecutor.{name}" for name in _OF_EXECUTORS}
    assert shown & inner == set()
    text = (site / "reference" / "api" / "client" / "index.html").read_text("utf-8")
    assert str(toolbus.ToolBus.call.__doc__).splitlines()[0].partition("`")[0].rstrip(".") in text


def finds_words(site: Path) -> None:
    """Check that the index of the search has the words of guides and of docstrings, with the page that they stand on."""
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    for words, page in (("max_deliveries", "explanation/reliability/"), ("wait_for_tool", "reference/api/client/")):
        assert page in {each["location"].partition("#")[0] for each in items if words in f"{each['title']} {each['text']}"}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Sources of a site of three pages, with the configuration of the whole one."""
    pages = tmp_path / "pages"
    (pages / "api").mkdir(parents=True)
    shutil.copytree(ROOT / "website" / "assets", pages / "assets")
    (pages / "index.md").write_text("# Start\n\nA [guide](guide.md), and [its part](guide.md#a-part--more).\n")
    (pages / "guide.md").write_text("# Guide\n\n## A part & more\n\ntext\n")
    (pages / "api" / "index.md").write_text("# API\n\n::: given.add\n")
    (tmp_path / "given.py").write_text(ADD)
    config = (ROOT / "website" / "zensical.toml").read_text("utf-8")
    (tmp_path / "zensical.toml").write_text(config.replace('paths = ["../.."]', 'paths = ["."]'))
    return tmp_path


ADD = 'def add(a: int) -> int:\n    """Add one.\n\n    Args:\n        a: a number.\n    """\n    return a + 1\n'


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("file", "wrong", "said"),
    [
        ("pages/guide.md", "See [a page](missing.md).\n", "page does not exist"),
        ("pages/guide.md", "See [a part](index.md#nothing-of-this-name).\n", "anchor does not exist"),
        ("pages/guide.md", "::: given.nothing\n", "given.nothing"),
        ("given.py", ADD.replace("add", "other").replace("a: a", "b: a"), "Parameter 'b' does not appear in the function signature"),
    ],
)
def test_a_mistake_fails_the_build(file: str, wrong: str, said: str, small: Path) -> None:
    """A link to no page or part, a name that does not exist, and a docstring's argument that is none end the build, with one message."""
    if file == "given.py":
        (small / "pages" / "api" / "index.md").write_text("# API\n\n::: given.add\n\n::: given.other\n")
    with (small / file).open("a", encoding="utf-8") as given:
        given.write(f"\n{wrong}")
    with pytest.raises(SiteError, match=re.escape(said)) as error:
        _generate(small)
    assert "Traceback" not in str(error.value)
    assert "\x1b" not in str(error.value)


@pytest.mark.usefixtures("slow")
def test_a_small_site_is_built(small: Path) -> None:
    """Sources without a mistake are built, with anchors as the repository's pages have them, and have no faults."""
    _generate(small)
    assert 'id="a-part--more"' in (small / "site" / "guide" / "index.html").read_text("utf-8")
    assert faults(small / "site") == []
