"""``ToolService``: the base class of services with configuration and many tools."""

from __future__ import annotations

import contextlib
import dis
import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from toolbus.bus.support.safe_text import is_a, placed, type_name
from toolbus.bus.values import rules
from toolbus.bus.values.descriptors import Effect, effect_flaw
from toolbus.bus.values.results import ConfigurationError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.outcome import original

_RULES = {
    "attempts": rules.whole("a whole number above 0", 1),
    "delay": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "most": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "jitter": rules.number("a number from 0 to 1", least=0, most=1),
}


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Run a handler again when it raises, or fails with ``retryable``; off unless a service or tool asks for it.

    The worker keeps the request meanwhile, without a slot. A run that still fails after the last attempt becomes a
    dead letter, and its caller is answered with the last error. Tools whose effect is ``once`` are never run again.

    Attributes:
        attempts: most runs in all, the first one and those after a worker crashed among them.
        delay: seconds before the second run; doubled for each further one. ``retry_after`` of an error counts when it is longer.
        most: most seconds between two runs.
        jitter: the fraction by which a delay is shortened at random, so that failures of one moment do not return together.

    Raises:
        ConfigurationError: a value is of another kind, or out of its range.
    """

    attempts: int = 3
    delay: float = 0.5
    most: float = 30.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        rules.check(msgspec.structs.asdict(self), _RULES, "Retry")

    def allows(self, attempt: int, most: int) -> bool:
        """Return whether this attempt (from 1) may be followed by another one, where requests have ``most`` attempts at most."""
        return attempt < min(self.attempts, most)

    def after(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after this attempt (from 1)."""
        backoff = min(self.most, self.delay * 2.0 ** min(attempt - 1, 30))
        spread: float = backoff * (1 - self.jitter * random.random())  # noqa: S311 - jitter, not a secret
        return max(spread, retry_after or 0.0)


class Session(NamedTuple):
    """A session of one user. It equals the tuple ``(user, id)``, so that users with equal ids stay apart in a dict.

    Attributes:
        user: the tenant.
        id: what ``bus.bind(session=…)`` said; empty for calls without a session, which share the user's own.
    """

    user: str
    id: str


class ToolService:
    """Subclass it, describe the tools, override ``invoke``, and give it to a ``Worker``.

    ``invoke`` receives the user (tenant), the config values of the called tool's descriptor, and the
    model's arguments. It may be a coroutine function, an async generator function, or a plain function or
    generator, which run in a thread. A two-argument ``invoke(self, config, arguments)`` is accepted.
    It returns a value or yields ``str``, ``Progress``, ``Blob`` and lastly at most one ``ToolResult``.
    Methods decorated with ``@tool`` are tools too, and are dispatched by name.

    Attributes:
        id: the service's id; names its request stream.
        config_params: names of the values that tool descriptors carry, or ``{"name", "required"}``.
        tools: tool descriptors in the two-tier form; ``type`` and ``service`` may be left out.
        effect: what a second execution would do, for tools that do not say so themselves.
        description: for people.
        request_queue, response_queue: outside names, see ``ServiceDescriptor``.
        scale_to_zero: callable without live workers; calls wait for one to start.
        retry: run failed calls again, see ``Retry``; None answers with the first failure.
        queue_limit: most requests queued and running; 0 means the publisher's setting.
        sequential: the calls of its tools run one after another in a turn, or are not in order even in a sticky session (False), unless a
            tool says otherwise; see docs/how-to/models.md.
        sticky_sessions: calls of one session go to the worker that has its state, see docs/how-to/sessions.md; always so for a service
            that overrides ``open_session``.
        session_lost: what becomes of a call whose session has lost its state: ``error`` (it fails with the code ``session_lost``, by
            default for a service with ``open_session``), ``restart`` (it runs on a new state, and ``result.meta.restarted`` says so, by
            default for others), or ``restore`` (the state is restored by ``load_session``).
        session_idle: seconds after its last call when a session ends at a worker, if nobody ended it before.
        max_sessions: most sessions that one worker has open; beyond, the one that was not used for the longest ends.
        worker_settings: settings of the worker that serves it, from ``startup`` on.
    """

    id: ClassVar[str] = ""
    config_params: ClassVar[Sequence[str | Mapping[str, Any]]] = ()
    tools: ClassVar[Sequence[Mapping[str, Any]]] = ()
    effect: ClassVar[Effect] = ""
    description: ClassVar[str] = ""
    request_queue: ClassVar[str] = ""
    response_queue: ClassVar[str] = ""
    scale_to_zero: ClassVar[bool] = False
    queue_limit: ClassVar[int] = 0
    retry: ClassVar[Retry | None] = None
    sequential: ClassVar[bool | None] = None
    sticky_sessions: ClassVar[bool] = False
    session_lost: ClassVar[str] = ""
    session_idle: float = 900.0
    max_sessions: int = 1000
    worker_settings: Settings | None = None

    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Run one call.

        Raises:
            ToolError: to fail with a type, code and retry hint of its own.
        """
        raise ConfigurationError(f"{type_name(self)} has neither invoke() nor a @tool method for this call")

    async def startup(self) -> None:
        """Prepare what all calls share; runs once, before the service takes requests."""

    def open_session(self, session: Session, initial: dict[str, Any]) -> Any:
        """Return the state of a session; handlers find it in ``invocation().state``.

        It runs before the first call of the session at this worker, and again where the state was lost. It may be a plain function,
        which runs in a thread, and may leave ``initial`` out of its parameters. When it raises, the call fails, and the next one tries
        again.

        Args:
            session: user and id.
            initial: what the caller said, ``bus.session(…, initial=…)``; empty when it said nothing.
        """

    def save_session(self, session: Session, state: Any) -> Any:
        """Return a snapshot of a state after a call: JSON of at most 256 KiB; for ``session_lost = "restore"``.

        It may take 10 seconds. When it raises, or a call is stopped, there is no snapshot until the next call. Calls of tools with
        ``sequential=False`` make none.
        """
        raise NotImplementedError

    def load_session(self, session: Session, saved: Any) -> Any:
        """Return the state of which ``save_session`` returned a snapshot; for ``session_lost = "restore"``."""
        raise NotImplementedError

    async def cleanup(self) -> None:
        """Release what ``startup`` prepared; runs once, after the last call.

        Declared as ``cleanup(self, session=None)`` it runs for each ``Session`` too: when it ends, and when the worker leaves; and
        then with None. With a second parameter it is given the state of the session. A plain function runs in a thread then. Each may
        take 10 seconds; one that fails does not stop the others.
        """


_RETRY = rules.or_none(rules.Rule("a Retry", lambda value: isinstance(value, Retry)))

TOOL: Mapping[str, rules.Rule] = {
    "name": rules.or_none(rules.TEXT),
    "description": rules.or_none(rules.TEXT),
    "parameters": rules.or_none(rules.MAPPING),
    "category": rules.TEXT,
    "groups": rules.TEXTS,
    "service": rules.or_none(rules.TEXT),
    "effect": rules.TEXT,
    "timeout": rules.number("a number of seconds, 0 or more", least=0, most=1e9),
    "output_limit": rules.whole("a number of characters, 0 or more"),
    "confirm": rules.FLAG,
    "tenants": rules.TEXTS,
    "retry": _RETRY,
    "cache": rules.or_none(rules.FLAG),
    "sequential": rules.or_none(rules.FLAG),
    "isolation": rules.TEXT,
    "memory_limit": rules.whole("a number of bytes, 0 or more"),
    "task": rules.Rule(
        "'always', 'never', 'auto', or a number of seconds",
        lambda value: value in (None, "always", "never", "auto") or (type(value) in (int, float) and 0 <= value < 1e9),
    ),
    "output_schema": rules.or_none(rules.MAPPING),
    "state": rules.FLAG,
    "replace": rules.FLAG,
}

SERVICE: Mapping[str, rules.Rule] = {
    "id": rules.TEXT,
    "config_params": rules.Rule(
        'a list of names, or of {"name", "required"}',
        lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, (str, Mapping)) for each in value),
    ),
    "tools": rules.Rule(
        "a list of descriptors", lambda value: isinstance(value, (list, tuple)) and all(isinstance(each, Mapping) for each in value)
    ),
    "effect": rules.TEXT,
    "description": rules.TEXT,
    "request_queue": rules.TEXT,
    "response_queue": rules.TEXT,
    "scale_to_zero": rules.FLAG,
    "queue_limit": rules.whole("a number of requests, 0 or more"),
    "retry": _RETRY,
    "sequential": rules.or_none(rules.FLAG),
    "sticky_sessions": rules.FLAG,
    "session_lost": rules.one_of("", "error", "restart", "restore"),
    "session_idle": rules.number("a number of seconds above 0", above=0, most=1e9),
    "max_sessions": rules.whole("a whole number above 0", 1),
}


@contextlib.contextmanager
def failure_named(cls: type[ToolService], step: str, name: object = "") -> Iterator[None]:
    """Run code of a service's own before it serves; what that raises is told in one line.

    Args:
        cls: the service's class.
        step: what is done with the service meanwhile, such as ``started``.
        name: its id, where it is known.

    Raises:
        ConfigurationError: from what the code raised; names the service and the line. Errors of toolbus pass as they are.
    """
    try:
        yield
    except ToolbusError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's service raises is told in one line
        raised = original(error)
        if is_a(raised, KeyboardInterrupt):
            # Ctrl-C is for the program, also when it comes while a service starts.
            raise raised from None
        raise ConfigurationError(f"{_named(cls, name)} can't be {step}: {placed(raised, cls.__module__)}") from raised


def _named(cls: type[ToolService], name: object) -> str:
    # Finding a class in its file parses the whole file, so that only a message does it.
    return f"the service {name or cls.__name__!r} ({cls.__module__}.{cls.__qualname__}{place_of(cls)})"


def check_service(service: ToolService) -> None:
    """Check the attributes of a service.

    Raises:
        ConfigurationError: one is of another kind than it must be, or out of its range, or raises.
    """
    if flaw := _flaw(service):
        raise ConfigurationError(f"{_named(type(service), service.id)}{flaw}")


def _flaw(service: ToolService) -> str:
    cls = type(service)
    values: dict[str, Any] = {}
    for name in SERVICE:
        with failure_named(cls, f"asked for its {name}"):
            values[name] = getattr(service, name)
    if wrong := rules.flaw(values, SERVICE):
        return f": {wrong}"
    if service.session_lost and not (service.sticky_sessions or overrides(cls, "open_session")):
        return f" says session_lost={service.session_lost!r}, which needs sticky_sessions = True or open_session()"
    if service.session_lost == "restore" and not (overrides(cls, "save_session") and overrides(cls, "load_session")):
        return " says session_lost='restore', which needs save_session() and load_session()"
    return f": {wrong}" if (wrong := effect_flaw(service.effect)) else ""


def overrides(cls: type[ToolService], method: str) -> bool:
    """Return whether a service has a method of its own for one of ``ToolService``."""
    return getattr(cls, method) is not getattr(ToolService, method)


def place_of(defined: Any) -> str:
    """Return ``, file:line`` of a function or class for a message, or an empty text when there is no source."""
    try:
        return f", {inspect.getsourcefile(defined)}:{inspect.getsourcelines(defined)[1]}"
    except (OSError, TypeError):
        return ""


def returns_unseen(function: Any) -> bool:
    """Return whether a generator function returns a value, which nobody who iterates it sees."""
    called = function if inspect.isroutine(function) else type(function).__call__
    if not inspect.isgeneratorfunction(called):
        return False
    before: dis.Instruction | None = None
    for each in dis.get_instructions(called):
        value = before if each.opname == "RETURN_VALUE" else each if each.opname == "RETURN_CONST" else None
        if value is not None and not (value.opname in {"LOAD_CONST", "RETURN_CONST"} and value.argval is None):
            return True
        before = each
    return False
