"""The default owner of what a module publishes: the project that the module belongs to."""

from __future__ import annotations

import functools
import gc
import re
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.middleware.chain import Middleware, Only, checked
from toolbus.bus.values.results import ConfigurationError, RegistrationRefused
from toolbus.bus.worker.definition.function import tool_of
from toolbus.bus.worker.definition.provide import Services
from toolbus.bus.worker.run.outcome import without_exits
from toolbus.bus.worker.serving.handlers import Served
from toolbus.bus.worker.slots.slots import Slots

if TYPE_CHECKING:
    from importlib.metadata import Distribution

    from toolbus.bus.broker.worker import WorkerBroker

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


_MOST_TOLD = 20


async def begin(made: Served, slots: Slots, served: MutableMapping[str, Served]) -> None:
    """Prepare and publish a service while others are ``served``; what goes wrong leaves nothing."""
    await made.startup(slots.settings)
    try:
        slots.sessions.open(made)
        # Calls may arrive as soon as it is published.
        served[made.id] = made
        await publish(slots.broker, made)
    except BaseException:
        served.pop(made.id, None)
        await slots.sessions.close(made)
        await clean_up(made)
        raise


async def end(served: Served, slots: Slots) -> None:
    """Leave the stream of a service that was withdrawn."""
    await slots.sessions.close(served)
    await slots.broker.retire(served.id)
    slots.forget(served.id)
    await clean_up(served)


async def publish(broker: WorkerBroker, served: Served) -> None:
    """Publish a service; tools whose names belong to others are left out and named, the rest goes live."""
    publication = served.publication
    try:
        await broker.register(publication, served.origin)
    except RegistrationRefused as refusal:
        kept = tuple(tool for tool in publication.tools if f"tool/{tool.name}" not in refusal.names)
        if not kept or any(not name.startswith("tool/") for name in refusal.names):
            raise
        telemetry.log.warning("tools.refused", service=served.id, error=str(refusal))
        left = msgspec.structs.replace(publication, tools=kept).with_digest()
        await broker.register(left, served.origin)
        served.publication = left
    undeclared = served.undeclared()
    if undeclared:
        telemetry.log.info("tools.undeclared_effect", service=served.id, tools=undeclared, meaning="may be re-run after a crash")


def tell(served: Iterable[Served], left_out: Mapping[str, str]) -> None:
    """Say what a worker serves, and what it left out and why."""
    every = list(served)
    tools = sorted(tool.name for each in every for tool in each.publication.tools)
    refused = dict.fromkeys((name for each in every for name in each.tools if name not in tools), "its name belongs to another owner")
    missing = {**left_out, **refused}
    fields: dict[str, object] = {"services": sorted(each.id for each in every)[:_MOST_TOLD], "tools": tools[:_MOST_TOLD]}
    if len(tools) > _MOST_TOLD:
        fields["further"] = len(tools) - _MOST_TOLD
    if missing:
        fields["left_out"] = dict(sorted(missing.items())[:_MOST_TOLD])
    if len(missing) > _MOST_TOLD:
        fields["further_left_out"] = len(missing) - _MOST_TOLD
    telemetry.log.info("worker.serving", **fields)


async def clean_up(served: Served) -> None:
    """Run a service's own clean-up; what goes wrong is logged."""
    try:
        await without_exits(served.cleanup())
    except Exception:  # noqa: BLE001 - one failing clean-up must not stop the others
        telemetry.log.exception("service.cleanup_failed", service=served.id)


async def clean_provided(services: Services) -> None:
    """Clean up what handlers were provided with; what goes wrong is logged."""
    try:
        await without_exits(services.aclose())
    except Exception:  # noqa: BLE001 - one failing clean-up must not stop the others
        telemetry.log.exception("service.cleanup_failed", service="provided")


def collect_rarely() -> None:
    """Let Python look for garbage more rarely, in a process that is only a worker.

    What was loaded stays for good, and what calls leave behind is nearly all freed by counting. It gave 10 to 20 % more calls/s.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def checked_around(middleware: Iterable[Middleware], served: Iterable[Served]) -> tuple[Middleware, ...]:
    """Return the middleware as it was given; names of ``only`` that nothing here has are logged.

    Raises:
        ConfigurationError: one is no middleware, or is a tool.
    """
    found = checked(middleware)
    for each in found:
        made = tool_of(each)
        if made is not None:
            raise ConfigurationError(
                f"{made.origin} is a tool, not middleware: give what runs around tools, an async function of (call, next)"
            )
    names: set[str] = set()
    for one in served:
        if one.serves_any_tool:
            return found
        names |= {one.id, *one.tools}
    for each in found:
        unknown = sorted(each.tools - names) if isinstance(each, Only) else []
        if unknown:
            telemetry.log.warning("middleware.unknown_tools", tools=unknown, served=sorted(names)[:20])
    return found
