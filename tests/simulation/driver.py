"""One run of a scenario: starts the processes in a world, applies the faults, waits until all is quiet, and looks at what is left."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple, TypeVar

import msgspec

from tests.chaos.agent import count, make_calls, still_to_make
from tests.chaos.history import Agent, AnyRecord, Exited, History, Hit, Key, Queue, Started, State
from tests.chaos.oracle import Violation
from tests.chaos.schedule import Fault
from tests.chaos.snapshot import at_rest
from tests.chaos.tools import SERVICES, define
from tests.simulation.faults import AT_COMMANDS, KINDS, What
from tests.simulation.oracles import Invariants, judge
from tests.simulation.scenario import Scenario
from tests.simulation.storage import ErrorReply, Scores, Snapshot, Stream
from tests.simulation.world import Moment, Process, Stuck, World
from toolbus import BrokerError, ToolBus, Worker
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server import scripts
from toolbus.bus.telemetry.logger import repeats
from toolbus.bus.telemetry.output import FIELDS
from toolbus.bus.values import envelope
from toolbus.bus.values.results import ConfirmationClosed
from toolbus.middleware import Metering

T = TypeVar("T")

_URL = "redis://server:6379"
_POLL = 0.1
_AGAIN = 0.2
STEPS = (*(script.name for script in scripts.ALL), "XREADGROUP", "XREAD")
"""The steps of the protocol, by the names of their scripts and commands."""

_SOURCES = {script.source.encode(): script.name for script in scripts.ALL}
_SCRIPTS = {script.sha.encode(): script.name for script in scripts.ALL}


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
        digest: of everything that was said to the server and of everything that was written down.
        trace: what happened.
        met: how often each fault was under way when a script or command was carried out, by both names.
    """

    violations: list[Violation]
    digest: str
    trace: list[Moment]
    history: History
    calls: int
    seconds: float
    met: Counter[tuple[str, str]]


class Records:
    """Takes the place of the journals of a chaos run: what everybody writes down, in memory.

    Args:
        wrote: called with each record.
    """

    def __init__(self, world: World, wrote: Callable[[AnyRecord], None]) -> None:
        self._world = world
        self._wrote = wrote
        self.records: list[AnyRecord] = []

    def write(self, record: AnyRecord) -> None:
        """Add a record."""
        # What is said while a process is cleared away, nobody of it says.
        if not self._world.ended and not self._world.current.dead:
            self.records.append(record)
            self._wrote(record)
            fields = " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(record).items() if name != "at" and value != "")
            self._world.note(type(record).__name__.lower(), fields)


class _Logged(logging.Handler):
    """Writes the events that the product logs into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add an event."""
        fields = dict(getattr(record, FIELDS, None) or {"event": record.getMessage()})
        event = fields.pop("event")
        raised = "" if record.exc_info is None else "".join(traceback.format_exception(record.exc_info[1]))
        self._world.note(f"log {event}", " ".join(f"{name}={value}" for name, value in fields.items()) + raised)


class Driver:
    """Runs one scenario.

    Attributes:
        world: where it runs.
        met: see ``Outcome``.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.options = scenario.options
        self.services = SERVICES
        self.world = World(scenario.seed)
        self.world.network.delays, self.world.network.splits = [scenario.delay], [scenario.splits]
        self.invariants = Invariants(self.world.server.db, self.key(""), self.options)
        self.journal = Records(self.world, self.invariants.wrote)
        self._settings = self.options.settings(_URL)
        self._start = 0.0
        self._workers: dict[int, Process] = {}
        self._agents: dict[int, Process] = {}
        self._people: dict[int, Process] = {}
        self._leave: dict[Process, asyncio.Event] = {}
        self._idle: set[Process] = set()
        self._closing = False
        self._hash = hashlib.blake2b(digest_size=16)
        self._under_way: Counter[str] = Counter()
        self.met: Counter[tuple[str, str]] = Counter()
        self.world.exited = self._end
        self.world.server.observe = self._observe
        self.world.server.changed = self.invariants.changed

    def run(self) -> Outcome:
        """Run it to its end, and judge it."""
        envelope.new_id.__self__._ready.clear()  # type: ignore[attr-defined]
        repeats.forget()
        logger, handler = logging.getLogger("toolbus"), _Logged(self.world)
        before = logger.level, logger.propagate, logger.handlers[:]
        logger.handlers[:], logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
        trouble = ""
        try:
            with self.invariants.listening():
                self.world.run(self._live())
        except Stuck as error:
            trouble = str(error)
        finally:
            logger.handlers[:], logger.propagate = before[2], before[1]
            logger.setLevel(before[0])
        history = History(self.journal.records)
        violations = [*self.invariants.violations, *judge(self.scenario, history)]
        if trouble:
            violations.append(Violation("world", trouble))
        self._hash.update(repr(self.world.trace).encode())
        trace, seconds = self.world.trace, self.world.loop.now - self._start
        return Outcome(violations, self._hash.hexdigest(), trace, history, len(self.scenario.calls), seconds, self.met)

    # -- what faults do ---------------------------------------------------------------------------

    def worker(self, pick: float) -> Process | None:
        """Return a living worker."""
        return _nth(self._workers, pick)

    def agent(self, pick: float) -> Process | None:
        """Return a living agent with calls still to make."""
        return _nth({index: process for index, process in self._agents.items() if process not in self._idle}, pick)

    def kill(self, process: Process | None) -> What:
        """Kill a process; another one takes its place."""
        if process is None:
            return None
        self._end(process, -9)
        return process.name, (process.pid,)

    def _end(self, process: Process, status: int) -> None:
        self.journal.write(Exited(self.world.loop.now, process.name.partition("-")[0], process.pid, status, status == -9))
        process.kill()
        for living, again in ((self._workers, self._hire), (self._agents, self._enlist)):
            for index, known in list(living.items()):
                if known is process:
                    self._soon(again, index)

    def dismiss(self, worker: Process | None) -> What:
        """Let a worker drain; another one takes its place."""
        if worker is None:
            return None
        [index] = [index for index, known in self._workers.items() if known is worker]
        self._hire(index)
        self._leave[worker].set()
        return worker.name, (worker.pid,)

    async def hold(self, process: Process | None, seconds: float, *, loop: bool = True, threads: bool = True) -> What:
        """Hold a process back for a while."""
        if process is None:
            return None
        process.stop(loop=loop, threads=threads)
        await asyncio.sleep(seconds)
        process.go_on()
        return f"{process.name} for {seconds:.1f} s", (process.pid,)

    async def restart(self, seconds: float, had: Snapshot | None = None) -> None:
        """Kill the server and start it again, with what it had, or had at some time."""
        world = self.world
        world.network.downs.append("restart")
        for connection in list(world.network.connections):
            connection.cut(None)
        await asyncio.sleep(seconds)
        if had is not None:
            world.server.db.restore(had)
        world.server.begin()
        world.network.downs.remove("restart")

    async def meet_command(self, random: Random, kind: str, does: Callable[[list[bytes]], str | None]) -> str:
        """Do something right before one of the next commands; ``does`` gets its words, and says whether to cut "before" or "after" it."""
        server, left = self.world.server, random.randrange(20)
        # Half of them wait for a step that may be rare.
        wanted = random.choice(STEPS) if random.random() < 0.5 else ""
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def meet(session: Any, words: list[bytes]) -> str | None:
            nonlocal left
            name = self._name(words)
            if name not in STEPS or found.done():
                return None
            left -= 1
            if name != wanted and (wanted or left >= 0):
                return None
            found.set_result(name)
            self.met[kind, name] += 1
            return does(words)

        server.meet = meet
        try:
            async with asyncio.timeout(self.options.lease):
                return f"at {await found}"
        except TimeoutError:
            return "at none"
        finally:
            if server.meet is meet:
                server.meet = None

    async def operate(self, work: Callable[[Admin], Awaitable[T]]) -> T | str:
        """Do something as an operator does, in a process of its own; returns an error's text when that is not possible."""
        operator = self.world.start(f"operator-{len(self.world.processes) + 1}")

        async def whole() -> T | str:
            try:
                async with Admin(self._settings) as admin:
                    return await work(admin)
            except BrokerError as error:
                return str(error)

        return await operator.run(whole())

    def command(self, *words: bytes) -> str:
        """Carry out a command of an operator at the server."""
        try:
            answer = str(self.world.server.carry_out(list(words)))
        except Exception as error:  # an operator's mistake changes nothing
            answer = str(error)
        self.world.server.serve_waiting()
        return answer

    def key(self, name: str) -> bytes:
        """Return a key of the namespace."""
        return f"tb:{{{self.options.namespace}}}:{name}".encode()

    # -- the parts of a run -----------------------------------------------------------------------

    async def _live(self) -> None:
        self._start = self.world.loop.now
        for slot in range(self.options.workers):
            self._hire(slot)
        for index in range(self.options.agents):
            self._enlist(index)
        if any(call.tool == "ask" for call in self.scenario.calls):
            self._people[0] = self._begin("person", self._allow)
        async with asyncio.TaskGroup() as faults:
            for number, fault in enumerate(self.scenario.faults):
                await asyncio.sleep(max(0.0, self._start + fault.at - self.world.loop.now))
                faults.create_task(self._apply(fault, Random(f"{self.options.seed} fault {number} {fault.kind}")))
        self.world.note("faults are over")
        options = self.options
        await self._until(lambda: all(each in self._idle for each in self._agents.values()), options.seconds * 2 + options.timeout * 2 + 60)
        # Nobody is told that such a connection carries nothing, and what is closed meanwhile leaves things behind.
        await self._until(lambda: not any(each.to_server.silent for each in self.world.network.connections), 30.0)
        # What the server has lost and got back runs until its time is up.
        await self._until(self._is_at_rest, 10 * options.lease + 10 + (options.timeout if options.lossy else 0.0))
        self.journal.write(self._state("quiet"))
        self._closing = True
        for processes in (self._agents, self._people, self._workers):
            await self._dismiss(processes)
        self.journal.write(self._state("closed"))
        await asyncio.sleep(options.lease)
        await self._until(lambda: not any(key.name.startswith("rsp:") for key in self._state("later").keys), options.agent_life + 5)
        self.journal.write(self._state("later"))

    async def _dismiss(self, processes: dict[int, Process]) -> None:
        for process in processes.values():
            self._leave[process].set()
        await self._until(lambda: all(each.dead or each not in self._leave for each in processes.values()), 30.0)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        limit = self.world.loop.now + seconds
        while not condition() and self.world.loop.now < limit:  # noqa: ASYNC110 - virtual time, and nobody sets an event
            await asyncio.sleep(_POLL)

    async def _apply(self, fault: Fault, random: Random) -> None:
        began = self.world.loop.now
        self.world.note("fault", f"{fault.kind} {fault.lasts:.3f} s")
        if fault.kind not in AT_COMMANDS:
            self._under_way[fault.kind] += 1
        what, pids = await KINDS[fault.kind].apply(self, fault, random) or ("nobody was there", ())
        # What follows within a lease meets it too: those that were cut off come back.
        self.world.loop.call_later(self.options.lease, self._under_way.subtract, [fault.kind], context=self.world.context)
        self.journal.write(Hit(began, KINDS[fault.kind].taken_for, self.world.loop.now, f"{fault.kind} {what}", pids))

    def _soon(self, again: Callable[[int], None], index: int) -> None:
        self.world.loop.call_later(_AGAIN, lambda: None if self._closing else again(index), context=self.world.context)

    # -- processes --------------------------------------------------------------------------------

    def _hire(self, slot: int) -> None:
        self._workers[slot] = self._begin("worker", self._work)

    def _enlist(self, index: int) -> None:
        self._agents[index] = self._begin("agent", self._call, index)

    def _begin(self, role: str, work: Callable[..., Awaitable[None]], *args: int) -> Process:
        process = self.world.start(f"{role}-{len(self.world.processes) + 1}")
        self._leave[process] = asyncio.Event()
        self.journal.write(Started(self.world.loop.now, role, process.pid))
        process.run(self._whole(role, process, work(process, *args)))
        return process

    async def _whole(self, role: str, process: Process, work: Awaitable[None]) -> None:
        """Run a process to its end, and write down how it ended."""
        status = 0
        try:
            await work
        except Exception as error:  # whatever it is, a process that ends by it is for the oracle
            status = 1
            self.world.note("died", repr(error))
        self._leave.pop(process, None)
        self.journal.write(Exited(self.world.loop.now, role, process.pid, status, status == 0))

    async def _work(self, process: Process) -> None:
        leave = self._leave[process]
        while not leave.is_set():
            revision = process.number % 2 if "versions" in self.options.faults else 0
            around = [Metering()] if self.scenario.metered else []
            worker = Worker(define(self.journal, revision), settings=self._settings, middleware=around)  # type: ignore[arg-type]
            try:
                await worker.open()
            except BrokerError as error:
                self.world.note("start failed", str(error))
                await asyncio.sleep(_AGAIN)
                continue
            await leave.wait()
            await worker.aclose()

    async def _call(self, process: Process, index: int) -> None:
        bus = ToolBus(settings=self._settings)
        while True:
            try:
                await bus.open()
            except BrokerError as error:
                self.world.note("start failed", str(error))
                await asyncio.sleep(_AGAIN)
            else:
                break
        self.journal.write(Agent(self.world.loop.now, index, bus.agent, process.pid))
        mine = still_to_make([call for call in self.scenario.calls if call.agent == index], self.journal.records)
        counting = asyncio.create_task(count(self.journal, bus))  # type: ignore[arg-type]
        await make_calls(self.journal, bus, mine, self.options, self._start)  # type: ignore[arg-type]
        self._idle.add(process)
        await self._leave[process].wait()
        counting.cancel()
        await bus.aclose()

    async def _allow(self, process: Process) -> None:
        """Let every call go on that asks."""
        while not self._leave[process].is_set():
            try:
                async with ToolBus(settings=self._settings) as bus:
                    while not self._leave[process].is_set():
                        for question in await bus.confirmations.pending():
                            with suppress(ConfirmationClosed):
                                await bus.confirmations.allow(question.id)
                        await asyncio.sleep(_AGAIN)
            except BrokerError as error:
                self.world.note("not answered", str(error))
                await asyncio.sleep(_AGAIN)

    # -- watching ---------------------------------------------------------------------------------

    def _name(self, words: list[bytes]) -> str:
        if words[0] == b"EVAL":
            return _SOURCES.get(words[1], "script")
        return _SCRIPTS.get(words[1], "script") if words[0] == b"EVALSHA" else words[0].decode()

    def _observe(self, number: int, process: Process, words: list[bytes], answer: Any) -> None:
        if self.world.ended:
            return
        line = f"{self.world.loop.now:.9f} {number} {words!r} {answer!r}"
        self._hash.update(line.encode())
        name = self._name(words)
        if name in STEPS:
            self.world.note(f"> {name}", f"{answer!r}"[:160], process.name)
            for kind, count in self._under_way.items():
                if count > 0 and (not kind.startswith("refuse-") or isinstance(answer, ErrorReply)):
                    self.met[kind, name] += 1

    def _is_at_rest(self) -> bool:
        """Return whether nothing waits or runs, and nobody who was killed has a lease any more."""
        state = self._state("quiet")
        return at_rest(state) and all(any(f"-{pid}-" in instance for pid in state.workers) for instance in state.live)

    def _state(self, name: str) -> State:
        db = self.world.server.db
        prefix, now = self.key("").decode(), db.now()
        queues, keys, letters = [], [], []
        for key in sorted(db.names()):
            short, value = key.decode().removeprefix(prefix), db.find(key)
            ends = db.expires.get(key)
            keys.append(Key(short, -1 if ends is None else ends - now))
            if isinstance(value, Stream) and short.startswith("q:"):
                group = value.groups.get(b"g")
                consumers = () if group is None else tuple(sorted(each.decode() for each in group.consumers))
                queues.append(Queue(key.decode(), len(value.entries), 0 if group is None else len(group.pending), consumers))
            if isinstance(value, Stream) and short.startswith("dlq:"):
                for flat in value.entries.values():
                    fields = dict(zip(flat[::2], flat[1::2], strict=True))
                    letters.append(tuple(fields.get(word, b"").decode() for word in (b"reason", b"entry", b"r")))
        leases = db.find(self.key("live"))
        ends_of = {} if not isinstance(leases, Scores) else {member.decode().partition("/")[2]: end for member, end in leases.items()}
        living = tuple(process.pid for process in self._workers.values() if process in self._leave and not process.dead)
        return State(
            self.world.loop.now,
            name,
            queues=tuple(queues),
            keys=tuple(keys),
            live=tuple(sorted(each for each, end in ends_of.items() if end >= now)),
            dead=tuple(sorted(each for each, end in ends_of.items() if end < now)),
            letters=tuple(letters),
            workers=living,
        )


def run(scenario: Scenario) -> Outcome:
    """Run a scenario in a world of its own."""
    return Driver(scenario).run()


def _nth(processes: dict[int, Process], pick: float) -> Process | None:
    living = [process for _, process in sorted(processes.items()) if not process.dead]
    return living[int(pick * len(living))] if living else None
