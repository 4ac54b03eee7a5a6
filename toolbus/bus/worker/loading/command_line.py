"""Load a command line's targets: ``jokes.py``, ``package.module``, ``module:name``, or the short name of an installed service."""

from __future__ import annotations

import difflib
import os
import pkgutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.loading.installed import (
    InstalledService,
    find_below,
    find_installed,
    find_module,
    import_installed,
    installed_service,
    installed_services,
)
from toolbus.bus.worker.loading.modules import MissingModuleError, absent, import_from, import_module


def load(target: str) -> object:
    """Import a target.

    A path, of a file or of a package's folder, is imported as the module that it is within the packages around it, with the folder
    around those on ``sys.path``. A name is a module of the current folder, else an installed service (see ``installed.py``) if it has no
    dots, else any module. ``:name`` picks one object of a module or path.

    Raises:
        ConfigurationError: it can't be found or imported, which names the line that failed; or another module has its name.
    """
    asked = _asked(target)
    if asked.service is not None:
        module = import_installed(asked.service)
    elif asked.place is None:
        module = _from_name(asked.module)
    else:
        _see_here()
        module = import_from(asked.module, asked.place)
    if not asked.attribute:
        return module
    found: object = module
    for part in asked.attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigurationError(f"{target.partition(':')[0]} has no {asked.attribute!r}")
    return found


def folders(targets: tuple[str, ...]) -> list[Path]:
    """Return the folders whose files a worker of these targets is made of, for reloading; runs none of them.

    Raises:
        ConfigurationError: a target can't be found.
    """
    found: set[Path] = set()
    _see_here()
    for target in targets:
        asked = _asked(target)
        if asked.place is not None:
            found.add(asked.place if asked.place.is_dir() else asked.place.resolve().parent)
            continue
        spec = find_module(asked.module) if asked.service is None else find_installed(asked.module)
        if spec is None:
            raise ConfigurationError(f"{absent(asked.module)}; {_advice(asked.module)}")
        if spec.origin:
            found.add(Path(spec.origin).parent)
        else:
            found |= {Path(folder) for folder in spec.submodule_search_locations or ()}
    return sorted(found)


class _Asked(NamedTuple):
    """A module, or an object in it, that a target asks for.

    Attributes:
        module: its name.
        attribute: the object in it, or empty for the whole module.
        place: the file or folder that it must be; None for wherever its name leads to.
        service: the installed service that it is.
    """

    module: str
    attribute: str
    place: Path | None = None
    service: InstalledService | None = None


def _asked(target: str) -> _Asked:
    """Return what a target asks for; imports nothing.

    Raises:
        ConfigurationError: it is no target, or there is no such file, or it can't have a module.
    """
    place, colon, name = target.partition(":")
    if not place or (colon and not name):
        raise ConfigurationError(f"{target!r} is no target: give a path (jokes.py, mytools/), a module, module:name, or an installed name")
    if place.endswith(".py") or "/" in place or place in {".", ".."}:
        # Not where links lead to, since a module has the name that its user gives it.
        path = Path(os.path.abspath(place))  # noqa: PTH100 - there is no other that leaves links alone
        if not path.exists():
            raise ConfigurationError(f"there is no file or folder {place!r}")
        return _Asked(_module_of(path), name, path)
    here = _is_here(place)
    if here is not None:
        return _Asked(place, name, here)
    service = installed_service(place) if not name and "." not in place else None
    if service is None:
        return _Asked(place, name)
    module, _, attribute = service.target.partition(":")
    return _Asked(module, attribute, None, service)


def _module_of(path: Path) -> str:
    """Return the name of a file's or folder's module: with the packages around it, which relative imports need."""
    name = path.name if path.is_dir() else path.stem
    if not name.isidentifier():
        raise ConfigurationError(f"{path.name} can't be imported: rename it to letters, digits and _")
    around = path.parent
    while around.name.isidentifier() and (around / "__init__.py").is_file():
        name, around = f"{around.name}.{name}", around.parent
    return name


def _is_here(name: str) -> Path | None:
    """Return the file or folder of a module that the current folder has."""
    spec = find_below(PathFinder.find_spec(name.partition(".")[0], [str(Path.cwd())]), name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
    # A folder without any Python file is data that happens to have that name.
    return next((Path(place) for place in spec.submodule_search_locations or () if next(Path(place).glob("*.py"), None)), None)


def _from_name(name: str) -> ModuleType:
    _see_here()
    try:
        return import_module(name)
    except MissingModuleError as error:
        raise ConfigurationError(f"{error}; {_advice(name)}") from None


def _advice(name: str) -> str:
    """Return the targets that look like a wrong one, or where all of them are listed."""
    package, dot, last = name.rpartition(".")
    names: set[str] = set()
    if not package:
        names = {each.name for each in installed_services()} | {path.name for path in Path.cwd().glob("*.py")}
    else:
        spec = find_module(package)
        places = None if spec is None else spec.submodule_search_locations
        names = {each.name for each in pkgutil.iter_modules(places or [])}
    near = [f"{package}{dot}{each}" for each in difflib.get_close_matches(last, sorted(names), n=3)]
    return f"did you mean {', '.join(near)}?" if near else "`toolbus see workers` lists the installed services"


def _see_here() -> None:
    """Let modules of the current folder be found."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
