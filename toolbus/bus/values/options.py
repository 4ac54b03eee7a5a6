"""The options of a call."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypedDict

from toolbus.bus.values import rules
from toolbus.bus.values.encoding import encode_data
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.results import ConfigurationError


class ServiceCallOptions(TypedDict, total=False):
    """Options of calls to a service without tool descriptors, where the user is an argument of the call. None is no value.

    Keys:
        session: the agent's session.
        timeout: seconds until the call ends in any case, the wait for a worker included. By default the tool's, else 60, which begin when
            there is a worker.
        idle_timeout: seconds without any frame after which the call ends.
        wait: seconds to wait for a worker to appear, at most ``timeout``; True waits as long as that.
        idempotency_key: the caller's own key for this call. Calls of one user and session with the same key share one execution.
            Within the retention time a later call with the key, even after a restart, reads the same answer from its start.
        resume_from: characters of text that the caller of a shared call already has; its stream continues after them.
        metadata: free strings for the handler.
        initial: a JSON object of at most 64 KiB, of which services make the state of the session, see ``ToolService.open_session``.
    """

    session: str | None
    timeout: float | None
    idle_timeout: float | None
    wait: float | bool | None
    idempotency_key: str | None
    resume_from: int | None
    metadata: Mapping[str, str] | None
    initial: Mapping[str, Any] | None


class CallOptions(ServiceCallOptions, total=False):
    """Options of ``call`` and ``stream``; ``bind`` sets defaults for them.

    Keys:
        user: the tenant that the call runs for; all others as in ``ServiceCallOptions``.
    """

    user: str | None


_MOST_INITIAL = 65_536
_SECONDS = rules.number("a finite number of seconds above 0", above=0, most=sys.float_info.max)
_TEXTS_BY_NAME = rules.Rule("a mapping from texts to texts", rules.MAPPING.holds)
_RESERVED = frozenset({"priority"})


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any], others: Iterable[str] = ()) -> Mapping[str, Any]:
    """Return the defaults overridden by the given options. None stands for no value, also in place of a default.

    Args:
        defaults: checked before.
        given: to be checked.
        others: names of further options that the caller of this function takes, for the message about a wrong name.

    Raises:
        ConfigurationError: an option does not exist, or has a value of another kind than it must have.
    """
    if not given:
        return defaults
    absent = False
    for name, value in given.items():
        check = _CHECKS.get(name)
        if check is None:
            raise ConfigurationError(_unknown(name, others))
        if value is None:
            absent = True
        else:
            check(value, name)
    found = {**defaults, **given} if defaults else given
    if not absent:
        return found
    present = {name: value for name, value in found.items() if value is not None}
    # No user may see fewer tools than a program that says nothing of users.
    return {**present, "user": ""} if given.get("user", "") is None else present


text: Callable[[Any, str], str] = partial(rules.checked, rule=rules.TEXT)
"""Return an option, which has this name, as a text, or raise ``ConfigurationError``."""
mapping: Callable[[Any, str], Mapping[str, Any]] = partial(rules.checked, rule=rules.MAPPING)
"""Return an option as a mapping, or raise ``ConfigurationError``."""
characters: Callable[[Any, str], int] = partial(rules.checked, rule=rules.whole("a number of characters"))
"""Return an option as a number of characters, or raise ``ConfigurationError``."""


def session_id(value: Any) -> str:
    """Return the id of a session.

    Raises:
        ConfigurationError: it is no text, or an empty one.
    """
    if not text(value, "session"):
        raise ConfigurationError("a session needs an id; the empty text is none")
    return str(value)


def texts(value: Any, name: str) -> Mapping[str, str]:
    """Return the option ``name`` as texts by name.

    Raises:
        ConfigurationError: it is no mapping, or has a key or value that is no text.
    """
    found: Mapping[str, str] = rules.checked(value, name, _TEXTS_BY_NAME)
    for key, part in found.items():
        if not isinstance(key, str) or not isinstance(part, str):
            raise ConfigurationError(f"{name} must be {_TEXTS_BY_NAME.expected}, and has {key!r}: {rules.told(part)}")
    return found


def seconds(value: Any, name: str) -> float:
    """Return the option ``name`` as a number of seconds.

    Raises:
        ConfigurationError: it is not a finite number of seconds above 0.
    """
    return float(rules.checked(value, name, _SECONDS))


def _patience(value: Any, name: str) -> float:
    """Return the option ``name`` as a number of seconds, or as True or False."""
    zero = isinstance(value, (int, float)) and value == 0
    return value if isinstance(value, bool) or zero else seconds(value, name)


def _initial(value: Any, name: str) -> Mapping[str, Any]:
    """Return the option ``name`` as a JSON object that is not too large."""
    try:
        size = len(encode_data(mapping(value, name)))
    except ValueError as error:
        raise ConfigurationError(f"{name} must be a JSON object: {error}") from None
    if size > _MOST_INITIAL:
        raise ConfigurationError(f"{name} must be a JSON object of at most {_MOST_INITIAL:,} bytes, not {size:,}; pass a reference to it")
    return mapping(value, name)


# The check of each option of a call. What is above a limit of the settings is refused where these are known.
_CHECKS: dict[str, Callable[[Any, str], object]] = {
    "user": text,
    "session": text,
    "timeout": seconds,
    "idle_timeout": seconds,
    "wait": _patience,
    "idempotency_key": text,
    "resume_from": characters,
    "metadata": texts,
    "initial": _initial,
}


def _unknown(name: str, others: Iterable[str]) -> str:
    if name in _RESERVED:
        return f"the call option {name!r} is reserved: it would have no effect yet"
    known = sorted({*_CHECKS, *others})
    hint = did_you_mean(difflib.get_close_matches(name, known, n=1))
    return f"there is no {'option' if others else 'call option'} {name!r}{hint} (there are: {', '.join(known)})"
