"""Accept the JSON Web Tokens of an authorization server."""

from __future__ import annotations

import base64
import hashlib
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jws import JWSRegistry

from toolbus.gateway.auth.claims import ClaimMap
from toolbus.gateway.auth.credentials import Credential, Refused
from toolbus.gateway.auth.key_set import KeyStore, KeysUnavailable
from toolbus.gateway.problems import Problem
from toolbus.tokens import Rate

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Only signatures that the keys of the set can verify and can't make: no shared secrets, and not ``none``."""

_MOST_KEPT = 1_024
_KEPT_FOR = 60.0
_MOST_TOKEN = 16_384
_TYPES = (None, "jwt", "at+jwt", "application/at+jwt")


class WebTokens:
    """A ``Source`` of JSON Web Tokens.

    Args:
        keys: of the authorization server.
        claims: which claims say what.
        rate: how many requests each subject may send.
    """

    def __init__(self, keys: KeyStore, claims: ClaimMap, rate: Rate | None = None, *, now: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._claims = claims
        self._rate = rate
        self._now = now
        self._registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        self._verified: OrderedDict[bytes, tuple[float, int, dict[str, Any]]] = OrderedDict()

    def takes(self, token: str) -> bool:
        """Return whether a token has three parts."""
        return token.count(".") == 2 and len(token) <= _MOST_TOKEN

    async def credential(self, token: str) -> Credential | None:
        """Return whom a token describes."""
        claims = await self._verified_claims(token)
        return Credential(self._claims.principal(claims, self._now()), self._rate)

    async def _verified_claims(self, token: str) -> dict[str, Any]:
        digest = hashlib.sha256(token.encode()).digest()
        until, generation, claims = self._verified.get(digest, (0.0, -1, {}))
        if self._now() < until and generation == self._keys.generation:
            return claims
        kid = _kid(token)
        try:
            keys = await self._keys.get(kid)
        except KeysUnavailable:
            message = "the keys of the authorization server can't be fetched"
            raise Problem(503, "unavailable", message, {"Retry-After": "10"}) from None
        try:
            with warnings.catch_warnings():
                # Most issuers still write EdDSA where RFC 9864 has Ed25519.
                warnings.simplefilter("ignore", SecurityWarning)
                found = jwt.decode(token, keys, registry=self._registry)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise Refused("the token's signature can't be verified") from error
        if "crit" in found.header or _type(found.header) not in _TYPES:
            raise Refused("the token is of another kind")
        self._verified[digest] = (self._now() + _KEPT_FOR, self._keys.generation, found.claims)
        if len(self._verified) > _MOST_KEPT:
            self._verified.popitem(last=False)
        return found.claims


def _kid(token: str) -> str | None:
    """Return the id of the key that a token names.

    Raises:
        Refused: its header can't be read, or allows an algorithm that is not accepted.
    """
    head = token.partition(".")[0]
    try:
        header = msgspec.json.decode(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)), type=dict[str, Any])
    except (ValueError, RecursionError):
        raise Refused("the token's header can't be read") from None
    if header.get("alg") not in ALGORITHMS:
        raise Refused("the token's algorithm is not accepted")
    kid = header.get("kid")
    return kid if isinstance(kid, str) else None


def _type(header: dict[str, Any]) -> str | None:
    found = header.get("typ")
    return found.lower() if isinstance(found, str) else None
