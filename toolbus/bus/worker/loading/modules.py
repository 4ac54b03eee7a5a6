"""Import modules and packages to find the tools they define."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import described, is_a
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.definition.function import held, is_of, methods_in, methods_of, methods_of_module, tool_of, tools_of_module
from toolbus.bus.worker.definition.objects import functions_of, holds_tools, is_tool_class, made
from toolbus.bus.worker.definition.service import ToolService


class MissingModuleError(ConfigurationError):
    """There is no module of a name."""


class _Asked(MetaPathFinder):
    """Finds modules in the files that were asked for, whatever else on ``sys.path`` has their names."""

    def __init__(self) -> None:
        self.places: dict[str, str] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /) -> ModuleSpec | None:
        if fullname not in self.places:
            return None
        place = Path(self.places[fullname])
        if not place.is_dir():
            return spec_from_file_location(fullname, place)
        if (place / "__init__.py").is_file():
            return spec_from_file_location(fullname, place / "__init__.py", submodule_search_locations=[str(place)])
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec


_asked = _Asked()


def places_asked() -> dict[str, str]:
    """Return the files and folders that were asked for by path, by the names of their modules."""
    return dict(_asked.places)


def ask(places: Mapping[str, str]) -> None:
    """Have modules imported from these files and folders, in this process, from now on."""
    if _asked not in sys.meta_path:
        sys.meta_path.insert(0, _asked)
    _asked.places.update(places)


def import_from(name: str, place: Path) -> ModuleType:
    """Import the module of a file or of a package's folder, and no other one of its name.

    Args:
        name: with the packages around it.
        place: absolute.

    Raises:
        ConfigurationError: it can't be imported, or another module has its name.
    """
    names = [name.rsplit(".", depth)[0] for depth in range(name.count(".") + 1)]
    places = dict(zip(names, (place, *place.parents), strict=False))
    for each, at in places.items():
        _check_free(each, at, place)
    # Beside a link may lie what its file imports, and so may it beside the file.
    for folder in (place.resolve().parent, place.parent, places[names[-1]].parent):
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        sys.path.insert(0, str(folder))
    ask({each: str(at) for each, at in places.items()})
    module = import_module(name)
    _check_free(name, place, place)
    return module


def _check_free(name: str, place: Path, asked: Path) -> None:
    """Refuse a name that another module has, which would be imported in place of this one, or need to be."""
    module = sys.modules.get(name)
    if module is not None:
        places = [module.__file__] if getattr(module, "__file__", None) else list(getattr(module, "__path__", ()))
        if places and all(place.samefile(each) or place.samefile(Path(each).parent) for each in places if each and Path(each).exists()):
            return
        holder = f"imported from {places[0]}" if places else "built into Python"
    elif name in sys.stdlib_module_names or _is_needed(name, place):
        holder = "a part of Python" if name in sys.stdlib_module_names else "of a package that toolbus needs"
    else:
        return
    raise ConfigurationError(f"{asked} can't be served: another module named {name!r} is {holder}; rename this one")


def _is_needed(name: str, place: Path) -> bool:
    """Return whether another module of this name is of a distribution that toolbus requires, and may import later."""
    elsewhere = [folder for folder in sys.path if Path(folder) != place.parent]
    if "." in name or PathFinder.find_spec(name, elsewhere) is None:
        return False
    from importlib import metadata  # noqa: PLC0415 - it takes long to read what is installed, which few files need

    needed: set[str] = set()
    left = ["toolbus"]
    while left:
        each = left.pop()
        if each not in needed:
            needed.add(each)
            with suppress(metadata.PackageNotFoundError):
                # Extras of its own may be installed, those of others nobody asks for.
                required = (line for line in metadata.requires(each) or () if each == "toolbus" or "extra ==" not in line)
                left += [_normal(found[0]) for line in required if (found := re.match(r"[\w.-]+", line))]
    return not needed.isdisjoint(map(_normal, metadata.packages_distributions().get(name, ())))


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def init_tools(*places: str | ModuleType) -> list[object]:
    """Import modules, and packages with all that is in them, and return the tools they define.

    That registers the tools in this process; give what is returned to a ``Worker`` to serve them::

        Worker(init_tools("mytools", "toolbus_workers.calculator"))

    Returns:
        Functions decorated with ``@tool`` and ``ToolService`` classes and instances, module by module.

    Raises:
        ConfigurationError: a module can't be imported, naming it and the line; or there is no tool.
    """
    if not places:
        raise ConfigurationError("init_tools() needs the names of modules or packages: init_tools('mytools')")
    found: dict[int, object] = {}
    for place in places:
        module = import_module(place) if isinstance(place, str) else place
        found.update((id(each), each) for each in defined_in(module))
    return list(found.values())


def absent(name: str) -> str:
    """Return the message about a module that is not there."""
    return f"there is no module {name!r} (a file needs its .py)"


def import_module(name: str) -> ModuleType:
    """Import a module.

    Raises:
        MissingModuleError: there is none of that name.
        ConfigurationError: it can't be imported; names the line that failed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise MissingModuleError(absent(name)) from None
        raise ConfigurationError(f"{name} can't be imported: {_where(error, name)}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises is told in one line
        raise ConfigurationError(f"{name} can't be imported: {_where(error, name)}") from None


def defined_in(module: ModuleType, left_out: dict[str, str] | None = None) -> list[object]:
    """Return the services and tool functions of a module, or of a package with all modules in it, which are imported.

    A service's class stands for itself unless an instance of it is there, or it is the base of others and has no id of its own.
    So does a class of tool objects (``toolbus.toolkit.Tool``); objects, groups and graphs of such tools are served, too.

    Args:
        module: the module or package.
        left_out: gets what is not served though the module has it, and why.

    Raises:
        ConfigurationError: there are none, or a module can't be imported.
    """
    modules = list(_with_submodules(module))
    values = [(each, value) for each in modules for value in list(vars(each).values())]
    instances = {id(value): value for _, value in values if is_a(value, ToolService)}
    classes = list(dict.fromkeys(value for holder, value in values if _is_service_class(value) and value.__module__ == holder.__name__))
    found: list[object] = list(instances.values())
    for cls in classes:
        instantiated = any(type(instance) is cls for instance in instances.values())
        base = "id" not in vars(cls) and any(other is not cls and issubclass(other, cls) for other in classes)
        if not instantiated and not base:
            found.append(cls)
    objects, refused = _tool_objects(values)
    # An object's function may be registered under this module.
    own = [made.function if tool_of(made.function) is made else held(made.function, made) for made in tools_of_module(module.__name__)]
    found += {id(each): each for each in (*own, *objects)}.values()
    if not found:
        reasons = "".join(f"; {each}" for each in refused)
        raise ConfigurationError(
            f"{module.__name__} defines no ToolService and no function decorated with @tool, and has no Tool object{reasons}"
        )
    for each in refused:
        telemetry.log.warning("tool.class_left_out", module=module.__name__, error=each)
    if left_out is not None:
        left_out.update(_left_out(module.__name__, values))
        left_out.update((each.partition(" ")[0], each) for each in refused)
    return found


def _left_out(module: str, values: list[tuple[ModuleType, Any]]) -> Iterator[tuple[str, str]]:
    """Yield the tools and services that a module, or a package, has and does not serve, and why."""
    methods = {each for holder in {holder.__name__ for holder, _ in values} for each in methods_in(holder)}
    for each in methods_of_module(module):
        if each not in methods:
            yield each.name, f"the class of {each.qualname} is no ToolService of {each.module}"
    bases = {base for _, value in values if _is_service_class(value) for base in value.__mro__[1:]}
    for _, value in values:
        found = tool_of(value)
        if found is not None and found not in methods and not is_of(found.module, module):
            yield found.name, f"it is a tool of {found.module}, which {module} imports: serve that, or register it here with tool(…)"
        elif _is_service_class(value) and value not in bases and not is_of(value.__module__, module) and (value.tools or methods_of(value)):
            yield value.__name__, f"it is a service of {value.__module__}, which {module} imports: serve that, or make an object of it here"


def _tool_objects(values: list[tuple[ModuleType, Any]]) -> tuple[list[Callable[..., Any]], list[str]]:
    """Return the functions of tool objects, and why some classes of them are left out."""
    found = [each for held in {id(value): value for _, value in values if holds_tools(value)}.values() for each in held.__toolbus_tools__()]
    classes = [value for holder, value in values if is_tool_class(value) and value.__module__ == holder.__name__]
    refused: list[str] = []
    for cls in dict.fromkeys(classes):
        made_already = any(type(each.owner) is cls for each in found)
        if made_already or inspect.isabstract(cls) or any(other is not cls and issubclass(other, cls) for other in classes):
            continue
        try:
            found += made(cls)
        except ConfigurationError as error:
            refused.append(str(error))
    return functions_of(found), refused


def _is_service_class(value: object) -> TypeGuard[type[ToolService]]:
    return is_a(value, type) and issubclass(value, ToolService)


def _with_submodules(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    places: Iterable[str] = vars(module).get("__path__", ())
    for each in sorted(pkgutil.iter_modules(places), key=lambda each: each.name):
        # A package's __main__ is a program, not a part of it.
        if each.name != "__main__":
            yield from _with_submodules(import_module(f"{module.__name__}.{each.name}"))


def _where(error: BaseException, name: str) -> str:
    text = described(error)
    if is_a(error, SyntaxError) and error.filename:
        return f"{text} - at {error.filename}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    own = [frame for frame in frames if Path(frame.filename).stem == name.rpartition(".")[2]]
    # An error in a module that this one imports is told where this one, or else that one, has it.
    last = (own or [frame for frame in frames if frame.filename != __file__] or frames)[-1:]
    return "".join(f"{text} - at {frame.filename}:{frame.lineno}" for frame in last) or text
