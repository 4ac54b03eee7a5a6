"""Check definitions: the options of ``@tool``, the attributes of a ``ToolService``, and what a function returns in vain."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Mapping
from typing import Any

from toolbus import rules
from toolbus.effects import effect_flaw
from toolbus.results import ConfigurationError
from toolbus.worker.definition.retry import Retry
from toolbus.worker.definition.service import ToolService

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


def check_service(service: ToolService) -> None:
    """Check the attributes of a service.

    Raises:
        ConfigurationError: one is of another kind than it must be, or out of its range.
    """
    cls = type(service)
    of = f"the service {service.id or cls.__name__!r} ({cls.__module__}.{cls.__qualname__}{place_of(cls)})"
    rules.check({name: getattr(service, name) for name in SERVICE}, SERVICE, of)
    if service.session_lost and not (service.sticky_sessions or overrides(cls, "open_session")):
        raise ConfigurationError(f"{of} says session_lost={service.session_lost!r}, which needs sticky_sessions = True or open_session()")
    if service.session_lost == "restore" and not (overrides(cls, "save_session") and overrides(cls, "load_session")):
        raise ConfigurationError(f"{of} says session_lost='restore', which needs save_session() and load_session()")
    flaw = effect_flaw(service.effect)
    if flaw:
        raise ConfigurationError(f"{of}: {flaw}")


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
