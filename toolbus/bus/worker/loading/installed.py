"""Services that installed distributions bring, by short name: the entry-point group ``toolbus.workers``.

A distribution offers a service with a line under ``[project.entry-points."toolbus.workers"]``::

    weather = "my_tools.weather"
    tables = "my_tools.tables [data]"

The value is a module (or ``module:name``), and behind it the extras that it needs. The module's docstring says what it does, and a
literal ``SETTINGS = {"VARIABLE": "meaning"}`` which environment variables it reads.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.loading.modules import import_module

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
        InstalledService(point.name, _target(point), "" if point.dist is None else point.dist.name, tuple(point.extras))
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
    with _without_working_folder(name):
        try:
            module = import_module(name)
        except ConfigurationError as error:
            if not service.extras:
                raise
            # A module below may name the extra of its own part, and the service's extras have it.
            said = _COMMAND.sub("", str(error))
            raise ConfigurationError(f"{said}; install what it needs: pip install '{service.requirement}'") from None
    return module


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


def _target(point: EntryPoint) -> str:
    return f"{point.module}:{point.attr}" if point.attr else point.module


def _installed_path(top: str) -> list[str]:
    """Return the places to import an installed package from: without the current folder, unless it is found nowhere else."""
    here = {"", str(Path.cwd())}
    others = [place for place in sys.path if place not in here]
    return others if PathFinder.find_spec(top, others) is not None else list(sys.path)


@contextmanager
def _without_working_folder(name: str) -> Iterator[None]:
    top = name.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = PathFinder.find_spec(top, _installed_path(top))
    if loaded is not None and spec is not None and spec.origin and getattr(loaded, "__file__", None) not in {None, spec.origin}:
        raise ConfigurationError(f"the package {top!r} of {loaded.__file__} hides the installed one of {spec.origin}; rename it")
    before = list(sys.path)
    sys.path[:] = _installed_path(top)
    try:
        yield
    finally:
        sys.path[:] = before
