"""A connection, a clock and listeners that do as a test says, so that each step is tested alone, without a server or waiting."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast

import msgspec

from toolbus import Settings
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.protocols import WorkerListener
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.scripts import ALL
from toolbus.bus.broker.take.intake import deliveries
from toolbus.bus.broker.take.requests import BadEntry, Delivery, Fence, RequestStream
from toolbus.bus.broker.transport.connection import ServerInfo
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.values.envelope import Request, encode_request
from toolbus.bus.values.results import BrokerError, ErrorInfo

KEYS = Keys("unit")
SETTINGS = Settings.load({}, url="redis://127.0.0.1:1", namespace="unit", lease=6.0)
FENCE = Fence(b"1.a", b"5")

HANDS_OUT = {"reap", "take", "XREADGROUP", "XREAD"}
"""What must not be sent again after a lost connection: a second answer would not have what the lost one had."""
EITHER_WAY = {"CLIENT", "XTRIM", "AFTER"}
"""What may be sent again or not. Everything else must be: it does the same when it runs twice, and waits for the next connection."""

WORDS = (bytes, str, int)
"""What a command is made of. The real connection refuses None, and a script would read a float as another number."""

Answer = Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
"""What a script, by its keys and arguments, or a command answers; an exception is answered as an error."""


class FakeLink:
    """A connection whose answers the test chooses; ``seen`` has every command and script in order.

    Answers come at once, or, while ``holding``, when ``release`` is called. ``renewals`` has what renews the arguments of each script.
    """

    def __init__(self) -> None:
        self.connected = True
        self.server: ServerInfo | None = ServerInfo("Valkey", "9.0", "run-one", 7)
        self.answers: dict[str, Any] = {}
        self.seen: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = []
        self.options: list[tuple[bool, bool]] = []
        self.channels: list[str] = []
        self.holding = False
        self.flushes = 0
        self.renewals: dict[str, Any] = {}
        self._held: list[Callable[[], None]] = []

    @property
    def names(self) -> list[str]:
        """The names of what was sent, scripts by their names."""
        return [name for name, _, _ in self.seen]

    def args(self, name: str) -> list[tuple[Any, ...]]:
        """The arguments of each time that something was sent."""
        return [args for each, _, args in self.seen if each == name]

    def keys(self, name: str) -> list[tuple[Any, ...]]:
        """The keys of each time that a script was sent."""
        return [keys for each, keys, _ in self.seen if each == name]

    def release(self) -> None:
        """Answer the first command that is held."""
        self._held.pop(0)()

    @property
    def held(self) -> int:
        """Return how many commands wait for their answers."""
        return len(self._held)

    def send(self, args: tuple[Any, ...], on_reply: Any = None, *, repeatable: bool = False, same_server: bool = False) -> None:
        """Take a command."""
        self._take(str(args[0]), (), tuple(args[1:]), on_reply, repeatable, same_server)

    def run(
        self,
        script: Any,
        keys: Any,
        args: Any,
        on_reply: Any = None,
        *,
        repeatable: bool = False,
        same_server: bool = False,
        renew: Any = None,
    ) -> None:
        """Take a script."""
        assert script in ALL
        self.renewals[script.name] = renew
        self._take(script.name.rpartition("/")[2], tuple(keys), tuple(args), on_reply, repeatable, same_server)

    def gather(self) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Count flushes."""
        self.flushes += 1

    def unsubscribe(self, channel: str) -> None:
        """Take note of it."""
        self.channels.remove(channel)

    def subscribe(self, channel: str) -> None:
        """Take note of a channel."""
        self.channels.append(channel)

    async def execute(self, *args: Any, repeatable: bool = False) -> Any:
        """Answer a command."""
        return self._settled(str(args[0]), (), tuple(args[1:]), repeatable)

    async def execute_script(self, script: Any, keys: Any, args: Any, *, repeatable: bool = False) -> Any:
        """Answer a script."""
        return self._settled(script.name.rpartition("/")[2], tuple(keys), tuple(args), repeatable)

    def _take(self, name: str, keys: Any, args: Any, on_reply: Any, repeatable: bool, same_server: bool) -> None:
        self._check(name, keys, args, repeatable)
        self.options.append((repeatable, same_server))

        def say() -> None:
            if on_reply is not None:
                on_reply(self._answer(name, keys, args))

        if self.holding:
            self._held.append(say)
        else:
            say()

    def _settled(self, name: str, keys: Any, args: Any, repeatable: bool) -> Any:
        self._check(name, keys, args, repeatable)
        self.options.append((repeatable, False))
        answer = self._answer(name, keys, args)
        if isinstance(answer, BrokerError):
            raise answer
        return answer

    def _check(self, name: str, keys: Any, args: Any, repeatable: bool) -> None:
        assert name in EITHER_WAY or repeatable is (name not in HANDS_OUT), f"{name}: {repeatable}"
        assert all(type(key) in {bytes, str} for key in keys), f"{name}: {keys}"
        assert all(type(word) in WORDS for word in args), f"{name}: {args}"
        self.seen.append((name, keys, args))

    def _answer(self, name: str, keys: Any, args: Any) -> Any:
        answer = self.answers.get(name)
        return answer(keys, args) if callable(answer) else answer


class Times:
    """A local clock that is set by hand."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the local time."""
        return self.now


class FakeSessions:
    """Takes note of what concerns sessions."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.callers: set[str] = set()
        self.refused: set[tuple[str, str, str]] = set()

    def closed(self, service: str, user: str, session: str) -> None:
        """Take note."""
        self.said.append(("closed", service, user, session))

    def left(self, service: str, agent: str) -> None:
        """Take note."""
        self.said.append(("left", service, agent))

    def moved(self, service: str, user: str, session: str) -> None:
        """Take note."""
        self.said.append(("moved", service, user, session))

    def is_open(self, service: str, user: str, session: str) -> bool:
        """Return whether no call of it was refused before it opened the session."""
        return (service, user, session) not in self.refused

    def inherited(self, service: str, user: str, session: str, upto: tuple[int, ...]) -> None:
        """Take note."""
        self.said.append(("inherited", service, user, session, upto))

    def agents(self) -> set[str]:
        """Return the callers that the test names."""
        return self.callers

    def gone(self, agents: set[str]) -> None:
        """Take note."""
        self.said.append(("gone", agents))


class FakeListener:
    """A worker with ``slots``, which takes note of what it is told."""

    def __init__(self, slots: int = 10) -> None:
        self.slots = slots
        self.room = True
        self.running = False
        self.sessions = FakeSessions()
        self.recovered: list[Delivery] = []
        self.lost: list[Delivery] = []
        self.let_go: list[tuple[Delivery, bool]] = []
        self.cancelled: list[str] = []
        self.extended: list[tuple[str, float]] = []
        self.replies_gone: list[tuple[str, ErrorInfo]] = []
        self.left_over = 0
        self.when_recovered: Callable[[], None] = lambda: None

    def on_recovered(self, deliveries: Sequence[Delivery]) -> None:
        """Take note, and hold what came."""
        self.recovered += deliveries
        self.slots -= len(deliveries)
        self.when_recovered()

    def flexible(self) -> bool:
        """Return whether there could be room."""
        return self.room

    def on_room_wanted(self) -> None:
        """Count."""
        self.left_over += 1

    def on_cancelled(self, call: str, why: str = "cancelled") -> None:
        """Take note."""
        self.cancelled.append(call if why == "cancelled" else f"{call} {why}")

    def on_extended(self, call: str, deadline: float) -> None:
        """Take note."""
        self.extended.append((call, deadline))

    def on_lost(self, delivery: Delivery) -> None:
        """Take note."""
        self.lost.append(delivery)

    def on_let_go(self, delivery: Delivery, ended: bool) -> None:
        """Take note."""
        self.let_go.append((delivery, ended))

    def on_replies_gone(self, replies: str, error: ErrorInfo) -> None:
        """Take note."""
        self.replies_gone.append((replies, error))

    def on_failed(self, error: Exception) -> None:
        """Fail the test."""
        raise error

    def free_slots(self) -> int:
        """Return the slots that are left."""
        return self.slots

    def busy(self) -> bool:
        """Return whether anything runs."""
        return self.running


class Bench:
    """One worker's stream ``pool`` on a fake connection, under a fence that is known."""

    def __init__(self, slots: int = 10) -> None:
        self.link = FakeLink()
        self.settings = SETTINGS
        self.times = Times()
        self.clock = ServerClock(SETTINGS.lease, self.times)
        self.listener = FakeListener(slots)
        self.stream = self.new_stream("pool")
        self.streams = {"pool": self.stream}
        self.unreadable: list[BadEntry] = []
        self.started: list[str] = []
        self.coroutines: list[Coroutine[Any, Any, None]] = []

    def new_stream(self, service: str) -> RequestStream:
        """Return a stream of this worker."""
        lost, let_go, set_aside = self.listener.on_lost, self.listener.on_let_go, self.set_aside
        made = RequestStream(KEYS, service, service, "mine", self.clock, SETTINGS, on_lost=lost, on_let_go=let_go, set_aside=set_aside)
        made.fence_is(*FENCE)
        return made

    @property
    def own(self) -> tuple[Link, Keys, ServerClock, str, dict[str, RequestStream], WorkerListener, Settings]:
        """The worker, as each of its steps is given it."""
        return self.as_link, KEYS, self.clock, "mine", self.streams, self.as_listener, self.settings

    @property
    def as_link(self) -> Link:
        """The fake connection as the steps want it."""
        return cast("Link", self.link)

    @property
    def as_listener(self) -> WorkerListener:
        """The fake worker as the steps want it."""
        return cast("WorkerListener", self.listener)

    def set_aside(self, stream: RequestStream, bad: BadEntry) -> None:
        """Take note of an entry whose request can't be read."""
        assert stream in self.streams.values()
        self.unreadable.append(bad)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Take note of a coroutine that is to run beside the others."""
        self.started.append(work.__qualname__.rpartition(".")[2])
        self.coroutines.append(work)

    async def settle(self) -> None:
        """Run what was started."""
        while self.coroutines:
            await self.coroutines.pop(0)

    def hold(self, entry: bytes = b"1-0", *, attempt: int = 1, fence: Fence = FENCE, **fields: Any) -> Delivery:
        """Hold a delivery of the stream."""
        [made] = deliveries(self.stream, [(entry, entry_fields(request(entry, **fields)))], fence, attempt)
        return made

    def forget(self) -> None:
        """Close what was started and not run."""
        for work in self.coroutines:
            work.close()


def request(entry: bytes, **fields: Any) -> Request:
    """Return a request that is told apart by its entry."""
    base = Request(f"call-{entry.decode()}", "agent", "pool", "tool", timeout=30.0)
    return msgspec.structs.replace(base, **fields)


def entry_fields(wanted: Request, deadline_ms: int = 160_000, server: bytes = b"") -> list[bytes]:
    """Return the fields of a stream entry."""
    made = [b"r", encode_request(wanted, limit=1_000_000), b"d", str(deadline_ms).encode()]
    return [*made, b"s", server] if server else made
