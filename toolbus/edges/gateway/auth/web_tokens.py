"""Accept the JSON Web Tokens of an authorization server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import JWKRegistry, Key, KeySet
from joserfc.jws import JWSRegistry

from toolbus.bus import telemetry
from toolbus.bus.support.latest import Latest
from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.secrets import PERMISSIONS
from toolbus.edges.gateway.auth.credentials import SCOPES, Credential, Refused, Source
from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.options import Permission, Principal

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
        # A claim that is left out names no tools, since it must not mean all of them.
        groups, tools = (frozenset(_words(_claim(claims, name))) if name else None for name in (self.groups, self.tools))
        may: frozenset[Permission] = frozenset({"call"})
        if self.permissions:
            may = frozenset(self.words[word] for word in _words(_claim(claims, self.permissions)) if word in self.words)
        return Principal(subject, user, groups, tools, may)


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


FRESH = 600.0
"""Seconds after which the keys are fetched again."""

STALE = 86_400.0
"""Seconds for which keys count whose address can't be reached."""

_PAUSE = 10.0
_WITHIN = 5.0
_MOST_BYTES = 1_048_576
_MOST_KEYS = 100
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PUBLIC = ("RSA", "EC", "OKP")


class KeysUnavailable(Exception):
    """The keys could not be fetched, so no token can be verified."""


class KeyStore:
    """The keys at an address, fetched when they are needed and not again while one request for them is on its way.

    Args:
        address: an HTTPS URL, a URL of this machine, or the path of a file.

    Raises:
        ConfigurationError: the address is none of these.
    """

    def __init__(self, address: str, *, clock: Callable[[], float] = time.monotonic, within: float = _WITHIN) -> None:
        parts = urlsplit(address)
        self._url = address if parts.scheme in {"http", "https"} else ""
        if self._url and (not parts.hostname or (parts.scheme == "http" and parts.hostname not in _LOOPBACK)):
            raise ConfigurationError(f"the keys of an authorization server are fetched by https, not from {address!r}")
        self._path = Path(address)
        self._clock = clock
        self._within = within
        self._keys = KeySet([])
        self._loaded = self._tried = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self.generation = 0

    async def get(self, kid: str | None) -> KeySet:
        """Return the keys; those of an unknown id are fetched anew, at most every ten seconds.

        Raises:
            KeysUnavailable: there are none that still count, or the last request for them failed and may have brought that of the id.
        """
        now = self._clock()
        known = bool(self._keys) and now < self._loaded + STALE
        wanted = not known or not self._has(kid)
        due = now >= self._loaded + FRESH
        if (wanted or due) and (now >= self._tried + _PAUSE or self._fetching is not None):
            fetching = self._fetch()
            if wanted:
                await asyncio.shield(fetching)
        failed = self._loaded < self._tried
        if not self._keys or self._clock() >= self._loaded + STALE or (failed and not self._has(kid)):
            raise KeysUnavailable
        return self._keys

    async def aclose(self) -> None:
        """End a request that is on its way."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    def _has(self, kid: str | None) -> bool:
        return kid is None or any(key.kid == kid for key in self._keys)

    def _fetch(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._tried = self._clock()
            self._fetching = asyncio.create_task(self._load())
            self._fetching.add_done_callback(self._fetched)
        return self._fetching

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _load(self) -> None:
        try:
            async with asyncio.timeout(self._within):
                keys = _keys_in(await self._read())
        except (OSError, TimeoutError, httpx.HTTPError, httpx.InvalidURL, JoseError, ValueError, RecursionError) as error:
            reason = reason_of(error)[:200]
            telemetry.log.error("keys.unavailable", address=self._url or str(self._path), error=reason)
            return
        if keys.as_dict() != self._keys.as_dict():
            self.generation += 1
            telemetry.log.info("keys.loaded", address=self._url or str(self._path), keys=len(keys.keys))
        self._keys, self._loaded = keys, self._clock()

    async def _read(self) -> bytes:
        if not self._url:
            return await asyncio.to_thread(self._path.read_bytes)
        found = bytearray()
        # What is fetched decides whom to believe, so no redirect and no proxy may replace it.
        async with (
            httpx.AsyncClient(timeout=self._within, follow_redirects=False, trust_env=False) as client,
            client.stream("GET", self._url, headers={"Accept": "application/json"}) as response,
        ):
            if response.status_code != httpx.codes.OK:
                raise ValueError(f"status {response.status_code}")
            async for part in response.aiter_bytes():
                found += part
                if len(found) > _MOST_BYTES:
                    raise ValueError(f"more than {_MOST_BYTES:,} bytes")
        return bytes(found)


def _keys_in(document: bytes) -> KeySet:
    decoded = msgspec.json.decode(document, type=dict[str, Any])
    listed = decoded.get("keys")
    if not isinstance(listed, list) or len(listed) > _MOST_KEYS:
        raise ValueError(f"no list of at most {_MOST_KEYS} `keys`")
    keys: list[Key] = []
    for each in listed:
        # A shared secret that is published, or a key to encrypt with, verifies nothing.
        if not isinstance(each, dict) or each.get("kty") not in _PUBLIC or each.get("use", "sig") != "sig":
            continue
        try:
            keys.append(
                JWKRegistry.import_key({name: value for name, value in each.items() if name not in {"d", "p", "q", "dp", "dq", "qi"}})
            )
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not keys:
        raise ValueError("no key in it can verify a signature")
    return KeySet(keys)


ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
"""Only signatures that the keys of the set can verify and can't make: no shared secrets, and not ``none``."""

_MOST_KEPT = 1_024
_KEPT_FOR = 60.0
_MOST_TOKEN = 16_384
_TYPES = (None, "jwt", "at+jwt", "application/at+jwt")


def web_tokens(keys: KeyStore, claims: ClaimMap) -> Source:
    """Return what knows JSON Web Tokens.

    Args:
        keys: of the authorization server.
        claims: which claims say what.
    """
    registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
    kept: Latest[bytes, tuple[float, int, dict[str, Any]]] = Latest(_MOST_KEPT)

    async def verified(token: str) -> dict[str, Any]:
        kid = _kid(token)
        try:
            known = await keys.get(kid)
        except KeysUnavailable:
            message = "the keys of the authorization server can't be fetched"
            raise Problem(503, "unavailable", message, {"Retry-After": "10"}) from None
        try:
            with warnings.catch_warnings():
                # Most issuers still write EdDSA where RFC 9864 has Ed25519.
                warnings.simplefilter("ignore", SecurityWarning)
                found = jwt.decode(token, known, registry=registry)
        except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise Refused("the token's signature can't be verified") from error
        kind = found.header.get("typ")
        if "crit" in found.header or (kind.lower() if isinstance(kind, str) else None) not in _TYPES:
            raise Refused("the token is of another kind")
        return found.claims

    async def credential(token: str) -> Credential | None:
        """Return whom a token describes; None for one that has not three parts."""
        if token.count(".") != 2 or len(token) > _MOST_TOKEN:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        until, generation, found = kept.get(digest, (0.0, -1, {}))
        if time.time() >= until or generation != keys.generation:
            found = await verified(token)
            kept[digest] = (time.time() + _KEPT_FOR, keys.generation, found)
        return Credential(claims.principal(found, time.time()))

    return credential


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
