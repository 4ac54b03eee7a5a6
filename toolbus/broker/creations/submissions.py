"""Check what is submitted, and find ids for it."""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterator

import msgspec

from toolbus.broker.protocols.creations import MOST_SPEC
from toolbus.broker.reading import MOST_TEXT
from toolbus.encoding import whole_text
from toolbus.results import ConfigurationError, ToolError

# Ids have eight hexadecimal digits, so that two submissions may meet at one.
_MOST_TRIES = 100


def submitted(spec: str, by: str, key: str, about: str) -> tuple[str, str]:
    """Return a spec as it is kept, and the token of its submission: the same for the same key of the same user.

    Raises:
        ConfigurationError: the spec is empty or too long, or another text is.
    """
    spec = whole_text(spec)
    if not spec.strip():
        raise ConfigurationError("the specification of a task is empty; say what the tool should do")
    if len(spec.encode()) > MOST_SPEC:
        raise ConfigurationError(f"the specification of a task is over the bound of {MOST_SPEC:,} bytes")
    for name, given in (("user", by), ("key", key), ("tool", about)):
        if len(given) > MOST_TEXT or whole_text(given) != given:
            raise ConfigurationError(f"the {name} of a task is a text of at most {MOST_TEXT} characters")
    if not key:
        return spec, secrets.token_hex(16)
    return spec, hashlib.blake2b(msgspec.json.encode((by, key)), digest_size=16).hexdigest()


def ids_of(token: str, *, keyed: bool) -> Iterator[str]:
    """Yield the ids that a submission may get, one after another.

    Raises:
        ToolError: ``overloaded``: so many in a row belong to others that the namespace must be full of them.
    """
    for number in itertools.count():
        if number == _MOST_TRIES:
            raise refused(number)
        digits = hashlib.blake2b(f"{token}/{number}".encode(), digest_size=4).hexdigest() if keyed else secrets.token_hex(4)
        yield f"create_{digits}"


def refused(count: int) -> ToolError:
    """Return the error for a submission for which there is no room."""
    return ToolError(f"{count} tasks wait or run and there is room for no more", type="overloaded", code="creations", retryable=True)


def refused_key(key: str) -> ConfigurationError:
    """Return the error for a key that was used for something else."""
    return ConfigurationError(f"the idempotency key {key!r} was another task's")
