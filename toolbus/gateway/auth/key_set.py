"""Fetch and keep the public keys by which an authorization server's tokens are verified (JWKS)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

from toolbus import telemetry
from toolbus.results import ConfigurationError
from toolbus.safe_text import reason_of

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
