"""A project whose code was approved is run from its lock file, which nothing changes."""

from __future__ import annotations

import py_compile
import subprocess
from pathlib import Path

import pytest
import uv

from tests.backends.places import Heard
from tests.backends.served import PROGRAM
from toolbus.platform.backends.runner import CannotStart, Instance
from toolbus.platform.documents import digest_of_folder
from toolbus.platform.host.host import make_runner
from toolbus.platform.records import RecordedTool, ToolMeta, ToolSource

pytestmark = pytest.mark.anyio

_PROJECT = '[project]\nname = "tried"\nversion = "{version}"\nrequires-python = ">=3.11"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project without dependencies and without a lock file."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "tried"
    made.mkdir()
    (made / "main.py").write_text(PROGRAM)
    (made / "pyproject.toml").write_text(_PROJECT.format(version="1"))
    return made


def lock(folder: Path) -> None:
    """Write the lock file."""
    subprocess.run([uv.find_uv_bin(), "lock", "--quiet"], cwd=folder, check=True)


async def started(folder: Path, *, is_approved: bool) -> Instance:
    """Start the project by uv."""
    runner = await make_runner("local", "host-of-tests")
    tool = RecordedTool(meta=ToolMeta(tool_id="tried"), code=digest_of_folder(folder) if is_approved else "")
    return await runner.start(tool, ToolSource(type="local", host_dir=str(folder), ready_within=120.0), lambda _: None)


async def test_approved_code_without_a_lock_file_is_not_started(folder: Path) -> None:
    """Without ``uv.lock`` an approved digest does not say what runs, so nothing is started, and the reason says what to do."""
    with pytest.raises(CannotStart, match=r"without uv\.lock.*run `uv lock`"):
        await started(folder, is_approved=True)
    assert not (folder / "uv.lock").exists()
    assert not (folder / ".venv").exists()


async def test_code_that_needs_no_approval_needs_no_lock_file(folder: Path) -> None:
    """A project whose record has no digest is run without a lock file, and uv writes one."""
    instance = await started(folder, is_approved=False)
    await instance.stop(5)
    assert (folder / "uv.lock").exists()


@pytest.mark.usefixtures("slow")
async def test_a_lock_file_stays_as_it_was_approved(folder: Path) -> None:
    """A lock file that uv would bring up to date is used as it is: the code that runs has the digest that was approved."""
    lock(folder)
    (folder / "pyproject.toml").write_text(_PROJECT.format(version="2"))
    approved = digest_of_folder(folder)
    instance = await started(folder, is_approved=True)
    assert (await instance.call({"do": "value", "value": 1}, Heard())).data == 1
    await instance.stop(5)
    assert digest_of_folder(folder) == approved


@pytest.mark.usefixtures("slow")
async def test_what_the_digest_leaves_out_is_not_used(folder: Path, tmp_path: Path) -> None:
    """Byte code and an environment in the folder are never read: those that run are in the host's own cache."""
    (folder / "helper.py").write_text("")
    (folder / "main.py").write_text("import helper\n" + PROGRAM)
    lock(folder)
    other = tmp_path / "other.py"
    other.write_text("raise SystemExit('byte code of nobody')\n")
    place = folder / "__pycache__" / "helper.cpython-311.pyc"
    py_compile.compile(str(other), str(place), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\nexit 9\n")
    python.chmod(0o755)
    instance = await started(folder, is_approved=True)
    assert (await instance.call({"do": "value", "value": 1}, Heard())).data == 1
    await instance.stop(5)
    own = tmp_path / "cache" / "toolbus" / "programs" / digest_of_folder(folder)
    assert (own / "venv" / "bin" / "python").exists()
    assert own.stat().st_mode & 0o777 == 0o700
    assert python.read_text().startswith("#!/bin/sh")


async def test_byte_code_that_would_be_a_module_is_refused(folder: Path) -> None:
    """Python reads ``json.pyc`` beside the program in place of its own module, and no digest covers it."""
    lock(folder)
    (folder / "json.pyc").write_bytes(b"")
    with pytest.raises(CannotStart, match=r"json\.pyc.*remove it"):
        await started(folder, is_approved=True)
