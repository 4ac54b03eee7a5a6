"""A release that was made once for all tests, in a copy of the project."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.release.project import PINNED, ROOT, version

_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv*", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "dist", "build", "mutants", "site"
)


@dataclass(frozen=True)
class Copy:
    """A copy of the project, in which its make runs with the tools of the tests' own environment."""

    folder: Path

    def make(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run make, and return what it printed."""
        stamp = Path(sys.prefix) / ".installed-release"
        # The tools are there already; make is told not to look at how old they are.
        given = ["-o", str(stamp), f"BIN={Path(sys.prefix) / 'bin'}", f"RELEASE_STAMP={stamp}"]
        return subprocess.run(["make", *given, *words], cwd=self.folder, capture_output=True, text=True, check=False, timeout=600)

    @property
    def dist(self) -> dict[str, bytes]:
        """The files that were built."""
        return {path.name: path.read_bytes() for path in sorted((self.folder / "dist").iterdir())}


def copied(folder: Path) -> Copy:
    """Copy the project into a folder."""
    shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
    return Copy(folder)


@contextlib.contextmanager
def shared(factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """Return a folder that the processes of one run share, one process at a time; it does not exist for the first one."""
    base = factory.getbasetemp()
    # With pytest-xdist each process has a folder of its own, next to those of the others.
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder / name


@pytest.fixture(scope="session")
def built(slow: None, tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """Return a copy in which the sdist and the wheel were built and checked."""
    with shared(tmp_path_factory, "release") as folder:
        if not (folder / "dist").is_dir():
            done = copied(folder).make("release-check")
            assert done.returncode == 0, done.stdout + done.stderr
    return Copy(folder)


@pytest.fixture(scope="session")
def bills(built: Copy, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the text of each bill that ``make sbom`` writes, by its set."""
    with shared(tmp_path_factory, "bills"):
        folder = built.folder / "build" / "sbom"
        if not folder.is_dir():
            done = built.make("sbom")
            assert done.returncode == 0, done.stderr
        written = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    assert len(written) == len(PINNED)
    return {kind: written[f"toolbus-{version()}{kind and f'-{kind}'}.cdx.json"] for kind in PINNED}


@pytest.fixture(scope="session")
def core(built: Copy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of an environment with the wheel and what every installation needs."""
    uv = str(Path(sys.prefix) / "bin" / "uv")
    pinned = str(ROOT / "deploy" / "constraints-core.txt")
    wheel = str(next((built.folder / "dist").glob("*.whl")))
    with shared(tmp_path_factory, "core") as folder:
        if not folder.is_dir():
            into = ["pip", "install", "--quiet", "--no-deps", "--python", str(folder / "bin" / "python")]
            venv = ["venv", "--quiet", "--python", sys.executable, str(folder)]
            for words in (venv, [*into, "--require-hashes", "-r", pinned], [*into, wheel]):
                subprocess.run([uv, *words], check=True, timeout=300)
    return folder / "bin"
