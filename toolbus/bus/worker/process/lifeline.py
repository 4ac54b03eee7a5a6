"""The line between a process and its parent, with the load that it reports there; its service manager; the signals that end it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import os
import select
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import HostId, WorkerId
from toolbus.bus.support.waiting import beside, cancelled
from toolbus.bus.telemetry.background import keep_running

# Seconds beyond its grace period after which a child whose parent is gone is ended; the steps of a drain are bounded by fewer.
_MARGIN = 15.0
# A child must not wait for its parent to read.
_MOST_TEXT = 4000
_PIECE = 65_536


class Bounds(NamedTuple):
    """The fewest and the most processes."""

    least: int
    most: int


# -- load -------------------------------------------------------------------------------------------

EVERY = 0.5
"""Seconds between two reports of a process."""

TICK = 0.02
"""Seconds between two samples."""

# Seconds by which a sample of a loop that nothing holds may be late.
_LATE = 0.005


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """The load of one worker process since its last report.

    Attributes:
        slots: how many calls may run at once.
        running: how many ran, on average.
        sessions: open ones.
        held: requests that it has taken and not answered.
        full: share of the time in which no slot was free.
        blocked: share of the time for which something held the event loop, without the time in which the loop waited for a processor.
        cpu: processor time as a share of one core.
        depth: requests of its services, queued and running, as the server last told it; -1 when no call ended, so that it told nothing.
    """

    slots: int = 1
    running: float = 0.0
    sessions: int = 0
    held: int = 0
    full: float = 0.0
    blocked: float = 0.0
    cpu: float = 0.0
    depth: int = -1

    @property
    def use(self) -> float:
        """The share of the process that is in use, from 0 to 1: of its slots, of its event loop, or of a core, whichever is more."""
        return min(1.0, max(self.running / max(1, self.slots), self.full, self.blocked, self.cpu))


def processor_queue() -> Callable[[], float]:
    """Return what tells for how many seconds the main thread was ready to run and had no processor; 0 where the system does not say."""
    try:
        # It stays open: a path that is looked up fifty times a second would cost more than everything else here.
        file = os.open("/proc/self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: 0.0

    def seconds() -> float:
        try:
            return int(os.pread(file, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    return seconds


class LoadMeter:
    """Measures the load of a worker by samples, which its event loop takes fifty times a second.

    A sample that comes late was held up: it stands for all the samples that were due meanwhile.

    Args:
        statistics: returns the counts of an open worker.
        clock, cpu: return monotonic seconds, and seconds of processor time.
        queued: returns the seconds for which the loop's thread was ready to run and had no processor; None for what the system tells.
    """

    def __init__(
        self,
        statistics: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
        queued: Callable[[], float] | None = None,
    ) -> None:
        self._statistics = statistics
        self._clock, self._cpu, self._queued = clock, cpu, queued or processor_queue()
        self._waited = self._queued()
        self._since = self._sampled = clock()
        self._used = cpu()
        self._samples = self._running = self._full = self._held = 0
        self._finished = statistics()["finished"]

    def sample(self) -> None:
        """Take a sample; call it a tick after the last one, as nearly as the event loop allows."""
        now, waited = self._clock(), self._queued()
        late = now - self._sampled - TICK
        # A machine without a free processor would not be quicker with one more process.
        held = late - (waited - self._waited)
        self._sampled, self._waited = now, waited
        counts = self._statistics()
        due = 1 + int(max(0.0, late) / TICK)
        self._samples += due
        self._running += due * counts["running"]
        self._full += due * (counts["free"] < 1)
        self._held += min(due, 1 + int(held / TICK)) if held > _LATE else 0

    @property
    def due(self) -> bool:
        """True when it is time for a report."""
        return self._sampled - self._since >= EVERY - TICK / 2

    def report(self) -> Load:
        """Return the load since the last report, and begin anew."""
        counts, used = self._statistics(), self._cpu()
        elapsed = max(self._sampled - self._since, 1e-6)
        samples = max(1, self._samples)
        ended = counts["finished"] != self._finished
        load = Load(
            slots=counts["running"] + counts["free"],
            running=round(self._running / samples, 2),
            sessions=counts["sessions"],
            held=counts["held"],
            full=round(self._full / samples, 3),
            blocked=round(self._held / samples, 3),
            cpu=round((used - self._used) / elapsed, 3),
            depth=counts.get("depth", -1) if ended else -1,
        )
        self._since, self._used, self._finished = self._sampled, used, counts["finished"]
        self._samples = self._running = self._full = self._held = 0
        return load


# -- the parent ------------------------------------------------------------------------------------


class ChildState(msgspec.Struct, omit_defaults=True):
    """The state of a child, as it tells its parent.

    Attributes:
        serving: true once it serves.
        instance: the id of its worker, if it has one.
        host: its id as a host of recorded tools, if it is one.
        refused: the reason why it does not serve.
        mendable: true when a change of the served files may remove that reason.
        probes: the port of this machine at which it answers probes; 0 for none.
        load: how busy it is, if it was asked to tell that.
    """

    serving: bool = False
    instance: WorkerId = WorkerId("")
    host: HostId = HostId("")
    refused: str = ""
    mendable: bool = False
    probes: int = 0
    load: Load | None = None


class Lifeline:
    """The parent's end of a pair of sockets, of which the child has the other; use it with ``with``.

    The child tells its state there, and stops when the parent's end closes.

    Attributes:
        state: what ``read`` has found so far, with the last load.
        ended: whether the child's end is closed.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._unread = b""
        self.state = ChildState()
        self.ended = False

    @property
    def words(self) -> tuple[str, str]:
        """The option, and its value, that hand the other end to a child."""
        return "--lifeline", str(self.theirs)

    @property
    def theirs(self) -> int:
        """The descriptor that the child inherits."""
        return self._theirs.fileno()

    def fileno(self) -> int:
        """Return the descriptor that is readable when the child has told something."""
        return self._ours.fileno()

    def started(self) -> None:
        """Close the child's end here, so that only the child holds it."""
        self._theirs.close()

    def read(self) -> ChildState:
        """Return what the child has told until now; does not wait."""
        try:
            while piece := self._ours.recv(_PIECE):
                self._unread += piece
            self.ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            new = msgspec.structs.asdict(msgspec.json.decode(line, type=ChildState))
            # A message has what is new; the rest stays.
            self.state = msgspec.structs.replace(self.state, **{name: value for name, value in new.items() if value})
        return self.state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._theirs.close()
        self._ours.close()


def report_state(descriptor: int | None, state: ChildState) -> bool:
    """In a child: tell the parent its state; return whether there is one that can read it."""
    if descriptor is None:
        return False
    state.refused = state.refused[:_MOST_TEXT]
    try:
        os.write(descriptor, msgspec.json.encode(state) + b"\n")
    except OSError:
        return False
    return True


@contextlib.asynccontextmanager
async def load_reports(statistics: Callable[[], Mapping[str, int]], descriptor: int | None) -> AsyncIterator[Callable[[], None]]:
    """In a child: yield what begins to tell the parent its load; without a parent it does nothing.

    Args:
        statistics: returns the counts of a worker; called once it is open.
        descriptor: the child's end of the lifeline.
    """
    if descriptor is None:
        yield lambda: None
        return
    line, tasks = socket.socket(fileno=descriptor), set[asyncio.Task[None]]()

    async def report() -> None:
        meter = LoadMeter(statistics)
        while True:
            await asyncio.sleep(TICK)
            meter.sample()
            if meter.due:
                # A parent that is stopped must not stop its children: what finds no room is left out.
                with contextlib.suppress(OSError):
                    line.send(msgspec.json.encode(ChildState(load=meter.report())) + b"\n", socket.MSG_DONTWAIT)

    try:
        yield lambda: tasks.add(asyncio.create_task(keep_running("load reports", report, every=TICK)))
    finally:
        # The descriptor is the lifeline's, which others use on.
        line.detach()
        await cancelled(*tasks)


def watch_lifeline(descriptor: int, stop: Callable[[], None], grace: float, *, margin: float = _MARGIN) -> None:
    """In a child: call ``stop`` in the event loop when the parent is gone, and end the process when it has not ended in time.

    Args:
        descriptor: the child's end of the lifeline.
        stop: begins the end of this process.
        grace: seconds that running calls may take to finish.
        margin: seconds that everything else may take; then the process is ended at once.
    """
    loop = asyncio.get_running_loop()

    def watch() -> None:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        # The parent writes nothing, so this returns when its end is closed.
        waiting.poll()
        _orphaned.set()
        telemetry.log.warning("process.orphaned")
        with contextlib.suppress(RuntimeError):
            # The loop may be closed already.
            loop.call_soon_threadsafe(stop)
        time.sleep(grace + margin)
        telemetry.log.error("process.overdue", grace=grace)
        telemetry.flush_logging()
        os._exit(1)

    # A blocked event loop would not notice it.
    threading.Thread(target=watch, name="toolbus-lifeline", daemon=True).start()


# -- the service manager, and signals ----------------------------------------------------------------

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    """Tells the service manager of this process, if one asked for it.

    Its variables leave the environment, so that no child speaks for this process.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        given = os.environ if environ is None else environ
        place, period, pid = (given.pop(name, "") for name in _VARIABLES)
        self._place = place
        ours = pid in {"", str(os.getpid())}
        self.period = int(period) / 2e6 if place and ours and period.isdigit() and int(period) else 0.0
        """Seconds between two signs of life; 0 when none are asked for."""

    def ready(self) -> None:
        """Tell that this process serves."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Tell that it takes nothing more, and finishes what runs."""
        self._tell("STOPPING=1")

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Tell again and again that the event loop runs."""
        if not self.period:
            yield
            return
        async with beside(self._keep_notifying()):
            yield

    async def _keep_notifying(self) -> None:
        while True:
            self._tell("WATCHDOG=1")
            await asyncio.sleep(self.period)

    def _tell(self, state: str) -> None:
        if not self._place:
            return
        # The manager may be gone, and must hold up nothing.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.setblocking(False)
            abstract = self._place.startswith("@")
            line.connect("\0" + self._place[1:] if abstract else self._place)
            line.send(state.encode())


_orphaned = threading.Event()


def orphaned() -> bool:
    """Return whether the process that started this one is gone, so that this one ends though nobody has asked for it."""
    return _orphaned.is_set()


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Seconds within which a further signal is the same request: supervisors and terminals signal a process and its group.
_TWICE = 0.5
_passed_over: dict[int, tuple[Callable[[int, object], None], float]] = {}
_begin: list[Callable[[], object]] = []
# True once this process has handled signals itself; after that it ends by itself.
_signalled = False


@contextlib.contextmanager
def ended_by(begin: Callable[[], object], again: Callable[[], object]) -> Iterator[None]:
    """Handle SIGTERM and SIGINT in the event loop.

    Args:
        begin: begins the end of this process; calling it again must change nothing.
        again: called at every signal that comes half a second after the first one or later.
    """
    global _signalled  # noqa: PLW0603 - signals are the process's as well
    loop, first = asyncio.get_running_loop(), math.inf

    def handle() -> None:
        nonlocal first
        if first == math.inf:
            first = time.monotonic()
            begin()
        elif time.monotonic() >= first + _TWICE:
            again()

    _signalled = True
    _begin.append(begin)
    for number in _SIGNALS:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            if first != math.inf:
                _pass_over(number, first + _TWICE)
        _begin.remove(begin)


def _pass_over(number: int, until: float) -> None:
    """Ignore a signal until then (monotonic seconds), so that the first one's repetition does not end what has all but ended."""
    usual = signal.getsignal(number)

    def handle(_number: int, _frame: object) -> None:
        if time.monotonic() >= until:
            signal.signal(number, usual)
            signal.raise_signal(number)

    signal.signal(number, handle)
    _passed_over[number] = handle, until


@atexit.register
def _ignore() -> None:
    """Ignore such a repetition to the end: Python sets its handlers back some time before the process is gone."""
    for number, (handle, until) in _passed_over.items():
        if signal.getsignal(number) is handle and time.monotonic() < until:
            signal.signal(number, signal.SIG_IGN)


def end_process() -> None:
    """Begin the end of this process as SIGTERM does, unless it has begun.

    A second signal would end it at once, and drop what it runs. So the end of its parent is none while it drains.
    """
    for begin in [*_begin]:
        begin()
    if not _signalled:
        os.kill(os.getpid(), signal.SIGTERM)
