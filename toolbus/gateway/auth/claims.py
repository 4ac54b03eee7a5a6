"""Map the claims of a JSON Web Token to a principal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from toolbus.gateway.auth.credentials import Refused
from toolbus.gateway.auth.metadata import SCOPES
from toolbus.gateway.principals import Permission, Principal
from toolbus.results import ConfigurationError
from toolbus.tokens import PERMISSIONS

_MOST_NAME = 256
_MOST_VALUES = 1_000


class ClaimMap(msgspec.Struct, frozen=True, kw_only=True):
    """The claims that are read. A name with dots leads into objects (``realm_access.roles``), unless a claim has that whole name.

    Attributes:
        issuer: what ``iss`` must be.
        audiences: ``aud`` must have one of them.
        user: the claim with the bus's user; ``sub`` unless said otherwise.
        groups: the claim with the groups of tools; empty when every token sees all groups.
        tools: the claim with the names of tools; empty when every token sees all tools.
        permissions: the claim with permissions: words of ``words``, in a list or between spaces; empty when every token may call.
        words: the permission that each word of that claim stands for.
        leeway: seconds by which clocks may differ.
    """

    issuer: str
    audiences: frozenset[str]
    user: str = "sub"
    groups: str = ""
    tools: str = ""
    permissions: str = ""
    words: Mapping[str, Permission] = msgspec.field(default_factory=lambda: dict(zip(SCOPES, PERMISSIONS, strict=True)))
    leeway: float = 30.0

    def __post_init__(self) -> None:
        """Refuse a map that would accept tokens made for others.

        Raises:
            ConfigurationError: there is no issuer or no audience.
        """
        if not self.issuer or not self.audiences or not all(self.audiences):
            raise ConfigurationError("JSON Web Tokens need an issuer and an audience, or tokens that were made for others are accepted")

    def principal(self, claims: Mapping[str, Any], now: float) -> Principal:
        """Return whom the claims of a verified token describe; ``now`` in seconds since 1970.

        Raises:
            Refused: the token is over, not yet valid, or for others, or a claim is missing.
        """
        if claims.get("iss") != self.issuer:
            raise Refused("the token is of another issuer")
        given = claims.get("aud")
        audiences = (
            {given} if isinstance(given, str) else {each for each in given if isinstance(each, str)} if isinstance(given, list) else set()
        )
        if not self.audiences & audiences:
            raise Refused("the token is for another audience")
        expires = _time(claims, "exp")
        if expires is None:
            raise Refused("the token has no end")
        if now >= expires + self.leeway:
            raise Refused("the token has expired")
        for name in ("nbf", "iat"):
            begins = _time(claims, name)
            if begins is not None and now < begins - self.leeway:
                raise Refused("the token is not valid yet")
        user = _text(_claim(claims, self.user), self.user)
        subject = _text(claims["sub"], "sub") if "sub" in claims else user
        return Principal(subject, user, self._names(claims, self.groups), self._names(claims, self.tools), self._may(claims))

    def _names(self, claims: Mapping[str, Any], name: str) -> frozenset[str] | None:
        # A claim that is left out names no tools, since it must not mean all of them.
        return frozenset(_words(_claim(claims, name))) if name else None

    def _may(self, claims: Mapping[str, Any]) -> frozenset[Permission]:
        if not self.permissions:
            return frozenset({"call"})
        return frozenset(self.words[word] for word in _words(_claim(claims, self.permissions)) if word in self.words)


def _claim(claims: Mapping[str, Any], name: str) -> Any:
    if name in claims:
        return claims[name]
    found: Any = claims
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused(f"the claim {name} is no time")
    try:
        found = float(value)
    except OverflowError:
        # JSON has integers of any length.
        found = math.inf
    if not math.isfinite(found):
        raise Refused(f"the claim {name} is no time")
    return found


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MOST_NAME or not value.isprintable():
        raise Refused(f"the claim {name[:50]} is no name of 1 to {_MOST_NAME} characters")
    return value


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.split()[:_MOST_VALUES]
    return [each for each in value[:_MOST_VALUES] if isinstance(each, str)] if isinstance(value, list) else []
