"""The sdist and the wheel: the same bytes each time, everything that they need, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.release import archives
from tests.release.conftest import Copy, copied
from tests.release.project import ROOT, Mistake, variable, version

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def files(built: Copy) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the files of the wheel and of the sdist."""
    sdist, wheel = sorted((built.folder / "dist").iterdir(), key=lambda path: path.suffix)
    return archives.members(wheel), archives.members(sdist)


def test_a_release_has_all_files_and_no_others(files: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    """Modules, scripts, the page, types and the licence are in; tests, benchmarks, compiled modules and folders of a machine are not."""
    assert list(archives.faults(*files)) == []
    wheel, sdist = files
    assert {Path(name).suffix for name in wheel} >= {".py", ".lua", ".js", ".css", ".html", ".svg", ".yaml", ".typed"}
    assert not [name for name in sdist if name.startswith(("tests/", "benchmarks/", ".git/", ".venv/"))]
    assert {"toolbus/py.typed", "toolbus/edges/gateway/page/static/index.html", "toolbus_workers/presets/graph.yaml"} <= wheel.keys()


@pytest.mark.parametrize(
    ("kind", "name", "content", "told"),
    [
        (0, "toolbus/__pycache__/tool.cpython-311.pyc", b"", "not of the project"),
        (0, "tests/conftest.py", b"", "not of the project"),
        (0, "toolbus/py.typed", None, "lacks toolbus/py.typed"),
        (0, f"toolbus-{version()}.dist-info/licenses/LICENSE", None, "dist-info/licenses/LICENSE"),
        (0, "toolbus/__init__.py", str(ROOT).encode(), "names a folder of this machine"),
        (0, f"toolbus-{version()}.dist-info/RECORD", b"/home/somebody/toolbus", "names a folder of this machine"),
        (1, "tests/deploy/alerts.yaml", b"", "the sdist has tests/deploy/alerts.yaml"),
        (1, "toolbus/edges/gateway/page/static/page.css", None, "the sdist lacks toolbus/edges/gateway/page/static/page.css"),
        (1, "THIRD_PARTY_LICENSES.md", None, "lacks THIRD_PARTY_LICENSES.md"),
    ],
)
def test_a_wrong_file_is_found(
    files: tuple[dict[str, bytes], dict[str, bytes]], kind: int, name: str, content: bytes | None, told: str
) -> None:
    """One that is missing, changed, or not meant to be there is named."""
    changed = [dict(each) for each in files]
    if content is None:
        del changed[kind][name]
    else:
        changed[kind][name] = content
    assert any(told in fault for fault in archives.faults(*changed))


def test_wrong_metadata_is_found(files: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    """Metadata that says otherwise than pyproject.toml is named with both values."""
    wheel, sdist = dict(files[0]), files[1]
    name = f"toolbus-{version()}.dist-info/METADATA"
    wheel[name] = wheel[name].replace(b"License-Expression: Apache-2.0", b"License-Expression: MIT")
    assert [fault for fault in archives.faults(wheel, sdist) if "License-Expression: ['MIT']" in fault]


def test_a_release_is_the_same_bytes_each_time(built: Copy, tmp_path: Path) -> None:
    """Neither the folder, nor the files' dates, nor who may read them, changes a byte of the sdist or the wheel."""
    copy = copied(tmp_path / "elsewhere" / "toolbus")
    for path in (copy.folder / "toolbus").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o600)
        os.utime(path, (1, 1))
    done = copy.make("dist")
    assert done.returncode == 0, done.stderr
    assert copy.dist == built.dist


def test_the_image_has_the_wheel_of_the_release(built: Copy, tmp_path: Path) -> None:
    """A wheel that is built from the files that the image is made of, as the image does it, is the one that is published."""
    copy = copied(tmp_path / "image")
    kept = {name[1:] for name in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if name.startswith("!")}
    for path in copy.folder.iterdir():
        if path.is_file() and path.name not in kept:
            path.unlink()
    words = [
        "build",
        "--quiet",
        "--wheel",
        "--build-constraints",
        "deploy/build-constraints.txt",
        "--require-build-hashes",
        "-o",
        "dist",
        ".",
    ]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": variable("EPOCH")}
    uv = Path(sys.prefix) / "bin" / "uv"
    subprocess.run([uv, *words], cwd=copy.folder, env=environment, check=True, timeout=300)
    name = f"toolbus-{version()}-py3-none-any.whl"
    assert copy.dist[name] == built.dist[name]


def test_what_is_too_large_or_missing_is_not_released(built: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which file, and what makes the right ones."""
    with pytest.raises(Mistake, match="has nothing; `make dist` makes"):
        archives.check(tmp_path)
    monkeypatch.setattr(archives, "MOST", 1000)
    with pytest.raises(Mistake, match=r"\.whl has \d+ bytes, of at most 1000"):
        archives.check(built.folder / "dist")


def test_a_release_with_a_wrong_tag_is_refused(built: Copy) -> None:
    """Make fails with one line that says what to do."""
    done = built.make("release-notes", "TAG=v99.0.0")
    assert done.returncode != 0
    assert "the tag is v99.0.0, but pyproject.toml says" in done.stderr
