"""The registry: who serves what, kept in tables, announced in a change log.

Tables are the truth. The log carries each change with the token of the one before it, so a
reader that misses one notices and loads a fresh snapshot.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.protocols import ItemChange
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import check_document, integer, shown
from toolbus.bus.broker.server.scripts import Script
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import scan_hash
from toolbus.bus.broker.transport.mastership import Replication
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.results import BrokerError, BrokerUnavailable, EnvelopeError, RegistrationRefused
from toolbus.bus.values.settings import LONGEST_LEASE, Settings

OPERATOR = "operator"
"""Owns the names of static descriptors."""

_OTHER_SERVICE = " (service "


def registration_refused(owner: str, names: Mapping[str, str], waits: Mapping[str, float], cooldown: float) -> RegistrationRefused:
    """Return the error for a registration, with each name's owner and what to do.

    Args:
        owner: who was to be registered.
        names: the refused names (``tool/…``, ``tool-service/…``, ``queue/…``) and their owners.
        waits: seconds until a name is free, of those that no worker holds any more.
        cooldown: seconds that a name stays its owner's after its service is gone.
    """
    listed = ", ".join(f"{name} belongs to {holder!r}" for name, holder in names.items())
    of_operator = [name for name, holder in names.items() if holder == OPERATOR]
    others = {name: holder for name, holder in names.items() if holder != OPERATOR and _OTHER_SERVICE not in holder}
    ways: list[str] = []
    if of_operator:
        ways.append(f"An operator put it there: `toolbus operate items rm {of_operator[0]}` removes it.")
    if len(of_operator) + len(others) < len(names):
        ways.append("A name is one service's alone: choose another, or stop the other service (killed, it is gone when its lease ends).")
    if others:
        wait = f"in {math.ceil(max(waits[name] for name in others))} s" if others.keys() <= waits.keys() else ""
        freeing = next((name for name in others if name.startswith("tool")), next(iter(others)))
        ways += [
            f"If this is the same program, start it with TOOLBUS_OWNER={next(iter(others.values()))!r}.",
            f"It is free {wait or f'{cooldown:g} s after the last worker of its owner has stopped'};",
            f"with that owner's workers stopped, `toolbus operate items rm --force {freeing}` frees it at once.",
        ]
    return RegistrationRefused(f"not registered as {owner!r}: {listed}. {' '.join(ways)}", dict(names))


TTL = 30 * 86_400
"""Seconds that the tables outlive the last process that beats or sweeps; static descriptors stay for good."""

_SWEEP_LIMIT = 64
_LONGEST_LEASE = int(LONGEST_LEASE * 1000)
# How the table of names begins those of each kind.
_FIELDS = {"tool": "t:", "tool-service": "s:", "queue": "q:", "toolkit": "k:"}
# The record of a name that a service holds: its owner, the service, and no end of a cooldown.
_HELD = re.compile(rb"[^\n]*\n(.+)\n0+", re.DOTALL)


class RegisterAnswer(NamedTuple):
    """The server's answer to a registration."""

    start: int
    generation: bytes
    counter: bytes


class Registry:
    """Registry operations over one link; what people put there waits for replicas, if there is ``replication``."""

    def __init__(self, link: Link, keys: Keys, settings: Settings, replication: Replication | None = None) -> None:
        self._link = link
        self._replication = replication
        self._keys = keys
        self._settings = settings
        # The first ones of each kind of member that the next sweep leaves out.
        self._passed: dict[str, int] = {}

    async def register(self, publication: Publication, instance: str, start: int) -> RegisterAnswer:
        """Publish for one instance; ``start`` is an earlier answer's, or 0 at a process start.

        Raises:
            RegistrationRefused: names belong to another owner; nothing was published.
        """
        service = publication.service
        keys = self._keys_of(service.id, service.queue)
        what = (service.id, instance, publication.owner, publication.digest, msgspec.json.encode(publication))
        how = (int(self._settings.lease * 1000), os.urandom(8).hex(), int(service.scale_to_zero), service.queue, start)
        args = (*what, *how, *(tool.name for tool in publication.tools))
        reply = await self._run(scripts.REGISTER, keys, *args)
        if reply[0] == b"refused" and (holders := await self._holders(name.decode() for name in reply[1::2])):
            # Names may be held for services that do not exist, which the script tells by the keys that it is given.
            reply = await self._run(scripts.REGISTER, [*keys, *holders], *args)
        if reply[0] == b"refused":
            # An owner that can't be read is one all the same.
            names = {name.decode(): shown(owner) for name, owner in zip(reply[1::2], reply[2::2], strict=True)}
            raise registration_refused(publication.owner, names, await self._waits(names), self._settings.cooldown)
        return RegisterAnswer(int(reply[1]), reply[2], reply[3])

    async def dead_holders(self, names: Iterable[str], clock: ServerClock) -> list[bytes]:
        """Return the members (``service/instance``) of the services that hold these names; none unless the lease of each has ended.

        Raises:
            BrokerError: the server could not be asked.
        """
        ended, found, after, full = set[bytes](), set[bytes](), 0, True
        while full:
            within = ("-inf", f"({int(clock.server_ms())}", "BYSCORE", "LIMIT", after, _SWEEP_LIMIT)
            page: list[bytes] = await self._link.execute("ZRANGE", self._keys.live, *within, repeatable=True)
            ended.update(page)
            after, full = after + len(page), len(page) == _SWEEP_LIMIT
        for held in [_HELD.fullmatch(record or b"") for record in await self._records(names)] if ended else []:
            # The name is an operator's, or free by now.
            if held is None:
                return []
            fields = scan_hash(self._link, self._keys.instances("").encode() + held[1])
            members = {held[1] + b"/" + field[2:] async for field, _ in fields if field[:2] == b"i:"}
            if not members or members.difference(ended):
                return []
            found |= members
        return sorted(found)

    async def drop(self, members: Sequence[bytes], clock: ServerClock) -> None:
        """Drop members whose lease has ended, unless the server's clock is not what ``clock`` expects.

        Raises:
            BrokerError: some could not be dropped; the others are.
        """
        failures: list[BrokerError] = []
        for start in range(0, len(members), _SWEEP_LIMIT):
            if await self._drop([*members[start : start + _SWEEP_LIMIT]], int(clock.server_ms()), failures) < 0:
                clock.distrust()
                break
        if failures:
            raise failures[0]

    async def compare(self, service: str, instance: str, origin: str) -> list[str]:
        """Note where the code of an instance is; return the places of the service's other instances that differ.

        Raises:
            BrokerError: the server could not be asked.
        """
        table = self._keys.instances(service)
        # Folders may have names of any bytes.
        origin = whole_text(origin)
        await self._link.execute("HSET", table, f"o:{instance}", origin, repeatable=True)
        fields = {name: value async for name, value in scan_hash(self._link, table)}
        others = {value for name, value in fields.items() if name[:2] == b"o:" and b"i:" + name[2:] in fields}
        return sorted({shown(other) for other in others} - {shown(origin)})

    async def unregister(self, members: Iterable[str], how: Literal["", "died", "forgotten"] = "") -> None:
        """Take instances (``service/instance``) out of the registry.

        Args:
            members: they leave, unless ``how`` says otherwise.
            how: ``died``: they did not leave of their own accord; ``forgotten``: nobody is to see that their services have gone.
        """
        encoded = [member.encode() for member in members]
        await self._run(scripts.UNREGISTER, await self._keys_of_all(encoded), *encoded, *([how] if how else ()))

    async def sweep(self, clock: ServerClock) -> None:
        """Drop instances whose lease has ended, or ends later than any can, unless the server's clock is not what ``clock`` expects.

        Raises:
            BrokerError: some could not be dropped; the others are.
        """
        now, failures = int(clock.server_ms()), list[BrokerError]()
        for kind, least, most in (("ended", "-inf", f"({now}"), ("endless", f"({now + 2 * _LONGEST_LEASE}", "+inf")):
            after = self._passed.pop(kind, 0)
            # A bounded number of them, but for the first ones.
            within = (least, most, "BYSCORE", "LIMIT", after, _SWEEP_LIMIT)
            members: list[bytes] = await self._link.execute("ZRANGE", self._keys.live, *within, repeatable=True)
            if not members and kind == "endless":
                break
            # Members that could not be removed, or for which the script failed, must not hide those after them.
            full = len(members) == _SWEEP_LIMIT
            if full:
                self._passed[kind] = after + len(members)
            removed = await self._drop(members, now, failures)
            if removed < 0:
                clock.distrust()
                break
            if full:
                self._passed[kind] -= min(removed, self._passed[kind])
        if failures:
            raise failures[0]

    async def _drop(self, members: list[bytes], now: int, failures: list[BrokerError]) -> int:
        """Drop members that seem dead; return how many were, or -1 when the server's clock is another. One that fails keeps no other."""
        try:
            keys = await self._keys_of_all(members)
            looks = ("ended", now, int(self._settings.lease * 1000), _LONGEST_LEASE)
            return int(await self._run(scripts.UNREGISTER, keys, *members, *looks))
        except BrokerUnavailable:
            raise
        except BrokerError as error:
            if len(members) < 2:
                failures.append(error)
                return 0
        dropped = [await self._drop([member], now, failures) for member in members]
        return -1 if -1 in dropped else sum(dropped)

    async def put_item(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document; with an ``owner``, who alone may then change it.

        Raises:
            RegistrationRefused: a service publishes the name, or it belongs to another owner.
            BrokerUnavailable: it is stored, but too few replicas have it.
            ConfigurationError: it is too long.
        """
        check_document(key, document)
        documents = [(self._keys.table(key), key, "*", document)]
        reply = await self._change(documents, owner)
        if reply[0] == b"refused" and not owner and (holders := await self._holders([key])):
            reply = await self._change(documents, owner, holders)
        if reply[0] == b"refused":
            raise self._item_refused(key, reply[1], owned=bool(owner))

    async def delete_item(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none.

        Raises:
            RegistrationRefused: it belongs to another owner.
            BrokerUnavailable: it is deleted, but too few replicas know it.
        """
        reply = await self._change([(self._keys.table(key), key, "*", "")], owner)
        if reply[0] == b"refused":
            raise self._item_refused(key, reply[1], owned=True)
        return int(reply[1]) > 0

    async def delete_misplaced(self, key: str) -> bool:
        """Delete a document that stands in the table that workers may write, and does not belong there; False when there was none.

        Raises:
            BrokerUnavailable: it is deleted, but too few replicas know it.
        """
        if self._keys.table(key) == self._keys.items:
            return False
        # The change is told in the log: whoever has read it forgets it, and reads the one in the right table.
        reply = await self._change([(self._keys.items, key, "*", "")])
        return int(reply[1]) > 0

    async def replace_items(self, changes: Iterable[ItemChange]) -> str:
        """Change documents at once, if all are what was expected; return the key of one that is another, and then nothing has changed.

        Raises:
            BrokerUnavailable: they are changed, but too few replicas know it.
            ConfigurationError: one is too long.
        """
        listed = list(changes)
        for each in listed:
            check_document(each.key, each.document or b"")
        # What stays as it is may stand where this process can only read, which a script's keys do not allow.
        kept = [each for each in listed if each.expected == each.document]
        if other := await self._other(kept):
            return other
        differing = [each for each in listed if each.expected != each.document]
        if not differing:
            return ""
        reply = await self._change(
            [(self._keys.table(each.key), each.key, b"=" + (each.expected or b""), each.document or b"") for each in differing]
        )
        return "" if reply[0] == b"ok" else shown(reply[1])

    async def _other(self, kept: Iterable[ItemChange]) -> str:
        """Return the key of the first document that is not what was expected; empty when all are."""
        for each in kept:
            now = await self._link.execute("HMGET", self._keys.table(each.key), each.key, repeatable=True)
            if now[0] != each.expected:
                return each.key
        return ""

    async def transfer(self, key: str) -> bool:
        """Free a self-published name for another owner; False when it was free."""
        reply = await self._run(scripts.CHANGE, (self._keys.items,), "", 1, 1, key, "!", "")
        return int(reply[1]) > 0

    async def _holders(self, names: Iterable[str]) -> list[bytes]:
        """Return the keys of the tables of the services for which names are held."""
        found = (_HELD.fullmatch(record or b"") for record in await self._records(names))
        return sorted({self._keys.instances("").encode() + held[1] for held in found if held})

    async def _records(self, names: Iterable[str]) -> list[bytes | None]:
        found: list[bytes | None] = await self._link.execute("HMGET", self._keys.names, *map(_field, names), repeatable=True)
        return found

    async def _waits(self, names: Iterable[str]) -> dict[str, float]:
        """Return the seconds until each name is free, of those that no worker holds any more."""
        listed = list(names)
        found, time = await asyncio.gather(self._records(listed), self._link.execute("TIME", repeatable=True))
        waits: dict[str, float] = {}
        for name, record in zip(listed, found, strict=True):
            try:
                free_at = integer((record or b"").rpartition(b"\n")[2])
                wait = free_at / 1000 - integer(time[0]) - integer(time[1]) / 1e6
            except EnvelopeError:
                continue
            if free_at > 0:
                waits[name] = max(wait, 0.0)
        return waits

    def _keys_of(self, service: str, queue: str) -> list[bytes]:
        keys = self._keys
        named = keys.instances(service), keys.queue(queue), keys.fence(queue), keys.cancelled(queue)
        return [key.encode("utf-8", "surrogateescape") for key in named]

    async def _keys_of_all(self, members: Iterable[bytes]) -> list[bytes]:
        """Return the keys of each member's service, which a script must name before it runs; members need not be readable."""
        services = [_read(member.partition(b"/")[0]) for member in members]
        tables = [self._keys.instances(service).encode("utf-8", "surrogateescape") for service in services]
        queues = await asyncio.gather(*(self._queue_in(table) for table in tables))
        found = [self._keys_of(service, _read(queue or b"") or service) for service, queue in zip(services, queues, strict=True)]
        return [key for keys in found for key in keys]

    async def _queue_in(self, table: bytes) -> bytes | None:
        try:
            found: bytes | None = await self._link.execute("HGET", table, "queue", repeatable=True)
        except ReplyError as error:
            if error.code != "WRONGTYPE":
                raise
            # No worker here serves it, and its wrong type would keep all other services from being swept.
            await self._link.execute_script(scripts.MEND, (table,), ("hash",), repeatable=True)
            return None
        return found

    def _item_refused(self, key: str, holder: bytes, *, owned: bool) -> RegistrationRefused:
        """Return the error for a static document, whose name a service has, or, where it was to be ``owned``, somebody else."""
        owner, record = shown(holder), f"(record {_field(key)!r} of {self._keys.names})"
        if owned:
            message = f"{key} belongs to {owner!r} {record}; choose another name, or remove it with `toolbus operate items rm {key}`"
        else:
            message = (
                f"{key} is published by {owner!r} {record}; choose another name, or stop that service first: its names are free "
                f"{self._settings.cooldown:g} s later, or at once after `toolbus operate items rm --force {key}`"
            )
        return RegistrationRefused(message, {key: owner})

    async def _change(
        self, documents: Sequence[tuple[str, str, bytes | str, bytes | str]], owner: str = "", holders: Iterable[bytes] = ()
    ) -> Any:
        """Change documents: of each its table, its key, what it is expected to be, and what it becomes."""
        tables = list(dict.fromkeys(table for table, *_ in documents))
        args: list[bytes | str | int] = [owner, len(tables)]
        for table, key, expected, becomes in documents:
            args += (tables.index(table) + 1, key, expected, becomes)
        others: list[bytes | str] = [*tables, *holders]
        if self._replication is None:
            return await self._run(scripts.CHANGE, others, *args)
        reply, confirmed = await self._replication.run(scripts.CHANGE, *self._call(others, *args))
        if not confirmed and reply[0] == b"ok":
            raise BrokerUnavailable(
                f"{documents[0][1]} is written, but {self._replication.shortage}: a failover may lose it; write it again"
            )
        return reply

    async def _run(self, script: Script, others: Iterable[bytes | str], *args: Any) -> Any:
        # Registering, sweeping and putting the same again changes nothing.
        return await self._link.execute_script(script, *self._call(others, *args), repeatable=True)

    def _call(self, others: Iterable[bytes | str], *args: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        keys = self._keys
        return (
            (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log, *others),
            (keys.prefix, os.urandom(6).hex(), TTL * 1000, int(self._settings.cooldown * 1000), *args),
        )


def _field(key: str) -> str:
    kind, _, name = key.partition("/")
    return _FIELDS.get(kind, "") + name


def _read(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
