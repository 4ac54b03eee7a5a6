"""The options of a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from toolbus.results import ConfigurationError


class ServiceCallOptions(TypedDict, total=False):
    """Options of calls to a service without tool descriptors, where the user is an argument of the call.

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
    """

    session: str
    timeout: float | None
    idle_timeout: float | None
    wait: float | bool
    idempotency_key: str
    resume_from: int
    metadata: Mapping[str, str]


class CallOptions(ServiceCallOptions, total=False):
    """Options of ``call`` and ``stream``; ``bind`` sets defaults for them.

    Keys:
        user: the tenant that the call runs for; all others as in ``ServiceCallOptions``.
    """

    user: str


_KNOWN = frozenset(CallOptions.__optional_keys__)
_RESERVED = frozenset({"priority"})


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the defaults overridden by the given options.

    Raises:
        ConfigurationError: an option does not exist.
    """
    if not given:
        return defaults
    for name in given:
        if name in _RESERVED:
            raise ConfigurationError(f"the call option {name!r} is reserved: it would have no effect yet")
        if name not in _KNOWN:
            raise ConfigurationError(f"there is no call option {name!r} (there are: {', '.join(sorted(_KNOWN))})")
    return {**defaults, **given} if defaults else given


def seconds(value: Any, name: str) -> float:
    """Return the option ``name`` as a number of seconds.

    Raises:
        ConfigurationError: it is not a finite number of seconds above 0.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ConfigurationError(f"{name} must be a finite number of seconds above 0, not {value!r}")
    return float(value)


def characters(value: Any, name: str) -> int:
    """Return the option ``name`` as a number of characters.

    Raises:
        ConfigurationError: it is no whole number, or below 0.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{name} must be a number of characters, not {value!r}")
    return value
