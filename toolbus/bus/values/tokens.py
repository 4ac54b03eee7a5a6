"""Bearer tokens: how one is made, and the record by which it is recognised without being stored."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from typing import Annotated, Literal, get_args

import msgspec

from toolbus.bus.values.results import ConfigurationError

TokenPermission = Literal["call", "observe", "operate"]
PERMISSIONS: tuple[TokenPermission, ...] = get_args(TokenPermission)

MOST_TOKEN = 16_384
"""Most characters of a bearer token."""

_FORM = re.compile(r"tb_([0-9a-f]{12})_([A-Za-z0-9_-]{43})\Z")
_PERIODS = {"s": 1.0, "second": 1.0, "m": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86_400.0, "day": 86_400.0}
_RATE = re.compile(r"([1-9][0-9]{0,8})/([a-z]+)\Z")

Name = Annotated[str, msgspec.Meta(max_length=256)]


class Rate(msgspec.Struct, frozen=True):
    """So many requests at once, refilled evenly over ``seconds``."""

    requests: Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
    seconds: Annotated[float, msgspec.Meta(ge=0.001, le=34_560_000)]

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Return the rate that a text like ``100/minute`` says.

        Raises:
            ConfigurationError: it says none.
        """
        found = _RATE.match(text)
        if found is None or found[2] not in _PERIODS:
            raise ConfigurationError(f"a rate is a number of requests and a period, like 100/minute, not {text[:50]!r}")
        return cls(int(found[1]), _PERIODS[found[2]])

    def __str__(self) -> str:
        names = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}
        return f"{self.requests}/{names.get(self.seconds, f'{self.seconds:g} s')}"


class TokenRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A token as it is stored: whom it stands for, and its hash, from which it can't be made.

    Attributes:
        id: the part of the token that is no secret; it names the token in lists.
        hash: SHA-256 of the whole token, in hexadecimal.
        name: for people and logs.
        user: the bus's user, which is the tenant of its calls.
        groups: groups of the tools it may see and call; None for all.
        tools: names of the tools it may see and call; None for all.
        permissions: ``call``, ``observe`` and ``operate``.
        rate: how many requests it may send.
        created, expires: seconds since 1970; None for no end.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{12}\Z")]
    hash: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    name: Name
    user: Name = ""
    groups: tuple[Name, ...] | None = None
    tools: tuple[Name, ...] | None = None
    permissions: tuple[TokenPermission, ...] = ("call",)
    rate: Rate | None = None
    created: float = 0.0
    expires: float | None = None

    def __post_init__(self) -> None:
        """Refuse an end that is no time.

        Raises:
            ValueError: it is not finite.
        """
        if self.expires is not None and not math.isfinite(self.expires):
            raise ValueError("`expires` is no finite number of seconds")

    def is_of(self, token: str) -> bool:
        """Return whether a token is this record's, in a time that says nothing of the hash."""
        return hmac.compare_digest(self.hash, hash_of(token))

    def has_expired(self, now: float) -> bool:
        """Return whether its time is over; ``now`` in seconds since 1970."""
        return self.expires is not None and now >= self.expires


class TokenFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document of a file of tokens."""

    tokens: tuple[TokenRecord, ...] = ()


def new_token() -> tuple[str, str, str]:
    """Return a new token with 256 random bits, its id, and its hash."""
    ident = secrets.token_hex(6)
    token = f"tb_{ident}_{secrets.token_urlsafe(32)}"
    return token, ident, hash_of(token)


def hash_of(token: str) -> str:
    """Return the hash that is stored; a token is random enough that a slow one would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def id_of(token: str) -> str | None:
    """Return the id within a token, or None for a text of another form."""
    found = _FORM.match(token)
    return None if found is None else found[1]
