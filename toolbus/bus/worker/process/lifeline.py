"""The pair of sockets between a process and a child: the child tells its state there, and stops when the other end closes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from types import TracebackType
from typing import Self

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.protocols import HostId, WorkerId
from toolbus.bus.worker.process.load import Load

# Seconds beyond its grace period after which a child whose parent is gone is ended; the steps of a drain are bounded by fewer.
_MARGIN = 15.0
# A child must not wait for its parent to read.
_MOST_TEXT = 4000
_PIECE = 65_536


class Told(msgspec.Struct, omit_defaults=True):
    """The state that a child has told.

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
    """The parent's end; use it with ``with``.

    Attributes:
        told: what ``read`` has found so far, with the last load.
        ended: whether the child's end is closed.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._unread = b""
        self.told = Told()
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

    def read(self) -> Told:
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
            new = msgspec.json.decode(line, type=Told)
            self.told = _joined(self.told, new)
        return self.told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._theirs.close()
        self._ours.close()


def _joined(told: Told, new: Told) -> Told:
    if new.load is not None:
        return msgspec.structs.replace(told, load=new.load)
    return msgspec.structs.replace(
        new,
        serving=new.serving or told.serving,
        instance=new.instance or told.instance,
        host=new.host or told.host,
        probes=new.probes or told.probes,
        load=told.load,
    )


def tell(descriptor: int | None, told: Told) -> bool:
    """In a child: tell the parent its state; return whether there is one that can hear it."""
    if descriptor is None:
        return False
    told.refused = told.refused[:_MOST_TEXT]
    try:
        os.write(descriptor, msgspec.json.encode(told) + b"\n")
    except OSError:
        return False
    return True


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
        with contextlib.suppress(RuntimeError):
            # The loop may be closed already.
            loop.call_soon_threadsafe(stop)
        time.sleep(grace + margin)
        telemetry.log.error("process.overdue", grace=grace)
        telemetry.flush_logging()
        os._exit(1)

    # A blocked event loop would not notice it.
    threading.Thread(target=watch, name="toolbus-lifeline", daemon=True).start()


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
        task = asyncio.create_task(self._keep_telling())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def _keep_telling(self) -> None:
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


_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_begin: list[Callable[[], object]] = []
# True once this process has heard signals itself; after that it ends by itself.
_heard = False


@contextlib.contextmanager
def ended_by(begin: Callable[[], object], again: Callable[[], object]) -> Iterator[None]:
    """Hear SIGTERM and SIGINT in the event loop.

    Args:
        begin: begins the end of this process; calling it again must change nothing.
        again: called at every signal but the first one.
    """
    global _heard  # noqa: PLW0603 - signals are the process's as well
    loop, signalled = asyncio.get_running_loop(), False

    def hear() -> None:
        nonlocal signalled
        first, signalled = not signalled, True
        (begin if first else again)()

    _heard = True
    _begin.append(begin)
    for number in _SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        _begin.remove(begin)


def end_process() -> None:
    """Begin the end of this process as SIGTERM does, unless it has begun.

    Two signals end a process at once, and drop what it runs. So the end of its parent is none while it drains.
    """
    for begin in [*_begin]:
        begin()
    if not _heard:
        os.kill(os.getpid(), signal.SIGTERM)
