"""Make a gateway's authenticator of what its operator asks for."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from starlette.requests import HTTPConnection

from toolbus.bus import telemetry
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.support.latest import Latest
from toolbus.bus.values.results import BrokerError, ConfigurationError
from toolbus.bus.values.secrets import MOST_TOKEN, Rate, TokenRecord, id_of
from toolbus.edges.gateway.auth.credentials import Credential, Refused, Resource, Source, accepted, read
from toolbus.edges.gateway.bodies import Problem
from toolbus.edges.gateway.options import Principal

# The characters of RFC 6750's token68.
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*) *\Z", re.IGNORECASE)
_WITHIN = 5.0


class BearerAuthenticator:
    """An ``Authenticator`` that asks its sources in turn whom a token stands for, and counts its requests.

    Args:
        bus: counts requests together with every other replica.
        sources: the first one that knows a token counts.
        resource: what clients are told about where tokens come from.
        rate: how many requests a token may send that has no rate of its own.
    """

    def __init__(self, bus: ToolBus, sources: Sequence[Source], *, resource: Resource | None = None, rate: Rate | None = None) -> None:
        self._bus = bus
        self._sources = sources
        self.resource = resource or Resource()
        self._rate = rate

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return whom the token of a request stands for.

        Raises:
            Problem: 401, there is no token or it is not accepted; 429, too many requests; 503, nobody can say now.
        """
        token = self._token(connection)
        try:
            found = await self._found(token)
        except Refused as error:
            telemetry.log.warning("gateway.refused", reason=str(error), path=connection.url.path)
            raise self._unauthorized(connection, str(error), "invalid_token") from None
        await self._count(found)
        return found.principal

    async def holds(self, connection: HTTPConnection, principal: Principal) -> bool:
        """Return whether the token of a request stands for the same principal still, or nobody can say now."""
        try:
            return (await self._found(self._token(connection))).principal == principal
        except Refused:
            return False
        except Problem:
            return True

    async def _found(self, token: str) -> Credential:
        for source in self._sources:
            found = await source(token)
            if found is not None:
                return found
        raise Refused("the token is not known")

    def _token(self, connection: HTTPConnection) -> str:
        given = connection.headers.getlist("authorization")
        if not given:
            raise self._unauthorized(connection, "send a token: Authorization: Bearer …", "")
        if len(given) > 1:
            raise self._unauthorized(connection, "there is more than one Authorization header", "invalid_request")
        found = _BEARER.match(given[0]) if len(given[0]) <= MOST_TOKEN else None
        if found is None:
            raise self._unauthorized(connection, "the Authorization header holds no bearer token", "invalid_request")
        return found[1]

    def _unauthorized(self, connection: HTTPConnection, reason: str, error: str) -> Problem:
        words = [f'error="{error}"', f'error_description="{reason}"'] if error else []
        words.append(f'resource_metadata="{self.resource.metadata_url(connection)}"')
        return Problem(401, "unauthorized", reason, {"WWW-Authenticate": f"Bearer {', '.join(words)}"})

    async def _count(self, found: Credential) -> None:
        rate = found.rate or self._rate
        if rate is None:
            return
        principal = found.principal
        # Tokens of one name and user share a rate, so that a second token is no second allowance.
        who = hashlib.blake2b(repr((principal.name, principal.user)).encode("utf-8", "replace"), digest_size=16).hexdigest()
        try:
            async with asyncio.timeout(_WITHIN):
                wait = await self._bus.tallies.spend(f"gateway {who} {rate}", rate.requests, rate.seconds)
        except (BrokerError, TimeoutError):
            raise Problem(503, "unavailable", "the server that counts requests can't be asked", {"Retry-After": "1"}) from None
        if wait > 0:
            detail = f"{principal.name} may send {rate} requests; try again in {wait:.1f} s"
            raise Problem(429, "rate_limited", detail, {"Retry-After": str(math.ceil(wait))}, retryable=True)


_LOOK_EVERY = 1.0


def file_tokens(path: Path) -> Source:
    """Return what knows the tokens in a file.

    A changed file counts within a second. One that can't be read any more leaves the tokens as they were; one that is gone, none.

    Raises:
        ConfigurationError: the file can't be read.
    """
    seen, looked = _stamp(path), time.monotonic()
    records: Mapping[str, TokenRecord] = read(path)

    def look() -> None:
        nonlocal seen, looked, records
        looked, stamp = time.monotonic(), _stamp(path)
        if stamp == seen:
            return
        seen = stamp
        if stamp is None:
            records = {}
            telemetry.log.error("tokens.gone", path=str(path), error="the file is gone, so none of its tokens is accepted")
            return
        try:
            records = read(path)
        except ConfigurationError as error:
            telemetry.log.error("tokens.unreadable", path=str(path), error=str(error))
        else:
            telemetry.log.info("tokens.loaded", path=str(path), tokens=len(records))

    async def credential(token: str) -> Credential | None:
        if time.monotonic() >= looked + _LOOK_EVERY:
            look()
        record = records.get(id_of(token) or "")
        return None if record is None else accepted(record, token)

    return credential


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


TRUSTED = 2.0
"""Seconds for which a record that was read counts, so that a revocation counts everywhere after as many."""

_MOST_KEPT = 10_000


def shared_tokens(bus: ToolBus) -> Source:
    """Return what knows the tokens of a namespace."""
    kept: Latest[str, tuple[float, TokenRecord | None]] = Latest(_MOST_KEPT)

    async def credential(token: str) -> Credential | None:
        known, asked = id_of(token), time.monotonic()
        if known is None:
            return None
        until, record = kept.get(known, (0.0, None))
        if asked >= until:
            try:
                async with asyncio.timeout(_WITHIN):
                    record = await bus.tokens.get(known)
            except (BrokerError, TimeoutError):
                raise Problem(503, "unavailable", "the server that knows the tokens can't be asked", {"Retry-After": "1"}) from None
            kept[known] = (asked + TRUSTED, record)
        return None if record is None else accepted(record, token)

    return credential


class AuthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a gateway's authentication; with none of them, it has none.

    Attributes:
        tokens: a file of tokens, see ``toolbus secure tokens add --file``.
        shared_tokens: accept the tokens that `toolbus secure tokens` keeps on the server.
        keys: where the keys are that verify JSON Web Tokens: a URL or a file (JWKS).
        issuer, audiences: what their ``iss`` and ``aud`` must be.
        user_claim, groups_claim, tools_claim, permissions_claim: see ``ClaimMap``.
        rate: how many requests a token may send that has no rate of its own, such as ``100/minute``.
        public_url: the gateway's URL as clients see it.
    """

    tokens: str = ""
    shared_tokens: bool = False
    keys: str = ""
    issuer: str = ""
    audiences: tuple[str, ...] = ()
    user_claim: str = "sub"
    groups_claim: str = ""
    tools_claim: str = ""
    permissions_claim: str = ""
    rate: str = ""
    public_url: str = ""

    @property
    def asked(self) -> bool:
        """True when requests need a token."""
        return bool(self.tokens or self.shared_tokens or self.keys)


def authenticator_of(bus: ToolBus, options: AuthOptions) -> BearerAuthenticator | None:
    """Return the authenticator that the options ask for; None when they ask for none.

    Raises:
        ConfigurationError: a file can't be read, or an option is wrong or missing.
    """
    if (options.issuer or options.audiences) and not options.keys:
        raise ConfigurationError("an issuer or audience is given, but not where the keys are that verify its tokens")
    if not options.asked:
        return None
    rate = Rate.parse(options.rate) if options.rate else None
    sources: list[Source] = []
    if options.tokens:
        sources.append(file_tokens(Path(options.tokens)))
    if options.shared_tokens:
        sources.append(shared_tokens(bus))
    if options.keys:
        # It loads a library of cryptography, which gateways without such tokens do not need.
        from toolbus.edges.gateway.auth.web_tokens import ClaimMap, KeyStore, web_tokens  # noqa: PLC0415 - only some need it

        claims = ClaimMap(
            issuer=options.issuer,
            audiences=frozenset(options.audiences),
            user=options.user_claim,
            groups=options.groups_claim,
            tools=options.tools_claim,
            permissions=options.permissions_claim,
        )
        sources.append(web_tokens(KeyStore(options.keys), claims))
    issuers = (options.issuer,) if options.keys else ()
    return BearerAuthenticator(bus, sources, resource=Resource(options.public_url, issuers), rate=rate)
