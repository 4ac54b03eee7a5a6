"""Find and import what a worker serves: modules and packages, installed services, and the targets of a command line.

An installed distribution offers a service by short name, with a line under ``[project.entry-points."toolbus.workers"]``::

    weather = "my_tools.weather"
    tables = "my_tools.tables [data]"

The value is a module (or ``module:name``), and behind it the extras that it needs. The module's docstring says what it does, and a
literal ``SETTINGS = {"VARIABLE": "meaning"}`` which environment variables it reads.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeGuard

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.support.safe_text import is_a, placed
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.function import (
    functions_of,
    held,
    is_of,
    is_tool_class,
    made_tools,
    methods_in,
    methods_of,
    methods_of_module,
    tool_of,
    tools_held,
    tools_of_module,
)
from toolbus.bus.worker.service import ToolService


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
    # Packages that were installed in a folder have their metadata beside them.
    if "." in name or not any(PathFinder.find_spec(name, [each]) and any(Path(each).glob("*.*-info")) for each in elsewhere):
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
                left += [normal_name(found[0]) for line in required if (found := re.match(r"[\w.-]+", line))]
    return not needed.isdisjoint(map(normal_name, metadata.packages_distributions().get(name, ())))


def normal_name(distribution: str) -> str:
    """Return a project's name as package indexes compare it (https://packaging.python.org/en/latest/specifications/name-normalization/)."""
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
        raise ConfigurationError(f"{name} can't be imported: {placed(error, name)}") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's module raises is told in one line
        raise ConfigurationError(f"{name} can't be imported: {placed(error, name)}") from None


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
        left_out.update(_unserved(module.__name__, values))
        left_out.update((each.partition(" ")[0], each) for each in refused)
    return found


def _unserved(module: str, values: list[tuple[ModuleType, Any]]) -> Iterator[tuple[str, str]]:
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
    found = [each for value in {id(value): value for _, value in values}.values() for each in tools_held(value) or ()]
    classes = [value for holder, value in values if is_tool_class(value) and value.__module__ == holder.__name__]
    refused: list[str] = []
    for cls in dict.fromkeys(classes):
        made_already = any(type(each.owner) is cls for each in found)
        if made_already or inspect.isabstract(cls) or any(other is not cls and issubclass(other, cls) for other in classes):
            continue
        try:
            found += made_tools(cls)
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


# -- installed services ----------------------------------------------------------------------------

GROUP = "toolbus.workers"

_COMMAND = re.compile(r": pip install '[^']*'")
_EXAMPLES = ("calculator", "joke", "json_query", "text")


class InstalledService(msgspec.Struct, frozen=True):
    """A service that a distribution offers.

    Attributes:
        name: its short name.
        target: the module, or ``module:name``, that it stands for.
        distribution: the distribution that offers it, and ``extras`` the optional parts of it that the module needs.
    """

    name: str
    target: str
    distribution: str
    extras: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        """The requirement to pass to ``pip install``."""
        return f"{self.distribution}[{','.join(self.extras)}]" if self.extras else self.distribution


class Described(msgspec.Struct, frozen=True):
    """Facts about a module, read from its source without running it."""

    summary: str = ""
    settings: dict[str, str] = {}


@functools.cache
def installed_services() -> tuple[InstalledService, ...]:
    """Return the services of every installed distribution, sorted by name; two distributions may offer the same name."""
    import importlib.metadata  # noqa: PLC0415 - a worker that serves files does without it, and it loads many others

    found = {
        InstalledService(
            point.name,
            f"{point.module}:{point.attr}" if point.attr else point.module,
            point.dist.name if point.dist else "",
            tuple(point.extras),
        )
        for point in importlib.metadata.entry_points(group=GROUP)
    }
    return tuple(sorted(found, key=lambda each: (each.name, each.distribution)))


def installed_service(name: str) -> InstalledService | None:
    """Return the service of a short name, or None.

    Raises:
        ConfigurationError: several distributions offer that name.
    """
    found = [each for each in installed_services() if each.name == name]
    if len(found) > 1:
        offered = ", ".join(f"{each.target} of {each.distribution}" for each in found)
        raise ConfigurationError(f"several distributions offer a service {name!r}: {offered}; give the module instead of the short name")
    return found[0] if found else None


def examples() -> list[ModuleType]:
    """Import the services of toolbus itself that need no network and no settings.

    Raises:
        ConfigurationError: the installation does not know them, or one can't be imported.
    """
    own = {each.name: each for each in installed_services() if each.distribution == "toolbus"}
    if missing := sorted(set(_EXAMPLES) - own.keys()):
        raise ConfigurationError(f"this installation of toolbus lacks its services {', '.join(missing)}; install toolbus anew")
    return [import_installed(own[name]) for name in _EXAMPLES]


def import_installed(service: InstalledService) -> ModuleType:
    """Import the module of an installed service, even if a package in the current folder has the same name.

    Raises:
        ConfigurationError: it can't be imported; names the extras to install.
    """
    name = service.target.partition(":")[0]
    top = name.partition(".")[0]
    loaded, before, places = sys.modules.get(top), list(sys.path), _installed_path(top)
    spec = PathFinder.find_spec(top, places)
    if loaded is not None and spec is not None and spec.origin and getattr(loaded, "__file__", None) not in {None, spec.origin}:
        raise ConfigurationError(f"the package {top!r} of {loaded.__file__} hides the installed one of {spec.origin}; rename it")
    sys.path[:] = places
    try:
        return import_module(name)
    except ConfigurationError as error:
        if not service.extras:
            raise
        # A module below may name the extra of its own part, and the service's extras have it.
        said = _COMMAND.sub("", str(error))
        raise ConfigurationError(f"{said}; install what it needs: pip install '{service.requirement}'") from None
    finally:
        sys.path[:] = before


def find_installed(name: str) -> ModuleSpec | None:
    """Return where an installed module is, without importing anything; packages in the current folder do not count."""
    top = name.partition(".")[0]
    return find_below(PathFinder.find_spec(top, _installed_path(top)), name)


def find_module(name: str) -> ModuleSpec | None:
    """Return where any module is, without importing anything."""
    try:
        return find_below(find_spec(name.partition(".")[0]), name)
    except (ImportError, ValueError):
        return None


def find_below(spec: ModuleSpec | None, name: str) -> ModuleSpec | None:
    """Return where a module is, given where its topmost package is."""
    for depth in range(1, name.count(".") + 1):
        if spec is None:
            return None
        spec = PathFinder.find_spec(".".join(name.split(".")[: depth + 1]), list(spec.submodule_search_locations or ()))
    return spec


def describe(service: InstalledService) -> Described:
    """Read what a service's module says about itself; empty when there is no source, and the reason when it can't be read."""
    spec = find_installed(service.target.partition(":")[0])
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return Described()
    try:
        tree = ast.parse(Path(spec.origin).read_text("utf-8"))
        return Described((ast.get_docstring(tree) or "").partition("\n")[0].replace("``", ""), _settings(tree))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        # Anybody's package may offer services, and one must not hide the others.
        return Described(f"{spec.origin} can't be read: {error}")


def _settings(tree: ast.Module) -> dict[str, str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "SETTINGS" for target in node.targets):
            return msgspec.convert(ast.literal_eval(node.value), dict[str, str])
    return {}


def _installed_path(top: str) -> list[str]:
    """Return the places to import an installed package from: without the current folder, unless it is found nowhere else."""
    here = {"", str(Path.cwd())}
    others = [place for place in sys.path if place not in here]
    return others if PathFinder.find_spec(top, others) is not None else list(sys.path)


# -- targets of a command line ---------------------------------------------------------------------


def load(target: str) -> object:
    """Import a target.

    A path, of a file or of a package's folder, is imported as the module that it is within the packages around it, with the folder
    around those on ``sys.path``. A name is a module of the current folder, else an installed service (see ``installed.py``) if it has no
    dots, else any module. ``:name`` picks one object of a module or path.

    Raises:
        ConfigurationError: it can't be found or imported, which names the line that failed; or another module has its name.
    """
    wanted = _wanted(target)
    if wanted.service is not None:
        module = import_installed(wanted.service)
    else:
        _see_here()
        try:
            module = import_module(wanted.module) if wanted.place is None else import_from(wanted.module, wanted.place)
        except MissingModuleError as error:
            raise ConfigurationError(f"{error}{_advice(wanted.module)}") from None
    if not wanted.attribute:
        return module
    found: object = module
    for part in wanted.attribute.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigurationError(f"{target.partition(':')[0]} has no {wanted.attribute!r}")
    return found


def folders(targets: tuple[str, ...]) -> list[Path]:
    """Return the folders whose files a worker of these targets is made of, for reloading; runs none of them.

    Raises:
        ConfigurationError: a target can't be found.
    """
    found: set[Path] = set()
    _see_here()
    for target in targets:
        wanted = _wanted(target)
        if wanted.place is not None:
            found.add(wanted.place if wanted.place.is_dir() else wanted.place.resolve().parent)
            continue
        spec = find_module(wanted.module) if wanted.service is None else find_installed(wanted.module)
        if spec is None:
            raise ConfigurationError(f"{absent(wanted.module)}{_advice(wanted.module)}")
        if spec.origin:
            found.add(Path(spec.origin).parent)
        else:
            found |= {Path(folder) for folder in spec.submodule_search_locations or ()}
    return sorted(found)


class _Wanted(NamedTuple):
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


def _wanted(target: str) -> _Wanted:
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
        return _Wanted(_module_of(path), name, path)
    here = _is_here(place)
    if here is not None:
        return _Wanted(place, name, here)
    service = installed_service(place) if not name and "." not in place else None
    if service is None:
        return _Wanted(place, name)
    module, _, attribute = service.target.partition(":")
    return _Wanted(module, attribute, None, service)


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
    return did_you_mean(near, str) or "; `toolbus see workers` lists the installed services"


def _see_here() -> None:
    """Let modules of the current folder be found."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
