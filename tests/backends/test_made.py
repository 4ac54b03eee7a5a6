"""Folders of what was made of approved code: kept while they are used, and removed when there are too many."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolbus.platform.backends.local import MadeFolder, made_elsewhere, remove_unused


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The host's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "toolbus" / "programs"


def made(tmp_path: Path, number: int, used: float) -> MadeFolder:
    """Return a folder that is used, and was last used at a time."""
    found = made_elsewhere(tmp_path / "code", f"{number:016x}")
    own = tmp_path / "cache" / "toolbus" / "programs" / f"{number:016x}"
    (own / "venv").mkdir()
    (own / "venv" / "file").write_text("x")
    os.utime(own / "used", (used, used))
    return found


def test_the_ones_that_were_used_last_stay(cache: Path, tmp_path: Path) -> None:
    """Of too many folders the oldest go, with all that is in them, but none that a program uses."""
    folders = [made(tmp_path, number, 1_000.0 + number) for number in range(5)]
    for number, each in enumerate(folders):
        if number != 1:
            each.release()
            os.utime(cache / f"{number:016x}" / "used", (1_000.0 + number,) * 2)
    said = remove_unused(most=2, seconds=1e9 * 10)
    assert sorted(each.name for each in cache.iterdir() if each.is_dir()) == [f"{number:016x}" for number in (1, 3, 4)]
    assert len(said) == 2
    folders[1].release()
    os.utime(cache / f"{1:016x}" / "used", (1_001.0,) * 2)
    assert len(remove_unused(most=2, seconds=1e9 * 10)) == 1


def test_one_that_was_not_used_for_long_goes(cache: Path, tmp_path: Path) -> None:
    """Its age counts from the end of its last use; other files of the cache stay."""
    old, new = made(tmp_path, 1, 1_000.0), made(tmp_path, 2, 1_000.0)
    (cache / "mine").mkdir()
    assert remove_unused(seconds=60.0) == []
    for each in (old, new):
        each.release()
    os.utime(cache / f"{1:016x}" / "used", (1_000.0,) * 2)
    [said] = remove_unused(seconds=60.0)
    assert "000000000000…" in said
    assert sorted(each.name for each in cache.iterdir() if each.is_dir()) == [f"{2:016x}", "mine"]


def test_an_interrupted_removal_is_ended_by_the_next(cache: Path, tmp_path: Path) -> None:
    """Folders that a killed process had put aside are removed; a cache that is not there is no error."""
    assert remove_unused() == []
    made(tmp_path, 1, 1_000.0)
    (cache / ".removed-0").mkdir()
    (cache / ".removed-0" / "file").touch()
    assert remove_unused(seconds=1e12) == []
    assert not (cache / ".removed-0").exists()
