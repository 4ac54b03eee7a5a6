"""Code that is approved depends on nothing that could change afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.records.made import recorded
from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.platform.backends.runner import CannotStart
from toolbus.platform.coding.files import Folder, WorkspaceOptions
from toolbus.platform.coding.registering import Copy
from toolbus.platform.documents import check_locked, digest_of_folder
from toolbus.platform.host.host import check_code
from toolbus.platform.records import ToolSource
from toolbus.platform.review import reviewed, with_files

pytestmark = pytest.mark.anyio

_WHEEL = 'wheels = [{ url = "https://files.example/helper-1-py3-none-any.whl", hash = "sha256:00" }]'


def project(folder: Path, source: str, files: str = _WHEEL, more: str = "") -> Path:
    """Write a project that depends on a package from a source."""
    folder.mkdir(exist_ok=True)
    (folder / "main.py").write_text("import helper\n")
    (folder / "pyproject.toml").write_text(f'[project]\nname = "p"\nversion = "1"\n{more}')
    own = '[[package]]\nname = "p"\nversion = "1"\nsource = { virtual = "." }\n'
    helper = f'[[package]]\nname = "helper"\nversion = "1"\nsource = {{ {source} }}\n{files}\n'
    (folder / "uv.lock").write_text(f"version = 1\n\n{own}\n{helper}")
    return folder


@pytest.mark.parametrize("source", ['registry = "https://pypi.org/simple"', 'editable = "."', 'virtual = "."'])
def test_a_package_of_an_index_is_fixed(tmp_path: Path, source: str) -> None:
    """So is the project itself; and a folder without a lock file has nothing to check."""
    check_locked(project(tmp_path / "p", source))
    check_locked(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        'path = "/wheels/helper.whl"',
        'directory = "/code/helper"',
        'directory = "."',
        'editable = "../helper"',
        'virtual = "../helper"',
        'git = "https://git.example/helper?rev=main#0123"',
        'url = "https://files.example/helper.tar.gz"',
        'registry = "/wheels"',
        'registry = "file:///wheels"',
        'unheard = "."',
        "",
    ],
)
async def test_a_package_from_elsewhere_is_refused_everywhere(tmp_path: Path, source: str) -> None:
    """It is not registered, a host does not start it, and its review says so; each names the package."""
    folder = project(tmp_path / "p", source)
    with pytest.raises(ConfigurationError, match="'helper' comes from"):
        check_locked(folder)
    with pytest.raises(ToolError, match="'helper' comes from"):
        Copy(Folder(str(tmp_path), WorkspaceOptions()), "p", tmp_path / "tools")
    local = ToolSource(type="local", host_dir=str(folder))
    tool = recorded(sources=(local,), code=digest_of_folder(folder))
    with pytest.raises(CannotStart, match="'helper' comes from"):
        await check_code(tool, local)
    assert "'helper' comes from" in with_files(reviewed(tool, None), tool).note


@pytest.mark.parametrize(
    ("files", "more", "said"),
    [
        ('wheels = [{ url = "https://files.example/helper-1-py3-none-any.whl" }]', "", "without a hash"),
        ("", "", "without a hash"),
        (_WHEEL, '[build-system]\nrequires = ["helper @ file:///code/helper"]\n', "built with"),
        (_WHEEL, '[tool.uv.sources]\nhelper = { path = "/code/helper" }\n', "takes 'helper' from path"),
        (_WHEEL, "[[", "can't be read"),
    ],
)
def test_what_no_hash_fixes_is_refused(tmp_path: Path, files: str, more: str, said: str) -> None:
    """Files without hashes can be replaced, and what a project is built with is in no lock file."""
    with pytest.raises(ConfigurationError, match=said):
        check_locked(project(tmp_path / "p", 'registry = "https://pypi.org/simple"', files, more))
