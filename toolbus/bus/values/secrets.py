"""Secrets: where one is and how it is read, which variables a program is given, and bearer tokens."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import PREFIX

_WITHIN = re.compile(r"\{((?:env|file):[^{}]+)\}")


class Secret(msgspec.Struct, frozen=True):
    """A value that is kept out of arguments and logs: an environment variable, or a file that is read each time.

    Attributes:
        source: ``env:NAME`` or ``file:PATH``.
        before: what stands before it, such as ``Bearer``.
    """

    source: str
    before: str = ""

    def value(self) -> str:
        """Return the value.

        Raises:
            ConfigurationError: there is none.
        """
        kind, _, place = self.source.partition(":")
        try:
            found = os.environ.get(place) if kind == "env" else Path(place).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(f"the value of {self.source} can't be read: {getattr(error, 'strerror', '') or error}") from None
        found = (found or "").strip()
        if not found:
            raise ConfigurationError(f"{self.source} has no value: set the variable, or write the file")
        if not found.isprintable() or not found.isascii():
            raise ConfigurationError(f"{self.source} has characters that a header can't hold")
        return f"{self.before}{found}"


def secret(source: str, before: str = "") -> Secret:
    """Return a value's source.

    Raises:
        ConfigurationError: it names none; the text itself is not repeated, since it may be the secret.
    """
    if not is_source(source):
        raise ConfigurationError("give where a secret is, not the secret: env:VARIABLE or file:PATH")
    return Secret(source, before)


def is_source(text: str) -> bool:
    """Return whether a text says where a value is."""
    kind, colon, place = text.partition(":")
    return kind in {"env", "file"} and bool(colon and place)


def value_of(text: str) -> str:
    """Return the value that a text says the place of; of other texts, the text with the values of ``{env:NAME}`` and ``{file:PATH}`` in it.

    Records can't name our own settings, which hold what every agent and worker is let in by.

    Raises:
        ConfigurationError: there is nothing at that place.
    """
    return _value(text) if is_source(text) else _WITHIN.sub(lambda found: _value(found[1]), text)


def _value(source: str) -> str:
    if source.startswith(f"env:{PREFIX}"):
        raise ConfigurationError(f"{source} is a setting of toolbus, which is not given to tools")
    return Secret(source).value()


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


_GIVEN = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TMPDIR", "TZ", "USER")


def harmless() -> dict[str, str]:
    """Return those of our variables that any program may know."""
    return {name: value for name, value in os.environ.items() if name in _GIVEN or name.startswith("LC_")}
