"""Hostile values in every key and every field of the protocol, while a canary calls: it is answered, and what is junk is said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import redis

from tests.faults import hostile
from tests.faults.canary import SERVICE, Canary
from tests.servers import eventually
from tests.tiers import some
from toolbus import Settings, ToolBus, ToolbusError, ToolService, Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.lease.recover import Upkeep
from toolbus.bus.broker.replies.reader import ReplyReader
from toolbus.bus.broker.server import reading
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.take.intake import Intake
from toolbus.bus.broker.take.requests import GROUP
from toolbus.bus.telemetry.background import MOST_FAILURES
from toolbus.bus.telemetry.logger import MOST_LINES
from toolbus.bus.values.envelope import new_id
from toolbus.bus.values.results import BrokerError

pytestmark = pytest.mark.anyio

CHANNELS = {"wake", "wake_all", "confirmed", "creations_told"}
# What Python reads of a key is said; Lua puts right what it can't use.
READ_HERE = {"cancelled", "confirmations", "items", "queue", "replies", "services", "usage", "wake"}


@tool(service="late", effect="read")
async def late_comer() -> str:
    """Come late."""
    return "late"


def test_every_key_of_the_protocol_is_tried() -> None:
    """A key that is added to Keys is added to the hostile places, too."""
    keys = Keys("x")
    places = hostile.places(keys, hostile.Names("s", "a", "i", "c", "d", "2026-01-01"))
    assert set(places) == set(hostile.KEY_NAMES), "add the key to places() in tests/faults/hostile.py"
    known = {**keys.shared_by_all(), **keys.of_service("s", "s"), **keys.of_agent("a")}
    tried = {place.key: place.kind for place in places.values()}
    assert known.items() <= tried.items()


@pytest.mark.parametrize("name", some(READ_HERE, hostile.KEY_NAMES))
async def test_hostile_values_stop_nobody(canary: Canary, name: str) -> None:
    """Calls are answered, whatever stands in a key or its fields, before and after everybody reads it anew."""
    place = canary.place(name)
    await asyncio.to_thread(hostile.fill, canary.client, place)
    await canary.sings()
    await asyncio.to_thread(canary.cut)
    await canary.is_well()
    canary.is_quiet()
    unreadable = canary.said()["value.unreadable"] + canary.said()["registry.unreadable"] + canary.said()["request.malformed"]
    assert bool(unreadable) or name not in READ_HERE
    canary.forget(place)


@pytest.mark.parametrize(
    "name",
    some(["fence", "live", "log", "names", "queue"], [name for name in hostile.KEY_NAMES if name not in CHANNELS]),
)
async def test_a_key_of_another_type_stops_nobody(canary: Canary, name: str) -> None:
    """A key that is replaced by one of another type is made anew, or concerns nobody but its own call."""
    place = canary.place(name)
    await asyncio.to_thread(hostile.replace, canary.client, place)
    await canary.sings()
    await asyncio.to_thread(canary.cut)
    await canary.is_well()
    canary.is_quiet()
    canary.forget(place)


@pytest.mark.parametrize("name", some(["queue", "replies"], ["log", "queue", "replies", "dead_letters", "call"]))
async def test_the_highest_possible_id_stops_nobody(canary: Canary, name: str) -> None:
    """A stream whose ids are used up takes nothing more, and is made anew."""
    place = canary.place(name)
    canary.client.xadd(place.key, {"o": "1"}, id=hostile.HIGHEST)
    await canary.sings()
    # What is registered or set aside from now on is found.
    async with Worker(late_comer, settings=canary.settings):
        await canary.bus.wait_for_tool("late_comer", 20.0)
    canary.client.xadd(canary.keys.queue(SERVICE), {"r": "junk", "d": "1"})
    await eventually(lambda: canary.client.xlen(canary.keys.queue(SERVICE)) == 0)
    await asyncio.to_thread(canary.cut)
    await canary.is_well()
    canary.is_quiet()
    canary.forget(place)


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("waiting", [False, True])
async def test_a_group_beyond_its_stream_stops_nobody(canary: Canary, waiting: bool) -> None:
    """A group that stands beyond its stream's newest entry is set back within about a lease: what waits is run, what runs is run once."""
    queue = canary.keys.queue(SERVICE)
    running = asyncio.create_task(canary.bus.call("canary_echo", {"text": "begun", "seconds": 4.0}, timeout=20.0))
    await eventually(lambda: canary.client.xpending(queue, GROUP)["pending"] == 1)
    canary.client.xgroup_setid(queue, GROUP, hostile.HIGHEST)
    if waiting:
        assert (await canary.bus.call("canary_pay", {"text": "waited"}, timeout=20.0)).output == "waited"
    await canary.sings()
    begun = await running
    assert (begun.output, begun.meta.attempts) == ("begun", 1)
    assert canary.said()["key.group_moved"] == 1
    await asyncio.to_thread(canary.cut)
    await canary.is_well()
    canary.is_quiet()
    assert canary.said()["key.group_moved"] == 1


async def test_hostile_requests_are_set_aside_or_answered(canary: Canary) -> None:
    """Requests with every field hostile end; the queue is empty in the end, and so is the worker."""
    pipe = canary.client.pipeline(transaction=False)
    later = str(int(canary.client.time()[0]) * 1000 + 20_000)
    for request in hostile.requests(SERVICE):
        pipe.xadd(canary.keys.queue(SERVICE), {"r": request, "d": later})
    slow = b'{"id":"c2","agent":"a1","service":"canary","tool":"canary_echo","arguments":{"text":"x","seconds":0.3}}'
    for deadline in hostile.BYTES:
        pipe.xadd(canary.keys.queue(SERVICE), {"r": slow, "d": deadline})
        pipe.xadd(canary.keys.queue(SERVICE), {"r": slow, "d": deadline, "s": "other"})
    await asyncio.to_thread(pipe.execute)
    await eventually(lambda: canary.client.xlen(canary.keys.queue(SERVICE)) == 0, timeout=60.0)
    await canary.is_well()
    canary.is_quiet()
    assert canary.said()["request.malformed"] == MOST_LINES
    letters = canary.client.xlen(canary.keys.dead_letters(SERVICE))
    assert letters == canary.worker.statistics()["malformed"]
    assert letters > MOST_LINES


@pytest.mark.usefixtures("slow")
async def test_hostile_frames_end_no_call_but_their_own(canary: Canary) -> None:
    """Frames with every field hostile reach a call that waits, and others that don't; the reader goes on, and the log stays small."""
    async with canary.bus.stream("canary_echo", {"text": "whole", "seconds": 3.0}, timeout=20.0) as call:
        frames = list(hostile.frames(call.id))
        pipe = canary.client.pipeline(transaction=False)
        for start in range(0, len(frames), 200):
            pipe.xadd(canary.keys.replies(canary.bus.agent), {"f": b"[" + b",".join(frames[start : start + 200]) + b"]"})
        for frame in frames:
            pipe.xadd(canary.keys.replies(canary.bus.agent), {"f": b"[" + frame + b"]"})
        await asyncio.to_thread(pipe.execute)
        # Whoever may write there may answer, too; but it ends, and within its time.
        await call.result()
    await canary.is_well()
    canary.is_quiet()
    assert canary.said()["frame.malformed"] == MOST_LINES


async def test_hostile_changes_of_the_registry_are_left_out(canary: Canary) -> None:
    """Entries of the change log that follow each other as they should, with every field hostile, change nothing that is known."""
    token = canary.client.hget(canary.keys.meta, "token") or b""
    pipe = canary.client.pipeline(transaction=False)
    changes = [
        (op, key, document)
        for op in ("up", "down", "gone", "item")
        for key, document in [*((value, b"{}") for value in hostile.BYTES), *(("tool/x", value) for value in hostile.JSON)]
    ]
    for number, (op, key, document) in enumerate(changes):
        fields = {"op": op, "key": key, "doc": document, "prev": token, "token": (token := b"hostile.%d" % number)}
        pipe.xadd(canary.keys.log, fields)
    pipe.hset(canary.keys.meta, "token", token)
    await asyncio.to_thread(pipe.execute)
    await eventually(lambda: canary.said()["registry.unreadable"] > 0)
    await canary.is_well()
    canary.is_quiet()
    assert canary.said()["registry.unreadable"] == MOST_LINES


async def test_a_bad_entry_costs_one_line(canary: Canary) -> None:
    """An entry of tens of thousands of bad frames is one line, and only a thousand of them are looked at."""
    canary.client.xadd(canary.keys.replies(canary.bus.agent), {"f": b"[" + b",".join([b"0"] * 50_000) + b"]"})
    await eventually(lambda: canary.bus.statistics()["malformed"] == 1_000)
    await canary.sings()
    assert canary.said()["frame.malformed"] == 1


async def test_a_note_that_cannot_be_read_leaves_the_deadline(canary: Canary) -> None:
    """A request whose note has 400 digits is taken over and answered, and the note is said, with its key."""
    queue, agent = canary.keys.queue(SERVICE), canary.bus.agent
    for note in (b"9" * 400, b"nan nan nan", b"1 2", b"\xff"):
        request = b'{"id":"%b","agent":"%b","service":"canary","tool":"canary_echo","arguments":{"text":"x"}}' % (
            new_id().encode(),
            agent.encode(),
        )
        later = str(int(canary.client.time()[0]) * 1000 + 20_000)
        # As a worker that drains hands it back.
        script = """
            local entry = redis.call('XADD', KEYS[1], '*', 'r', ARGV[1], 'd', ARGV[2])
            redis.call('XREADGROUP', 'GROUP', 'g', '~back', 'COUNT', 100, 'STREAMS', KEYS[1], '>')
            redis.call('SET', ARGV[3] .. entry, ARGV[4], 'PX', 60000)
            redis.call('PUBLISH', ARGV[5], 'back canary')"""
        canary.client.eval(script, 1, queue, request, later, canary.keys.pause(SERVICE, ""), note, canary.keys.wake(SERVICE))
        await eventually(lambda: canary.client.xlen(queue) == 0)
    await canary.is_well()
    canary.is_quiet()
    assert canary.said()["value.unreadable"] == 4


async def test_what_cannot_be_read_is_said_once(canary: Canary) -> None:
    """A name that can't be read is logged with its key when it is first read, and not each time."""
    canary.client.hset(canary.keys.items, b"tool/\xff", "{}")
    canary.client.hset(canary.keys.services, b"\xff", "{}")
    canary.client.hset(canary.keys.services, "other", "{}")
    canary.client.zadd(canary.keys.cancelled(SERVICE), {b"\xff": 1e15})
    for _ in range(3):
        await asyncio.to_thread(canary.cut)
        await canary.sings()
    assert canary.said()["value.unreadable"] == 3
    assert canary.said()["registry.unreadable"] == 1
    canary.forget(canary.place("items"))


# -- background tasks ---------------------------------------------------------------------------------


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tasks are given up within a second."""
    monkeypatch.setattr("toolbus.bus.telemetry.background._MOST", 0.05)
    monkeypatch.setattr("toolbus.bus.telemetry.background._FIRST", 0.01)
    return iter(())


async def test_a_failing_task_begins_again(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the reader is logged with its traceback, and costs neither the connections nor the calls."""
    failures = 3

    def failing(self: ReplyReader, entries: list[object]) -> bool:
        nonlocal failures
        failures -= 1
        monkeypatch.setattr(ReplyReader, "_take", taking if failures == 0 else failing)
        raise RuntimeError("a bug")

    taking = ReplyReader._take
    monkeypatch.setattr(ReplyReader, "_take", failing)
    assert (await canary.bus.call("canary_echo", {"text": "late"}, timeout=20.0)).output == "late"
    assert canary.said()["task.failed"] == 3


@pytest.mark.usefixtures("hurried")
async def test_an_agent_that_cannot_read_says_so_and_ends_its_calls(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    """When reading fails for good, calls end long before their time, and new ones are refused."""

    def failing(self: ReplyReader, entries: list[object]) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ReplyReader, "_take", failing)
    running, once = await asyncio.gather(
        canary.bus.call("canary_echo", {"text": "x"}, timeout=30.0), canary.bus.call("canary_pay", {"text": "x"}, timeout=30.0)
    )
    assert running.error is not None
    assert (running.error.type, running.error.code) == ("unavailable", "bus_failed")
    assert once.error is not None
    assert once.error.type == "outcome_unknown"
    refused = await canary.bus.call("canary_echo", {"text": "x"}, timeout=30.0)
    assert refused.error is not None
    assert refused.error.code == "bus_failed"
    assert canary.said()["task.failed"] == MOST_FAILURES - 1
    assert canary.said()["task.given_up"] == 1


class Handing(ToolService):
    """A tool whose first run never ends."""

    id = SERVICE

    def __init__(self) -> None:
        self._begun = 0

    @tool(effect="read")
    async def canary_hold(self, text: str) -> str:
        """Give a text back, at the second time."""
        self._begun += 1
        if self._begun == 1:
            await asyncio.Event().wait()
        return text


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("broken", ["take", "_upkeep"])
async def test_a_worker_that_cannot_go_on_leaves(server: str, namespace: str, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """A worker whose taking or upkeep fails for good is unhealthy, hands back what it runs, beats no more, and ends with the reason."""
    settings = Settings.load({}, url=server, namespace=namespace, lease=1.0, grace=0.2)
    async with ToolBus(settings=settings) as bus:
        service = Handing()
        worker = Worker(service, settings=settings)
        running = asyncio.create_task(worker.run())
        await bus.wait_for_tool("canary_hold")
        call = asyncio.create_task(bus.call("canary_hold", {"text": "handed on"}, timeout=30.0))
        await eventually(lambda: worker.started == 1)

        async def failing(*_: object, **__: object) -> None:
            raise RuntimeError("a bug")

        if broken == "take":
            monkeypatch.setattr(Intake, "take", failing)
        else:
            monkeypatch.setattr(Upkeep, "_reap", failing)
            monkeypatch.setattr("toolbus.bus.broker.lease.recover.random.uniform", lambda *_: 0.01)
        with pytest.raises(ToolbusError, match="a bug"):
            await asyncio.wait_for(running, 30.0)
        assert not worker.healthy
        with redis.Redis.from_url(server) as client:
            assert client.zscore(Keys(namespace).live, f"{SERVICE}/{worker.instance}") is None
        async with Admin(settings) as admin:
            assert [each.state for each in await admin.services()] == ["down"], "it was not withdrawn on purpose"
        monkeypatch.undo()
        async with Worker(service, settings=settings):
            assert (await call).output == "handed on"


# -- readers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [*hostile.BYTES, None, 1.5, True, [], 10**400, float("nan"), float("inf"), "\ud800", "٣"])
def test_readers_raise_nothing_else(value: object) -> None:
    """A reader returns what it promises, bounded and finite, or raises EnvelopeError."""
    for read, kind in (
        (reading.text, str),
        (reading.identifier, str),
        (reading.integer, int),
        (lambda said: reading.document(said, dict[str, float]), dict),
    ):
        try:
            found = read(value)
        except reading.EnvelopeError as error:
            found = str(error)
        assert type(found) in {kind, str}
        assert not isinstance(found, str) or len(found) <= reading.MOST_TEXT
        assert not isinstance(found, int) or 0 <= found <= reading.MOST_INTEGER


def test_a_number_is_below_what_every_language_counts_exactly() -> None:
    """2^53 is refused, as the protocol says, and the number before it is read."""
    assert reading.integer(b"9007199254740991") == 2**53 - 1
    with pytest.raises(reading.EnvelopeError, match="is not between"):
        reading.integer(b"9007199254740992")


def test_broker_errors_are_no_reading_errors() -> None:
    """An unreadable value is never taken for a refusal of the server, which would be tried again."""
    assert not issubclass(reading.EnvelopeError, BrokerError)
