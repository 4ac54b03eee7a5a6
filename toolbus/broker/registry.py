"""The registry: who serves what, kept in tables, announced in a change log.

Tables are the truth. The log carries each change with the token of the one before it, so a
reader that misses one notices and loads a fresh snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from toolbus import telemetry
from toolbus.broker import scripts
from toolbus.broker.clock import ServerClock
from toolbus.broker.keys import Keys
from toolbus.broker.link import Link
from toolbus.broker.protocols import AgentListener, ServiceRecord
from toolbus.broker.replies import fields_of, scan_hash
from toolbus.broker.scripts import Script
from toolbus.descriptors import Publication
from toolbus.results import RegistrationRefused
from toolbus.settings import Settings

TTL = 30 * 86_400
"""Seconds that the tables outlive the last process that beats or sweeps; static descriptors stay for good."""

_SWEEP_LIMIT = 64

_publications = msgspec.json.Decoder(Publication)


class Registration(NamedTuple):
    """What the server answered to a registration."""

    start: int
    generation: bytes
    counter: bytes


class Registry:
    """Registry operations over one link."""

    def __init__(self, link: Link, keys: Keys, settings: Settings) -> None:
        self._link = link
        self._keys = keys
        self._settings = settings

    async def register(self, publication: Publication, instance: str, start: int) -> Registration:
        """Publish for one instance; ``start`` is an earlier answer's, or 0 at a process start.

        :raises RegistrationRefused: names belong to somebody else; nothing was published.
        """
        service = publication.service
        reply = await self._run(
            scripts.REGISTER,
            service.id,
            instance,
            publication.owner,
            publication.digest,
            msgspec.json.encode(publication),
            int(self._settings.lease * 1000),
            os.urandom(8).hex(),
            int(service.scale_to_zero),
            service.queue,
            start,
            *(tool.name for tool in publication.tools),
        )
        if reply[0] == b"refused":
            names = {name.decode(): owner.decode() for name, owner in zip(reply[1::2], reply[2::2], strict=True)}
            listed = ", ".join(f"{name} belongs to {owner!r}" for name, owner in names.items())
            raise RegistrationRefused(f"not registered as {publication.owner!r}: {listed}", names)
        return Registration(int(reply[1]), reply[2], reply[3])

    async def unregister(self, members: Iterable[str]) -> None:
        """Take instances (``service/instance``) out of the registry."""
        await self._run(scripts.UNREGISTER, *members)

    async def sweep(self, clock: ServerClock) -> None:
        """Drop instances whose lease has ended, unless the server's clock is not what ``clock`` expects."""
        if int(await self._run(scripts.SWEEP, _SWEEP_LIMIT, int(clock.server_ms()), int(self._settings.lease * 1000))) < 0:
            clock.hush()

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a static descriptor; with an ``owner``, who alone may then change it.

        :raises RegistrationRefused: a service publishes the name, or it is somebody else's.
        """
        reply = await self._run(scripts.ITEM, key, document, owner)
        if reply[0] == b"refused":
            raise refused(key, reply[1].decode(), owned=bool(owner))

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a static descriptor; False when there was none.

        :raises RegistrationRefused: it is somebody else's.
        """
        reply = await self._run(scripts.ITEM, key, "", owner)
        if reply[0] == b"refused":
            raise refused(key, reply[1].decode(), owned=True)
        return int(reply[1]) > 0

    async def transfer(self, key: str) -> bool:
        """Free a self-published name for another owner; False when nobody held it."""
        return int(await self._run(scripts.TRANSFER, key)) > 0

    async def _run(self, script: Script, *args: Any) -> Any:
        keys = self._keys
        return await self._link.execute_script(
            script,
            (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log),
            (keys.prefix, os.urandom(6).hex(), TTL * 1000, int(self._settings.cooldown * 1000), *args),
            # Registering, sweeping and putting the same again changes nothing.
            repeatable=True,
        )


def refused(key: str, owner: str, *, owned: bool) -> RegistrationRefused:
    """What is raised when a key is somebody else's."""
    if owned:
        message = f"{key} belongs to {owner!r}; choose another name, or remove it with `toolbus rm {key}`"
    else:
        message = f"{key} is published by {owner!r}; stop that service first, or choose another name"
    return RegistrationRefused(message, {key: owner})


class RegistryFollower:
    """Keeps a listener up to date: a snapshot, then the log's changes in order.

    ``position`` is the log id to read after. ``apply`` returns False when a change is
    missing, and then ``load`` must be run again.
    """

    def __init__(self, link: Link, keys: Keys, listener: AgentListener) -> None:
        self._link = link
        self._keys = keys
        self._listener = listener
        self._token: bytes | None = None
        self.position: bytes = b"0"

    async def load(self) -> None:
        """Load a fresh snapshot, in bounded parts that never block the server for long."""
        # The position is read first: a change during the scan is read twice rather than missed.
        newest = await self._link.execute("XREVRANGE", self._keys.log, "+", "-", "COUNT", 1, repeatable=True)
        self.position, self._token = (newest[0][0], fields_of(newest[0][1]).get(b"token")) if newest else (b"0", None)
        services: dict[str, ServiceRecord] = {}
        async for name, value in scan_hash(self._link, self._keys.services):
            record = read_record(value)
            if record is None:
                telemetry.log.warning("registry.unreadable", service=name.decode("utf-8", "replace"))
            else:
                services[name.decode()] = record
        items = {name.decode(): value async for name, value in scan_hash(self._link, self._keys.items)}
        self._listener.on_registry(services, items)

    def apply(self, entries: list[tuple[bytes, list[bytes]]]) -> bool:
        """Apply log entries; False when one is missing before them."""
        for entry, flat in entries:
            fields = fields_of(flat)
            before = fields.get(b"prev")
            if self._token is not None and before != self._token:
                return False
            self.position, self._token = entry, fields.get(b"token")
            self._change(fields)
        return True

    def _change(self, fields: dict[bytes, bytes]) -> None:
        op, key = fields.get(b"op", b""), fields.get(b"key", b"").decode("utf-8", "replace")
        document = fields.get(b"doc", b"")
        if op == b"item":
            self._listener.on_item(key, document or None)
        elif op == b"gone":
            self._listener.on_service(key, None)
        elif op in {b"up", b"down"}:
            record = read_record((b"+" if op == b"up" else b"-") + document)
            if record is None:
                telemetry.log.warning("registry.unreadable", service=key)
            else:
                self._listener.on_service(key, record)


def read_record(value: bytes) -> ServiceRecord | None:
    """A service's record from its table value, or None when it can't be read."""
    try:
        return ServiceRecord(_publications.decode(value[1:]), value[:1] == b"+")
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
