"""One run of a scenario: starts the processes in a world, applies the faults, waits until all is quiet, and looks at what is left."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple, TypeVar

import msgspec

from tests.chaos import plan
from tests.chaos.agent import count, make_calls, still_to_make
from tests.chaos.history import Agent, AnyRecord, Exited, History, Hit, Key, Queue, Started, State
from tests.chaos.oracle import Violation
from tests.chaos.snapshot import at_rest
from tests.chaos.tools import SERVICES, define
from tests.simulation.faults import AT_COMMANDS, KINDS, Aimed, What
from tests.simulation.network import Connection
from tests.simulation.oracles import OF_ENTRIES, Invariants, judge
from tests.simulation.scenario import Scenario
from tests.simulation.server import Session
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
_STEPS = frozenset(STEPS)
_TOOLS = frozenset({*plan.ORDINARY, *plan.POISON, "ask", "revised"})

_SOURCES = {script.source.encode(): script.name for script in scripts.ALL}
_SCRIPTS = {script.sha.encode(): script.name for script in scripts.ALL}


class Outcome(NamedTuple):
    """The result of a run.

    Attributes:
        digest: of everything that was said to the server and of everything that was written down, if it was traced.
        trace: what happened, if it was traced.
        met: how often each fault was under way when a script or command was carried out, by both names.
    """

    violations: list[Violation]
    digest: str
    trace: list[Moment]
    history: History
    calls: int
    seconds: float
    met: Counter[tuple[str, str]]


@dataclass(slots=True)
class _Aim:
    """A fault that waits until a step was taken ``left`` times; ``does`` says whether its connection is cut, as ``Server.meet`` does."""

    step: str
    left: int
    does: Callable[[list[bytes]], str | None]
    reached: asyncio.Future[tuple[Session, str]]


class Records:
    """Takes the place of the journals of a chaos run: what everybody writes down, in memory.

    Args:
        wrote: called with each record.
    """

    def __init__(self, world: World, wrote: Callable[[AnyRecord], None]) -> None:
        self._world = world
        self._wrote = wrote
        self.records: list[AnyRecord] = []

    @property
    def pid(self) -> int:
        """The number of the process that writes."""
        return self._world.current.pid

    def write(self, record: AnyRecord) -> None:
        """Add a record."""
        # What is said while a process is cleared away, nobody of it says.
        if self._world.ended or self._world.current.dead:
            return
        self.records.append(record)
        self._wrote(record)
        if self._world.traced:
            fields = " ".join(f"{name}={value}" for name, value in msgspec.structs.asdict(record).items() if name != "at" and value != "")
            self._world.note(type(record).__name__.lower(), fields)


class _Logged(logging.Handler):
    """Writes the events that the product logs into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        """Add an event."""
        if not self._world.traced:
            return
        fields = dict(getattr(record, FIELDS, None) or {"event": record.getMessage()})
        event = fields.pop("event")
        raised = "" if record.exc_info is None else "".join(traceback.format_exception(record.exc_info[1]))
        self._world.note(f"log {event}", " ".join(f"{name}={value}" for name, value in fields.items()) + raised)


class Driver:
    """Runs one scenario.

    Args:
        traced: whether its outcome is to have a trace and a digest, which take time and change nothing.

    Attributes:
        world: where it runs.
        met: see ``Outcome``.
    """

    def __init__(self, scenario: Scenario, *, traced: bool = True) -> None:
        self.scenario = scenario
        self.options = scenario.options
        self.services = SERVICES
        self.world = World(scenario.seed, traced=traced)
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
        self._aims: list[_Aim] = []
        # The sessions of the steps that faults have waited for.
        self._hit: dict[int, Session] = {}
        self.met: Counter[tuple[str, str]] = Counter()
        self.world.exited = self._end
        self.world.server.observe = self._observe
        self.world.server.meet = self._meet
        self.world.server.changed = self.invariants.changed
        self.world.server.watch = self._watch

    def run(self) -> Outcome:
        """Run it to its end, and judge it."""
        envelope._drawn_ids.clear()
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

    def worker(self, fault: Aimed) -> Process | None:
        """Return a living worker: the one that took the step that the fault waited for, if it was one."""
        return _nth(self._workers, fault.pick, self._session_of(fault))

    def agent(self, fault: Aimed) -> Process | None:
        """Return a living agent with calls still to make: the one that took the step that the fault waited for, if it was one."""
        busy = {index: process for index, process in self._agents.items() if process not in self._idle}
        return _nth(busy, fault.pick, self._session_of(fault))

    def connections(self, fault: Aimed, random: Random, share: float) -> list[Connection]:
        """Return a share of the connections, or the one over which the step came that the fault waited for."""
        session, found = self._session_of(fault), self.world.network.connections
        return [each for each in found if (each.session is session if session is not None else random.random() < share)]

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
        """Kill the server and start it again, or a replica in its place, with what it had, or had at some time."""
        world = self.world
        world.network.downs.append("restart")
        for connection in list(world.network.connections):
            connection.cut(None)
        await asyncio.sleep(seconds)
        if had is not None:
            self.invariants.lose()
            world.server.db.restore(had)
        world.server.begin()
        world.network.downs.remove("restart")

    async def refuse_at_command(self, fault: Aimed, random: Random, text: Callable[[str, bool, bool], str], count: int) -> str:
        """Refuse a step, and those like it that come next, until so many were refused."""
        refusals, left = self.world.server.refusals, count

        def refuse(name: str, writes: bool, grows: bool) -> str:
            nonlocal left
            error = text(name, writes, grows)
            left -= bool(error)
            if not left:
                refusals.remove(refuse)
            return error

        def begin(words: list[bytes]) -> None:
            refusals.append(refuse)

        found = await self.meet_command(fault, random, begin)
        await asyncio.sleep(self.options.lease)
        if refuse in refusals:
            refusals.remove(refuse)
        return found

    async def meet_command(self, fault: Aimed, random: Random, does: Callable[[list[bytes]], str | None]) -> str:
        """Do something right before a command is carried out; ``does`` gets its words, and says whether to cut "before" or "after" it."""
        step, nth = (fault.step, fault.nth) if fault.step else ("", random.randint(1, 20))
        found = await self._reached(self._aim(step, nth, does), max(self.options.lease, self.options.seconds))
        if found is None:
            return "at none"
        self.met[fault.kind, found[1]] += 1
        return f"at {found[1]}"

    def _aim(self, step: str, nth: int, does: Callable[[list[bytes]], str | None]) -> _Aim:
        """Wait for the n-th time that a step is taken, or any step if it is empty; ``does`` is called right before."""
        aim = _Aim(step, nth, does, asyncio.get_running_loop().create_future())
        self._aims.append(aim)
        return aim

    async def _reached(self, aim: _Aim, seconds: float) -> tuple[Session, str] | None:
        """Return the session in which the step was taken, and its name; None when it was not within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                return await aim.reached
        except TimeoutError:
            return None
        finally:
            if aim in self._aims:
                self._aims.remove(aim)

    def _meet(self, session: Session, words: list[bytes]) -> str | None:
        name = self._name(words) if self._aims else ""
        if name not in _STEPS:
            return None
        cut = None
        for aim in [aim for aim in self._aims if aim.step in {"", name}]:
            aim.left -= 1
            if not aim.left:
                self._aims.remove(aim)
                aim.reached.set_result((session, name))
                cut = aim.does(words) or cut
        return cut

    def _session_of(self, fault: Aimed) -> Session | None:
        return self._hit.get(id(fault))

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
            for number, fault in enumerate(sorted(self.scenario.faults, key=lambda fault: fault.at)):
                await asyncio.sleep(max(0.0, self._start + fault.at - self.world.loop.now))
                faults.create_task(self._apply(fault, Random(f"{self.options.seed} fault {number} {fault.kind}")))
        self.world.note("faults are over")
        options = self.options
        await self._until(lambda: all(each in self._idle for each in self._agents.values()), options.seconds * 2 + options.timeout * 2 + 60)
        # Nobody is told that such a connection carries nothing, and what is closed meanwhile leaves things behind.
        await self._until(lambda: not any(each.to_server.silent for each in self.world.network.connections), 30.0)
        # What the server has lost and got back runs until its time is up. An agent that is gone is noticed after a while, and its calls may
        # end workers until then; each worker that streams to it makes its reply stream anew for five seconds, which the others see later.
        anew = options.agent_life + 5.0 * (options.workers - 1) if "agent-kill" in options.faults else 0.0
        if any(KINDS[fault.kind].taken_for == "stop" for fault in self.scenario.faults):
            # A worker that stood still hears at its next renewal what it has lost, and all else may have ended meanwhile.
            await asyncio.sleep(options.lease / 2)
        await self._until(self._is_at_rest, 10 * options.lease + 10 + anew + (options.timeout if options.lossy else 0.0))
        self.journal.write(self._state("quiet"))
        self._closing = True
        for processes in (self._agents, self._people, self._workers):
            await self._dismiss(processes)
        self.journal.write(self._state("closed"))
        await asyncio.sleep(options.lease)
        replies = self.key("rsp:")
        await self._until(lambda: not any(key.startswith(replies) for key in self.world.server.db.names()), options.agent_life + 5)
        self.journal.write(self._state("later"))

    async def _dismiss(self, processes: dict[int, Process]) -> None:
        for process in processes.values():
            self._leave[process].set()
        await self._until(lambda: all(each.dead or each not in self._leave for each in processes.values()), 30.0)

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        limit = self.world.loop.now + seconds
        while not condition() and self.world.loop.now < limit:  # noqa: ASYNC110 - virtual time, and nobody sets an event
            await asyncio.sleep(_POLL)

    async def _apply(self, fault: Aimed, random: Random) -> None:
        if fault.step and fault.kind not in AT_COMMANDS:
            cut = ("before" if fault.pick < 0.5 else "after") if KINDS[fault.kind].cuts else None
            reached = await self._reached(self._aim(fault.step, fault.nth, lambda words: cut), self.options.seconds)
            if reached is None:
                return
            self._hit[id(fault)] = reached[0]
        began = self.world.loop.now
        self.world.note("fault", f"{fault.kind} {fault.lasts:.3f} s {fault.step}".rstrip())
        if fault.kind not in AT_COMMANDS:
            self._under_way[fault.kind] += 1
        what, pids = await KINDS[fault.kind].apply(self, fault, random) or ("nobody was there", ())
        # What follows within a lease meets it too: those that were cut off come back.
        self.world.loop.call_later(self.options.lease, self._under_way.subtract, [fault.kind], context=self.world.context)
        # One that meets a command says itself which.
        at = f" at {fault.step}" if fault.step and fault.kind not in AT_COMMANDS else ""
        self.journal.write(Hit(began, KINDS[fault.kind].taken_for, self.world.loop.now, f"{fault.kind} {what}{at}", pids))

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

    def _watch(self, process: Process, words: list[bytes]) -> Callable[[], None] | None:
        name = self._name(words)
        if name == "TIME":
            return lambda: self.invariants.tell_time(process.pid)
        return self.invariants.watch(name, process.pid, words[3:]) if name in OF_ENTRIES else None

    def _observe(self, number: int, process: Process, words: list[bytes], answer: Any, sent: bytes) -> None:
        if self.world.ended:
            return
        name = self._name(words)
        self.invariants.hear(name, process.pid, self.world.loop.now, refused=isinstance(answer, ErrorReply))
        if self.world.traced:
            # The answer to a script that is loaded says which it was.
            said = words if words[0] != b"SCRIPT" else ()
            self._hash.update(b" ".join((b"%.9f %d" % (self.world.loop.now, number), *said, sent)))
            if name in _STEPS:
                self.world.note(f"> {name}", repr(answer)[:160], process.name)
        if name in _STEPS:
            for kind, count in self._under_way.items():
                if count > 0 and (not kind.startswith("refuse-") or isinstance(answer, ErrorReply)):
                    self.met[kind, name] += 1

    def _is_at_rest(self) -> bool:
        """Return whether nothing waits or runs, and nobody who was killed has a lease any more."""
        queues = [self.world.server.db.find(self.key(f"q:{service}")) for service in self.services]
        if any(isinstance(queue, Stream) and queue.entries for queue in queues):
            return False
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


def run(scenario: Scenario, *, traced: bool = True) -> Outcome:
    """Run a scenario in a world of its own; see ``Driver``.

    Raises:
        ValueError: a fault waits for a step, or a call is of a tool, that there is not.
    """
    if unknown := {fault.step for fault in scenario.faults if fault.step} - _STEPS:
        raise ValueError(f"there is no step {min(unknown)!r}: it is one of {', '.join(sorted(_STEPS))}")
    if tools := {call.tool for call in scenario.calls} - _TOOLS:
        raise ValueError(f"there is no tool {min(tools)!r}: it is one of {', '.join(sorted(_TOOLS))}")
    return Driver(scenario, traced=traced).run()


def _nth(processes: dict[int, Process], pick: float, session: Session | None) -> Process | None:
    living = [process for _, process in sorted(processes.items()) if not process.dead]
    if session is not None and session.client in living:
        return session.client  # type: ignore[no-any-return]
    return living[int(pick * len(living))] if living else None
