"""The faults of a scenario: what each does to the world, and what the oracle of the chaos runs takes it for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tests.chaos.schedule import Fault
from toolbus.platform.records import RECORD_KEY

if TYPE_CHECKING:
    from tests.simulation.driver import Driver
    from tests.simulation.storage import Snapshot

T = TypeVar("T")


class Aimed(Fault, frozen=True):
    """A fault that may wait for a step of the protocol, and then hits the process that took it, or its connection.

    Attributes:
        step: see ``driver.STEPS``; empty for a fault that happens at its time.
        nth: how often the step is taken from that time on until it happens.
    """

    step: str = ""
    nth: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"there is no fault {self.kind!r}: it is one of {', '.join(sorted(KINDS))}")
        if not 0 <= self.pick < 1:
            raise ValueError(f"pick is from 0 to 1, and not {self.pick}")
        if bool(self.step) != (self.nth > 0):
            raise ValueError("a fault that waits for a step has an nth of 1 or more, and no other has one")


What = tuple[str, tuple[int, ...]] | None
"""A fault as it was applied: in words, and to which processes; None when nobody was there."""


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        apply: does it, and returns when it is over.
        lasts: how long it lasts, in leases.
        taken_for: the kind of the chaos runs by which the oracle judges what followed.
        lossy: whether the server loses what it had.
        group: of kinds that are much alike.
        cuts: whether the connection over which the step came is cut right before it or behind it, so that what was written then is lost.
    """

    apply: Callable[[Driver, Aimed, Random], Awaitable[What]]
    lasts: tuple[float, float] = (0.0, 0.0)
    taken_for: str = "reset"
    lossy: bool = False
    group: str = ""
    cuts: bool = False


KINDS: dict[str, Kind] = {}
AT_COMMANDS = frozenset({"cut-command", "cut-reply", "refuse-few", "wrong-key"})
"""Kinds that meet one command, and not all that come while they last."""


def _kind(
    name: str, *lasts: float, group: str, taken_for: str = "", lossy: bool = False, cuts: bool = False
) -> Callable[[Callable[[Driver, Aimed, Random], Awaitable[What]]], Callable[[Driver, Aimed, Random], Awaitable[What]]]:
    def add(apply: Callable[[Driver, Aimed, Random], Awaitable[What]]) -> Callable[[Driver, Aimed, Random], Awaitable[What]]:
        KINDS[name] = Kind(apply, (lasts[0], lasts[1]) if lasts else (0.0, 0.0), taken_for or name, lossy, group, cuts)
        return apply

    return add


async def _during(lasting: list[T], value: T, seconds: float) -> None:
    """Let something hold for a while, beside whatever else does."""
    lasting.append(value)
    await asyncio.sleep(seconds)
    lasting.remove(value)


# -- processes ----------------------------------------------------------------------------------------


@_kind("kill", group="processes")
async def _kill(driver: Driver, fault: Aimed, random: Random) -> What:
    """A worker is killed, and another one started."""
    return driver.kill(driver.worker(fault))


@_kind("power-loss", taken_for="kill", group="processes", cuts=True)
async def _power_loss(driver: Driver, fault: Aimed, random: Random) -> What:
    """A worker's machine dies: nothing of what is under way arrives, and another worker is started."""
    worker = driver.worker(fault)
    for connection in driver.world.network.connections:
        if connection.process is worker:
            connection.fall_silent()
    return driver.kill(worker)


@_kind("agent-kill", group="processes")
async def _agent_kill(driver: Driver, fault: Aimed, random: Random) -> What:
    """An agent is killed, and started again with the rest of its calls."""
    return driver.kill(driver.agent(fault))


@_kind("term", group="processes")
async def _term(driver: Driver, fault: Aimed, random: Random) -> What:
    """A worker drains, and another one is started."""
    return driver.dismiss(driver.worker(fault))


@_kind("stop", 0.3, 2.0, group="stops")
async def _stop(driver: Driver, fault: Aimed, random: Random) -> What:
    """A worker is stopped for a while."""
    return await driver.hold(driver.worker(fault), fault.lasts)


@_kind("loop-block", 0.3, 2.0, taken_for="stop", group="stops")
async def _loop_block(driver: Driver, fault: Aimed, random: Random) -> What:
    """A worker's event loop is blocked, and its threads go on."""
    return await driver.hold(driver.worker(fault), fault.lasts, threads=False)


@_kind("thread-block", 0.3, 2.0, taken_for="stop", group="stops")
async def _thread_block(driver: Driver, fault: Aimed, random: Random) -> What:
    """A worker's threads get no processor."""
    return await driver.hold(driver.worker(fault), fault.lasts, loop=False)


@_kind("agent-stop", 0.3, 2.0, group="stops")
async def _agent_stop(driver: Driver, fault: Aimed, random: Random) -> What:
    """An agent is stopped for a while."""
    return await driver.hold(driver.agent(fault), fault.lasts)


# -- the network --------------------------------------------------------------------------------------


@_kind("reset", group="cuts")
async def _reset(driver: Driver, fault: Aimed, random: Random) -> What:
    """Connections are cut with whatever is under way."""
    found = driver.connections(fault, random, 0.5)
    for connection in found:
        connection.cut(ConnectionResetError(104, "Connection reset by peer") if random.random() < 0.5 else None)
    return f"{len(found)} connections", ()


@_kind("cut-reply", taken_for="reset", group="cuts")
async def _cut_reply(driver: Driver, fault: Aimed, random: Random) -> What:
    """A connection is cut right after the server has carried out a command, whose answer is lost."""
    return await driver.meet_command(fault, random, lambda words: "after"), ()


@_kind("cut-command", taken_for="reset", group="cuts")
async def _cut_command(driver: Driver, fault: Aimed, random: Random) -> What:
    """A connection is cut right before the server carries out a command, which it does not."""
    return await driver.meet_command(fault, random, lambda words: "before"), ()


@_kind("half-open", group="cuts")
async def _half_open(driver: Driver, fault: Aimed, random: Random) -> What:
    """Connections carry nothing more, and nobody is told."""
    found = driver.connections(fault, random, 0.25)
    for connection in found:
        connection.fall_silent()
    return f"{len(found)} connections", ()


@_kind("partition", 0.3, 1.7, group="network")
async def _partition(driver: Driver, fault: Aimed, random: Random) -> What:
    """Nothing passes for a while, and connections are cut afterwards."""
    found = list(driver.world.network.connections)
    for connection in found:
        connection.fall_silent()
    await _during(driver.world.network.downs, fault.kind, fault.lasts)
    for connection in found:
        connection.cut(None)
    return f"of {len(found)} connections for {fault.lasts:.1f} s", ()


@_kind("delay", 0.5, 2.0, group="network")
async def _delay(driver: Driver, fault: Aimed, random: Random) -> What:
    """Everything comes late."""
    await _during(driver.world.network.delays, 0.02 + 0.2 * fault.pick, fault.lasts)
    return f"for {fault.lasts:.1f} s", ()


@_kind("pieces", 0.5, 4.0, taken_for="delay", group="network")
async def _pieces(driver: Driver, fault: Aimed, random: Random) -> What:
    """Everything comes in small pieces."""
    await _during(driver.world.network.splits, 0.8, fault.lasts)
    return f"for {fault.lasts:.1f} s", ()


# -- the server ---------------------------------------------------------------------------------------


@_kind("server-kill", 0.0, 0.3, group="server")
async def _server_kill(driver: Driver, fault: Aimed, random: Random) -> What:
    """The server is killed and started again with everything that it had."""
    await driver.restart(fault.lasts)
    return f"and started after {fault.lasts:.1f} s", ()


@_kind("script-flush", group="server")
async def _script_flush(driver: Driver, fault: Aimed, random: Random) -> What:
    """SCRIPT FLUSH."""
    driver.world.server.scripts.clear()
    return "", ()


@_kind("group-destroy", group="server")
async def _group_destroy(driver: Driver, fault: Aimed, random: Random) -> What:
    """XGROUP DESTROY of a service's group."""
    service = driver.services[int(fault.pick * len(driver.services))]
    return driver.command(b"XGROUP", b"DESTROY", driver.key(f"q:{service}"), b"g"), ()


@_kind("flushall", lossy=True, group="losses")
async def _flushall(driver: Driver, fault: Aimed, random: Random) -> What:
    """FLUSHALL."""
    driver.invariants.lose()
    return driver.command(b"FLUSHALL"), ()


# Commands without keys, which no other node is in charge of.
_KEYLESS = frozenset({"TIME", "PUBLISH", "SCAN", "FLUSHALL"})
_TEXTS: dict[str, Callable[[str, bool, bool], str]] = {}
"""Texts of refusals by their codes, for what each of them concerns."""


def _refusing(code: str, text: str, *lasts: float, only: Callable[[str, bool, bool], bool], taken_for: str = "client-pause") -> None:
    _TEXTS[code] = lambda name, writes, grows: f"{code} {text}" if only(name, writes, grows) else ""

    async def refuse(driver: Driver, fault: Aimed, random: Random) -> What:
        server = driver.world.server
        await _during(server.refusals, lambda *what: "" if server.asked else _TEXTS[code](*what), fault.lasts)
        return f"for {fault.lasts:.1f} s", ()

    refuse.__doc__ = f"The server answers with {code} for a while."
    # Those that refuse whatever is written are answered to whoever asked; the others are waited for, or followed elsewhere.
    group = "refusals" if code in {"OOM", "MISCONF", "NOREPLICAS"} else "moves"
    _kind(f"refuse-{code.lower()}", *lasts, taken_for=taken_for, group=group)(refuse)


_refusing("OOM", "command not allowed when used memory > 'maxmemory'.", 0.2, 1.5, only=lambda name, writes, grows: grows)
_refusing("MISCONF", "Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", 0.2, 1.0,
          only=lambda name, writes, grows: writes)  # fmt: skip
_refusing("NOREPLICAS", "Not enough good replicas to write.", 0.2, 1.0, only=lambda name, writes, grows: writes)
_refusing("BUSY", "Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", 0.2, 1.0,
          only=lambda name, writes, grows: True)  # fmt: skip
_refusing("LOADING", "Redis is loading the dataset in memory", 0.2, 1.0, only=lambda name, writes, grows: True)
_refusing("READONLY", "You can't write against a read only replica.", 0.1, 1.0, only=lambda name, writes, grows: writes)
_refusing("MOVED", "1234 server:6379", 0.1, 0.6, only=lambda name, writes, grows: name not in _KEYLESS)
_refusing("ASK", "1234 server:6379", 0.1, 1.0, only=lambda name, writes, grows: name not in _KEYLESS)
_refusing("TRYAGAIN", "Multiple keys request during rehashing of slot", 0.1, 1.0, only=lambda name, writes, grows: name == "script")


@_kind("refuse-few", group="refusals", taken_for="client-pause")
async def _refuse_few(driver: Driver, fault: Aimed, random: Random) -> What:
    """The server refuses one command, or two or three, for a reason that passes, and carries out those behind them."""
    code = random.choice(("OOM", "MISCONF", "NOREPLICAS", "BUSY", "LOADING", "TRYAGAIN"))
    return f"{code} {await driver.refuse_at_command(fault, random, _TEXTS[code], random.choice((1, 1, 2, 3)))}", ()


# -- what is lost -------------------------------------------------------------------------------------


class _Kept:
    """The part of it that the server's disk, or a replica, has."""

    def __init__(self, driver: Driver) -> None:
        self._server = driver.world.server
        self._had, self._run_id = self._server.db.snapshot(), self._server.run_id

    def snapshot(self) -> Snapshot | None:
        """Return it; None when the server has begun anew since, so that it is of a past which the server has left for another one."""
        return self._had if self._server.run_id == self._run_id else None


@_kind("lost-second", 0.1, 1.0, taken_for="flushall", lossy=True, group="losses")
async def _lost_second(driver: Driver, fault: Aimed, random: Random) -> What:
    """The server is killed, and started again without what was written last."""
    before = _Kept(driver)
    await asyncio.sleep(fault.lasts)
    await driver.restart(0.1 * random.random(), before.snapshot())
    return f"without the last {fault.lasts:.1f} s", ()


@_kind("failover", 0.0, 0.3, taken_for="flushall", lossy=True, group="losses")
async def _failover(driver: Driver, fault: Aimed, random: Random) -> What:
    """A replica, which has not got what was written last, becomes the master; the old one refuses writes until it ends."""
    before = _Kept(driver)
    await asyncio.sleep(fault.lasts)
    driver.world.server.role = "slave"
    await _during(driver.world.server.refusals, lambda name, writes, grows: "READONLY You can't write." if writes else "", random.random())
    await driver.restart(0.0, before.snapshot())
    return f"without the last {fault.lasts:.1f} s", ()


@_kind("wrong-type", taken_for="flushall", lossy=True, group="losses")
async def _wrong_type(driver: Driver, fault: Aimed, random: Random) -> What:
    """Somebody overwrites a key that is no string with one."""
    db = driver.world.server.db
    keys = [key for key in sorted(db.names()) if db.kind(key) != "string"]
    key = keys[int(fault.pick * len(keys))] if keys else driver.key("live")
    driver.invariants.lose(broken_off=True)
    return f"{driver.command(b'SET', key, b'x', b'PX', b'10000')} {key.decode()}", ()


@_kind("wrong-key", taken_for="flushall", lossy=True, group="losses")
async def _wrong_key(driver: Driver, fault: Aimed, random: Random) -> What:
    """Somebody overwrites one of the keys of a script with a string, right before the script runs and comes to it."""

    def overwrite(words: list[bytes]) -> None:
        count = int(words[2]) if words[0] in {b"EVAL", b"EVALSHA"} else 0
        keys = [key for key in words[3 : 3 + count] if driver.world.server.db.kind(key) not in {"none", "string"}]
        if keys:
            driver.invariants.lose(broken_off=True)
            driver.world.note("overwritten", driver.command(b"SET", random.choice(keys), b"x", b"PX", b"10000"))

    return await driver.meet_command(fault, random, overwrite), ()


# -- clocks -------------------------------------------------------------------------------------------


@_kind("server-clock", taken_for="server-stop", group="clocks")
async def _server_clock(driver: Driver, fault: Aimed, random: Random) -> What:
    """The server's clock steps, and is a lease behind or three ahead at most: what lives for seconds outlives that."""
    before, driver.world.server_skew = driver.world.server_skew, driver.options.lease * (4 * fault.pick - 1)
    return f"by {driver.world.server_skew - before:.1f} s", ()


@_kind("server-stands", 0.3, 2.0, taken_for="server-stop", group="clocks")
async def _server_stands(driver: Driver, fault: Aimed, random: Random) -> What:
    """The server's clock stands for a while, and then is right again."""
    driver.invariants.stand()
    driver.world.server_stands = driver.world.loop.now
    await asyncio.sleep(fault.lasts)
    driver.world.server_stands = None
    return f"for {fault.lasts:.1f} s", ()


@_kind("clock", taken_for="reset", group="clocks")
async def _clock(driver: Driver, fault: Aimed, random: Random) -> What:
    """The clocks of the day of some processes step, by a day at most."""
    found = [process for process in driver.world.processes if random.random() < 0.5]
    for process in found:
        process.skew += 86_400 * random.uniform(-1, 1)
    return f"of {len(found)} processes", ()


# -- operators and callers ----------------------------------------------------------------------------


@_kind("pause", 0.1, 2.0, taken_for="client-pause", group="operators")
async def _pause(driver: Driver, fault: Aimed, random: Random) -> What:
    """A service is paused for a while."""
    service = driver.services[int(fault.pick * len(driver.services))]
    await driver.operate(lambda admin: admin.pause(service))
    await asyncio.sleep(fault.lasts)
    # Refused like anything else while the server refuses what changes something.
    while isinstance(await driver.operate(lambda admin: admin.resume(service)), str):  # noqa: ASYNC110 - the server alone knows
        await asyncio.sleep(0.2)
    return f"{service} for {fault.lasts:.1f} s", ()


@_kind("purge", group="operators")
async def _purge(driver: Driver, fault: Aimed, random: Random) -> What:
    """A service loses what is queued for it."""
    service = driver.services[int(fault.pick * len(driver.services))]
    return f"{await driver.operate(lambda admin: admin.purge(service))} of {service}", ()


@_kind("look", taken_for="script-flush", group="operators")
async def _look(driver: Driver, fault: Aimed, random: Random) -> What:
    """Somebody looks at everything, and at whether the server takes writes."""
    found = await driver.operate(lambda admin: admin.services())
    refusal = await driver.operate(lambda admin: admin.refusal())
    return f"{found if isinstance(found, str) else len(found)} services, {refusal or 'no refusal'}", ()


@_kind("document", 0.0, 1.0, taken_for="script-flush", group="operators")
async def _document(driver: Driver, fault: Aimed, random: Random) -> What:
    """Somebody records a tool, and takes it away again."""
    name = f"{RECORD_KEY}sim-{random.randrange(3)}"
    stored = await driver.operate(lambda admin: admin.put(name, b'{"meta": {"tool_id": "sim"}, "sources": []}'))
    await asyncio.sleep(fault.lasts)
    deleted = await driver.operate(lambda admin: admin.delete(name))
    return f"{name}: {stored or 'stored'}, {deleted}", ()


@_kind("slow-reader", 0.5, 3.0, taken_for="delay", group="network")
async def _slow_reader(driver: Driver, fault: Aimed, random: Random) -> What:
    """An agent gets late what is sent to it."""
    agent = driver.agent(fault)
    found = [each for each in driver.world.network.connections if each.process is agent]
    for connection in found:
        connection.to_client.slow = random.random()
    await asyncio.sleep(fault.lasts)
    for connection in found:
        connection.to_client.slow = 0.0
    return f"over {len(found)} connections for {fault.lasts:.1f} s", ()
