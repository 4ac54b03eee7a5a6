"""Authenticate requests by the bearer token in their ``Authorization`` header."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
from collections.abc import Sequence

from starlette.requests import HTTPConnection

from toolbus import telemetry
from toolbus.client.bus import ToolBus
from toolbus.gateway.auth.credentials import Credential, Refused, Source
from toolbus.gateway.auth.metadata import Resource
from toolbus.gateway.principals import Principal
from toolbus.gateway.problems import Problem
from toolbus.results import BrokerError
from toolbus.tokens import MOST_TOKEN, Rate

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

    async def _found(self, token: str) -> Credential:
        for source in self._sources:
            if source.takes(token):
                found = await source.credential(token)
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
