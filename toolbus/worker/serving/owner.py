"""The default owner of what a module publishes: the project that the module belongs to."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolbus import telemetry

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def owner_of(module: str, qualname: str = "") -> str:
    """Return who may change the names that a module publishes.

    This is the installed distribution that holds the module's file, else the project that the nearest ``pyproject.toml`` above the
    file names. A module of neither is owned by its topmost package, or by itself, together with ``qualname``. Host, path and
    process never count, so that replicas on other machines have the same owner.

    Args:
        module: a module's name, as in ``sys.modules``.
        qualname: the class that is published, if any.
    """
    file = _file_of(module)
    return _unowned(module, qualname) if file is None else _named(module, file) or _unowned(_top_of(module, file), qualname)


def origin_of(module: str) -> str:
    """Return the file of a module that belongs to no project; nothing else tells programs apart whose files have the same name."""
    file = _file_of(module)
    return "" if file is None or _named(module, file) else str(file)


def _named(module: str, file: Path) -> str:
    """Return the distribution or project that a file belongs to, or an empty text."""
    if not _INSTALLED.isdisjoint(file.parts):
        # A virtual environment may lie inside another project's folder.
        return _distribution_of(module, file)
    return _project_of(file.parent) or _distribution_of(module, file)


def _file_of(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) or next(iter(getattr(loaded, "__path__", ())), None)
    return Path(file).resolve() if file else None


@functools.cache
def _distribution_of(module: str, file: Path) -> str:
    """Return the installed distribution that holds a file; another project may have a top-level package of the same name."""
    # Most files lie where nothing is installed, and listing what is installed everywhere takes a tenth of a second.
    places = [place for place in dict.fromkeys(sys.path) if file.is_relative_to(Path(place).resolve()) and _has_distributions(place)]
    if not places:
        return ""
    import importlib.metadata  # noqa: PLC0415 - as above

    top = module.partition(".")[0]
    names = sorted(each.name for each in importlib.metadata.distributions(path=places) if _provides(each, top))
    return _normal(names[0]) if names else ""


def _has_distributions(place: str) -> bool:
    """Return whether distributions may be installed in a folder or archive on Python's path."""
    try:
        return any(each.suffix in {".dist-info", ".egg-info"} for each in Path(place).iterdir())
    except OSError:
        return Path(place).is_file()


def _provides(distribution: Distribution, top: str) -> bool:
    """Return whether a distribution has a topmost package or module; its list of files is searched, not parsed, since there are many."""
    declared = (distribution.read_text("top_level.txt") or "").split()
    if declared:
        return top in declared
    files = distribution.read_text("RECORD") or distribution.read_text("SOURCES.txt") or ""
    return re.search(rf"^{re.escape(top)}(/|\.py\b)", files, re.MULTILINE) is not None


@functools.cache
def _project_of(folder: Path) -> str:
    for each in (folder, *folder.parents):
        place = each / "pyproject.toml"
        if place.is_file():
            document = _read(place)
            name = document.get("project", {}).get("name") or document.get("tool", {}).get("poetry", {}).get("name")
            if isinstance(name, str) and name:
                return _normal(name)
    return ""


def _read(place: Path) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - only projects have such a file

    try:
        return tomllib.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        telemetry.log.warning("project.unreadable", file=str(place), error=str(error))
        return {}


def _top_of(module: str, file: Path) -> str:
    """Return the topmost package around a file, or the file's own name; an installed module's name says it, too."""
    if not _INSTALLED.isdisjoint(file.parts):
        return module
    top = file.parent if file.name == "__init__.py" else file
    while (top.parent / "__init__.py").is_file():
        top = top.parent
    return top.stem


def _unowned(module: str, qualname: str) -> str:
    top = module.partition(".")[0]
    return f"{top}:{qualname}" if qualname else top


def _normal(name: str) -> str:
    """Return a project's name as package indexes compare it (https://packaging.python.org/en/latest/specifications/name-normalization/)."""
    return re.sub(r"[-_.]+", "-", name).lower()
