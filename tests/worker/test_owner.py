"""The default owner of a module's names, found from where its file lies."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType

import pytest

from toolbus.bus.worker.collect import origin_of, owner_of


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of a loaded module ``quips.jokes`` in a folder on Python's path."""
    file = tmp_path / "here" / "quips" / "jokes.py"
    file.parent.mkdir(parents=True)
    file.touch()
    file.with_name("__init__.py").touch()
    loaded = ModuleType("quips.jokes")
    loaded.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "quips.jokes", loaded)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "here"), str(tmp_path / "there")])
    return file


def install(folder: Path, name: str, **files: str) -> None:
    """Write a distribution's description, as an installer does."""
    about = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, text in files.items():
        (about / file.replace("_txt", ".txt")).write_text(text)


RECORDED = "quips/__init__.py,,\nquips/jokes.py,,\n"


@pytest.mark.parametrize("files", [{"RECORD": RECORDED}, {"top_level_txt": "other\nquips\n"}, {"RECORD": RECORDED, "top_level_txt": ""}])
def test_a_distribution_owns_what_is_installed_with_it(module: Path, files: dict[str, str]) -> None:
    """The distribution beside a module owns it when it declares its topmost package, or else has files of it; it has no origin then."""
    install(module.parent.parent, "Bad.Quips", **files)
    install(module.parent.parent, "quips-of-others", RECORD="quipster/jokes.py,,\nquips_more.py,,\n")
    assert (owner_of("quips.jokes"), origin_of("quips.jokes")) == ("bad-quips", "")


@pytest.mark.parametrize("files", [{"RECORD": "quipster.py,,\nlib/quips/jokes.py,,\n"}, {"RECORD": RECORDED, "top_level_txt": "other"}])
def test_a_neighbour_owns_nothing(module: Path, files: dict[str, str]) -> None:
    """A distribution in the same folder that does not have the package does not own it."""
    install(module.parent.parent, "neighbour", **files)
    assert owner_of("quips.jokes") == "quips"


def test_a_distribution_elsewhere_does_not_own_a_module(module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the same name in another folder owns nothing here, and a file beside no distribution makes nobody list them all."""
    install(tmp_path / "there", "bad-quips", RECORD=RECORDED)

    def listed(**_: object) -> None:
        raise AssertionError("all distributions were listed")

    monkeypatch.setattr(importlib.metadata, "distributions", listed)
    assert (owner_of("quips.jokes"), origin_of("quips.jokes")) == ("quips", str(module))


def test_an_installed_distribution_is_found() -> None:
    """A package of this environment is owned by the distribution that brought it."""
    assert owner_of("msgspec") == "msgspec"
