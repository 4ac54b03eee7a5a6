"""Load a command line's targets: ``jokes.py``, ``package.module``, ``module:name``, or the short name of an installed service."""

from __future__ import annotations

import difflib
import pkgutil
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from toolbus.results import ConfigurationError
from toolbus.worker.loading.installed import (
    InstalledService,
    find_installed,
    find_module,
    import_installed,
    installed_service,
    installed_services,
)
from toolbus.worker.loading.modules import MissingModuleError, absent, import_module


def load(target: str) -> object:
    """Import a target.

    A path, of a file or of a package's folder, is imported as a module under its name, with the folder around it on ``sys.path``.
    A name without dots is a module of the current folder, else an installed service (see ``installed.py``), else any module.
    ``:name`` picks one object of a module or path.

    Raises:
        ConfigurationError: it can't be found or imported; names the line that failed.
    """
    place, name = _split(target)
    service = None if name or _is_path(place) else _installed(place)
    if service is not None:
        place, _, name = service.target.partition(":")
        module = import_installed(service)
    else:
        module = _from_path(Path(place)) if _is_path(place) else _from_name(place)
    if not name:
        return module
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigurationError(f"{place} has no {name!r}")
    return found


def folders(targets: tuple[str, ...]) -> list[Path]:
    """Return the folders whose files a worker of these targets is made of, for reloading; runs none of them.

    Raises:
        ConfigurationError: a target can't be found.
    """
    found: set[Path] = set()
    _see_here()
    for target in targets:
        place = _split(target)[0]
        if _is_path(place):
            path = _checked(Path(place))
            found.add(path.resolve() if path.is_dir() else path.resolve().parent)
            continue
        service = _installed(place)
        name = place if service is None else service.target.partition(":")[0]
        spec = find_module(name) if service is None else find_installed(name)
        if spec is None:
            raise ConfigurationError(f"{absent(name)}; {_advice(name)}")
        if spec.origin:
            found.add(Path(spec.origin).parent)
        else:
            found |= {Path(folder) for folder in spec.submodule_search_locations or ()}
    return sorted(found)


def _split(target: str) -> tuple[str, str]:
    """Return the place and the name in it, or an empty text."""
    place, colon, name = target.partition(":")
    if not place or (colon and not name):
        raise ConfigurationError(f"{target!r} is no target: give a path (jokes.py, mytools/), a module, module:name, or an installed name")
    return place, name


def _is_path(place: str) -> bool:
    return place.endswith(".py") or "/" in place or place in {".", ".."}


def _installed(place: str) -> InstalledService | None:
    """Return the installed service of a short name, unless the current folder has a module of that name."""
    return None if "." in place or _is_here(place) else installed_service(place)


def _is_here(name: str) -> bool:
    spec = PathFinder.find_spec(name, [str(Path.cwd())])
    if spec is None:
        return False
    # A folder without any Python file is data that happens to have that name.
    return spec.origin is not None or any(next(Path(place).glob("*.py"), None) for place in spec.submodule_search_locations or ())


def _from_path(path: Path) -> ModuleType:
    path = _checked(path)
    name = _name_of(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = sys.modules.get(name)
    if known is not None and (getattr(known, "__file__", None) == str(path.resolve()) or str(path) in getattr(known, "__path__", ())):
        return known
    if known is not None:
        raise ConfigurationError(f"{path.name} has the name of another module ({known.__name__}); rename it")
    return _from_name(name)


def _checked(path: Path) -> Path:
    """Return the path of a file or folder that can be imported."""
    path = path.resolve() if path.is_dir() else path
    if not path.is_dir() and not path.is_file():
        raise ConfigurationError(f"there is no file or folder {str(path)!r}")
    if not _name_of(path).isidentifier():
        raise ConfigurationError(f"{path.name} can't be imported: rename it to letters, digits and _")
    return path


def _name_of(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


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
    return f"did you mean {', '.join(near)}?" if near else "`toolbus workers` lists the installed services"


def _see_here() -> None:
    """Let modules of the current folder be found."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
