"""Digests of the folders of tools."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from toolbus.bus.values.results import ConfigurationError
from toolbus.platform import documents as digests
from toolbus.platform.documents import digest_of_folder


def project(folder: Path, names: tuple[str, ...] = ("main.py", "lib/a.py", "lib/b.py")) -> Path:
    """Write a project whose files hold their own names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_the_digest_is_that_of_the_files(tmp_path: Path) -> None:
    """Equal folders have equal digests wherever and in whichever order they were written, whatever a run leaves in them."""
    one = project(tmp_path / "one")
    other = project(tmp_path / "other", ("lib/b.py", "lib/a.py", "main.py"))
    assert digest_of_folder(one) == digest_of_folder(str(other))
    project(other, (".venv/bin/python", "__pycache__/main.cpython-311.pyc", "lib/__pycache__/x", "old.pyc"))
    (other / "lib" / ".venv").symlink_to("/")
    assert digest_of_folder(one) == digest_of_folder(other)


def _rewrite(folder: Path) -> None:
    (folder / "main.py").write_text("other")


def _rename(folder: Path) -> None:
    (folder / "main.py").rename(folder / "Main.py")


def _move(folder: Path) -> None:
    (folder / "lib/a.py").rename(folder / "a.py")


def _add(folder: Path) -> None:
    (folder / "new").write_text("")


def _remove(folder: Path) -> None:
    (folder / "lib/b.py").unlink()


def _allow(folder: Path) -> None:
    (folder / "main.py").chmod(0o755)


def _swap(folder: Path) -> None:
    (folder / "lib/a.py").write_text("lib/b.py")
    (folder / "lib/b.py").write_text("lib/a.py")


@pytest.mark.parametrize("change", [_rewrite, _rename, _move, _add, _remove, _allow, _swap])
def test_any_change_of_the_files_changes_it(tmp_path: Path, change: Callable[[Path], None]) -> None:
    """Content, names, places and the right to execute count."""
    folder = project(tmp_path / "one")
    before = digest_of_folder(folder)
    change(folder)
    assert digest_of_folder(folder) != before


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    """A link could lead to what nobody approved; a pipe would never be read to its end."""
    linked, piped = project(tmp_path / "linked"), project(tmp_path / "piped")
    (linked / "lib/away").symlink_to(tmp_path)
    os.mkfifo(piped / "pipe")
    for folder in (linked, piped):
        with pytest.raises(ConfigurationError, match="link or a special file"):
            digest_of_folder(folder)
    (tmp_path / "root").symlink_to(linked)
    for missing in (tmp_path / "root", tmp_path / "nothing", linked / "main.py"):
        with pytest.raises(ConfigurationError, match="no folder"):
            digest_of_folder(missing)


def test_large_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files, or too many bytes, end the reading early."""
    folder = project(tmp_path / "one")
    monkeypatch.setattr(digests, "MOST_FILES", 3)
    with pytest.raises(ConfigurationError, match="more than 3 files"):
        digest_of_folder(folder)
    monkeypatch.setattr(digests, "MOST_FILES", 10)
    monkeypatch.setattr(digests, "MOST_BYTES", 12)
    with pytest.raises(ConfigurationError, match="12 bytes"):
        digest_of_folder(folder)
