"""From a command line's targets to what a worker serves: ``jokes.py``, ``package.module``, ``module:name``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from toolbus.results import ConfigurationError


def load(target: str) -> object:
    """Import a target.

    A path is imported as a module under its file's name, with its folder on ``sys.path``; ``:name`` picks
    one object of a module or path.

    :raises ConfigurationError: it can't be found or imported; names the line that failed.
    """
    place, _, name = target.partition(":")
    module = _from_path(Path(place)) if place.endswith(".py") or "/" in place else _from_name(place)
    if not name:
        return module
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigurationError(f"{place} has no {name!r}")
    return found


def folders(targets: tuple[str, ...]) -> list[Path]:
    """The folders whose files a worker of these targets is made of, for reloading."""
    found: set[Path] = set()
    for target in targets:
        place = target.partition(":")[0]
        path = Path(place)
        if path.suffix == ".py":
            found.add(path.resolve().parent)
            continue
        spec = importlib.util.find_spec(place)
        if spec is not None and spec.origin:
            found.add(Path(spec.origin).parent)
    return sorted(found)


def _from_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigurationError(f"there is no file {str(path)!r}")
    name = path.stem
    if not name.isidentifier():
        raise ConfigurationError(f"{path.name} can't be imported: rename it to letters, digits and _")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    if known is not None:
        raise ConfigurationError(f"{path.name} has the name of another module ({known.__name__}); rename it")
    return _from_name(name)


def _from_name(name: str) -> ModuleType:
    sys.path[:] = sys.path if "" in sys.path or str(Path.cwd()) in sys.path else [str(Path.cwd()), *sys.path]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"there is no module {name!r} (a file needs its .py)") from None
        raise ConfigurationError(f"{name} can't be imported: {_where(error, name)}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises is told in one line
        raise ConfigurationError(f"{name} can't be imported: {_where(error, name)}") from None


def _where(error: BaseException, name: str) -> str:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{text} - at {error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if Path(frame.filename).stem == name.rpartition(".")[2]] or frames
    return f"{text} - at {own[-1].filename}:{own[-1].lineno}" if own else text
