"""Services that fill in handlers' parameters, by the types of these."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from toolbus.bus.schema.derivation import describable, read_signature
from toolbus.bus.support.safe_text import is_a, placed
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.outcome import original, without_exits

T = TypeVar("T")

_provided: dict[type, object] = {}


def provide(type_: type[T], source: T | Callable[[], Any], *, replace: bool = False) -> None:
    """Fill in every handler's parameter that is annotated with a type: ``X``, ``Optional[X]``, ``X | None``.

    Such a parameter is no part of the tool's schema, and is never taken from arguments. ::

        async def graph() -> AsyncIterator[GraphStore]:
            store = await GraphStore.connect()
            yield store
            await store.close()

        provide(GraphStore, graph)

    Args:
        type_: the type, as it stands in annotations.
        source: an instance; or a function without parameters, plain or async, that returns one; or a generator function, plain
            or async, that yields one and then cleans up. A worker makes one before it takes calls, for all of its handlers.
        replace: take the place of another source of that type in this process.

    Raises:
        ConfigurationError: the type has a source already, or the source is neither of these.
    """
    _check(type_, source)
    before = _provided.get(type_)
    if before is not None and not replace and _origin(before) != _origin(source):
        raise ConfigurationError(f"{type_.__qualname__} is provided already, by {_origin(before)}; say replace=True to take its place")
    _provided[type_] = source


class Services(Container[type]):
    """The services of one worker: its own sources before those of the process.

    A type is in it when a parameter annotated with it is filled in, or can only be.
    """

    def __init__(self, own: Mapping[type, object] | None = None) -> None:
        for type_, source in (own or {}).items():
            _check(type_, source)
        self._own = dict(own or {})
        self._wanted: dict[type, None] = {}
        self._made: dict[type, Any] = {}
        self._life = contextlib.AsyncExitStack()

    def __contains__(self, type_: object) -> bool:
        return isinstance(type_, type) and (self.provides(type_) or _only_a_service(type_))

    def __iter__(self) -> Iterator[type]:
        return iter({**_provided, **self._own})

    def provides(self, type_: type) -> bool:
        """Return whether there is a source of a type."""
        return type_ in self._own or type_ in _provided

    def own(self, type_: type) -> bool:
        """Return whether the source was given to this worker, so that other processes do not have it."""
        return type_ in self._own

    def want(self, types: Iterable[type]) -> None:
        """Have these made when the worker starts."""
        self._wanted.update(dict.fromkeys(types))

    def get(self, type_: type) -> Any:
        """Return the service of a type, once it was made."""
        return self._made[type_]

    async def start(self) -> None:
        """Make what is wanted and was not made yet; ``aclose`` cleans up, also after a failure.

        Raises:
            ConfigurationError: a source failed; says which one and how.
        """
        for type_ in self._wanted:
            if type_ not in self._made:
                self._made[type_] = await self.make(type_)

    async def make(self, type_: type) -> Any:
        """Make one service, which ``aclose`` cleans up."""
        source = self._own[type_] if type_ in self._own else _provided[type_]
        try:
            return await without_exits(self._life.enter_async_context(_living(source))) if _is_factory(source, type_) else source
        except Exception as error:  # noqa: BLE001 - whatever the user's source raises is told in one line
            raised = original(error)
            if is_a(raised, KeyboardInterrupt):
                # As in ``failure_named``.
                raise raised from None
            said = placed(raised, getattr(source, "__module__", None) or "")
            raise ConfigurationError(f"the service {type_.__qualname__} can't be made by {_origin(source)}: {said}") from raised

    async def aclose(self) -> None:
        """Clean up what was made, the latest first."""
        self._made.clear()
        await self._life.aclose()


def injected(parameters: Mapping[str, Any] | None, bound: Callable[..., Any], services: Services) -> Container[type]:
    """Return the types of parameters that are filled in for a function, ``bound`` to its object if it is a method.

    ``parameters`` is the schema that its author gave, if any.
    """
    if parameters is None:
        return services
    # What the author's schema names is an argument, whatever its annotation.
    named: Mapping[str, Any] = parameters.get("properties", {})
    found = read_signature(bound, injected=services, skip_self=False).injected
    arguments = {type_ for name, type_ in found.items() if name in named and not services.provides(type_)}
    # In this order, since the last of several with one name is what an annotation's text means.
    return {type_: None for type_ in (*services, *found.values()) if type_ not in arguments}


def has_factory(type_: type) -> bool:
    """Return whether the process has a function that makes a service of a type."""
    return type_ in _provided and _is_factory(_provided[type_], type_)


@contextlib.asynccontextmanager
async def _living(source: Any) -> AsyncIterator[Any]:
    made = source()
    if inspect.isasyncgen(made):
        async with contextlib.asynccontextmanager(lambda: made)() as service:
            yield service
    elif inspect.isgenerator(made):
        with contextlib.contextmanager(lambda: made)() as service:
            yield service
    else:
        yield await made if inspect.isawaitable(made) else made


def _check(type_: object, source: object) -> None:
    if not isinstance(type_, type):
        raise ConfigurationError(f"provide() takes a type and its source, not {type_!r}")
    if source is None or not (callable(source) or _is_instance(source, type_)):
        raise ConfigurationError(f"{source!r} is no {type_.__qualname__}, nor a function that makes one")


def _is_factory(source: object, type_: type) -> bool:
    return callable(source) and not _is_instance(source, type_)


def _is_instance(source: object, type_: type) -> bool:
    if isinstance(source, type):
        return False
    try:
        return isinstance(source, type_)
    except TypeError:
        # A protocol that can't be checked: an object that is no function counts.
        return not inspect.isroutine(source)


def _origin(source: object) -> str:
    named = source if hasattr(source, "__qualname__") else type(source)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _only_a_service(type_: type) -> bool:
    """Return whether no argument could ever be of a type: a class of a user's own that is no data."""
    if type_.__module__.partition(".")[0] in sys.stdlib_module_names and type_.__module__ != "__main__":
        return False
    data = issubclass(type_, (msgspec.Struct, enum.Enum, str, int, float, bytes, list, tuple, dict, set, frozenset))
    return not (data or dataclasses.is_dataclass(type_) or hasattr(type_, "__attrs_attrs__") or describable(type_))
