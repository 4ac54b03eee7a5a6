"""Dead letters: how they are listed, read, published again and dropped, on fakeredis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from tests.broker.conftest import FakeServer
from tests.broker.fakes import KEYS, SETTINGS
from toolbus.bus.broker.lease.dead_letters import DeadLetter, DeadLetters, is_letter_id
from toolbus.bus.values.envelope import Request, decode_request, encode_request
from toolbus.bus.values.results import BrokerError, ConfigurationError

pytestmark = pytest.mark.anyio

REQUEST = Request("call-1", "agent", "pool", "lift", arguments={"kg": 1}, timeout=30.0, shared=True, events=True, traceparent="00-1-2-01")


class Desk:
    """The dead letters of a namespace in a server of this process, which is the connection to it, too."""

    def __init__(self) -> None:
        self.redis = FakeServer()
        # As on the wire.
        self.redis.response_callbacks.clear()  # type: ignore[attr-defined]
        self.letters = DeadLetters(cast("Any", self), KEYS, SETTINGS)

    async def execute(self, *args: Any, repeatable: bool = False) -> Any:
        """Carry out a command."""
        return self.redis.execute_command(*args)

    async def execute_script(self, script: Any, keys: tuple[str, ...], args: tuple[Any, ...]) -> Any:
        """Run a script."""
        return self.redis.eval(script.source, len(keys), *keys, *args)

    def bury(self, queue: str, *ids: str, **fields: Any) -> None:
        """Set requests aside."""
        said = {"r": encode_request(REQUEST, limit=10_000), "reason": "failed", "attempts": 3, "error": "broken", **fields}
        for each in ids:
            self.redis.execute_command("XADD", KEYS.dead_letters(queue), each, *(part for field in said.items() for part in field))


@pytest.fixture
def desk() -> Iterator[Desk]:
    """Return the dead letters of a namespace."""
    made = Desk()
    yield made
    made.redis.close()


async def test_queues_with_dead_letters_are_listed_by_name(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Queues are found among keys of other kinds and namespaces, however many; a name that is no text is skipped and logged."""
    assert await desk.letters.queues() == []
    for number in range(1100):
        desk.redis.execute_command("SET", f"{KEYS.prefix}other:{number}", "")
    for queue in ("pool", "desk"):
        desk.bury(queue, "1-1")
    desk.redis.execute_command("XADD", KEYS.dead_letters("").encode() + b"\xff", "1-1", "r", "")
    desk.redis.execute_command("XADD", KEYS.dead_letters("far").replace("unit", "units"), "1-1", "r", "")
    assert await desk.letters.queues() == ["desk", "pool"]
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"value.unreadable key={KEYS.dead_letters('')}\\xff error=")
    assert "is not UTF-8" in said


async def test_the_newest_letters_come_first(desk: Desk) -> None:
    """As many letters as were asked for are read, each with what it says of its failure and with its request."""
    desk.bury("pool", "1700000000000-0", "1700000000500-0", "1700000000500-1")
    newest = await desk.letters.newest("pool", 2)
    assert [letter.id for letter in newest] == ["1700000000500-1", "1700000000500-0"]
    assert newest[0] == DeadLetter(newest[0].id, "pool", "failed", 3, "broken", encode_request(REQUEST, limit=10_000), REQUEST)
    assert newest[0].at == 1_700_000_000.5
    assert await desk.letters.get("pool", "1700000000500-0") == newest[1]


async def test_all_ids_are_listed_oldest_first(desk: Desk) -> None:
    """The ids of all letters are listed in order, also of more letters than one answer has."""
    for number in (0, 255, 256, 600):
        ids = [f"{each}-0" for each in range(1, number + 1)]
        desk.bury(f"q{number}", *ids)
        assert await desk.letters.ids(f"q{number}") == ids


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"attempts": "many"}, {"attempts": 0}),
        ({"reason": "r" * 200, "error": "é" * 8_000}, {"reason": "r" * 120, "error": "é" * 4_000}),
        ({"error": b"\xff"}, {"error": "�"}),
        ({"r": "{"}, {"request": None, "document": b"{"}),
        ({"r": encode_request(REQUEST, limit=10_000)[:-1] + b" " * 1_000 + b"}"}, {"request": REQUEST}),
    ],
)
async def test_what_any_client_may_have_written_is_read_all_the_same(desk: Desk, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each part of a letter that can't be read is left out, and long ones are cut."""
    desk.bury("pool", "5-5", **fields)
    [letter] = await desk.letters.newest("pool", 10)
    assert {name: getattr(letter, name) for name in expected} == expected


async def test_a_letter_without_fields_is_one_that_says_nothing(desk: Desk) -> None:
    """A letter without fields has empty ones, a time that can be shown, and can be dropped."""
    desk.redis.execute_command("XADD", KEYS.dead_letters("pool"), "99999999999999999-0", "x", "y")
    [letter] = await desk.letters.newest("pool", 10)
    assert letter == DeadLetter("99999999999999999-0", "pool", "", 0, "", b"", None)
    assert letter.at == 253_402_300_799, "the last second that a date can show"
    await desk.letters.drop("pool", letter.id)
    assert await desk.letters.ids("pool") == []


@pytest.mark.parametrize("limit", [1, 0])
async def test_the_largest_request_can_be_read(desk: Desk, limit: int) -> None:
    """A request of up to 1,024 bytes more than may be published can be read from its letter, and a longer one can't."""
    document = encode_request(REQUEST, limit=10_000)
    desk.letters._settings = msgspec.structs.replace(SETTINGS, max_request=len(document) - 1024 - 1 + limit)
    desk.bury("pool", "1-1")
    [letter] = await desk.letters.newest("pool", 1)
    assert letter.request == (REQUEST if limit else None)


@pytest.mark.parametrize(("key", "timeout"), [("", None), ("mine", 5.0)])
async def test_a_letter_is_published_again_as_a_new_call(desk: Desk, key: str, timeout: float | None) -> None:
    """The new call has no caller and the idempotency key of the first one, or its id; the letter is gone."""
    desk.redis.execute_command("XADD", KEYS.queue("pool"), "1-0", "r", "")
    first = msgspec.structs.replace(REQUEST, idempotency_key=key)
    desk.bury("pool", "7-0", r=encode_request(first, limit=10_000))
    made = await desk.letters.redrive("pool", "7-0", limit=2, timeout=timeout)
    _, (_, flat) = desk.redis.execute_command("XRANGE", KEYS.queue("pool"), "-", "+")
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    again = decode_request(fields[b"r"], limit=10_000)
    expected = {"id": made, "agent": "", "shared": False, "events": False, "traceparent": "", "idempotency_key": key or "call-1"}
    assert again == msgspec.structs.replace(first, timeout=timeout or 30.0, **expected)
    assert made not in {"", "call-1"}
    seconds, micros = desk.redis.execute_command("TIME")
    left = int(fields[b"d"]) / 1000 - int(seconds) - int(micros) / 1_000_000
    assert left == pytest.approx(timeout or 30.0, abs=2.0)
    with pytest.raises(ConfigurationError, match=r"no dead letter 7-0 of 'pool'; `toolbus operate dead list pool`"):
        await desk.letters.redrive("pool", "7-0", limit=2)


async def test_a_letter_that_can_not_run_again_stays(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says why: nobody serves the queue, it is full, the request can't be read, or somebody else was faster."""
    desk.bury("pool", "7-0")
    with pytest.raises(ConfigurationError, match=r"^nobody serves the queue 'pool'; start a worker first \(7-0 stays where it is\)$"):
        await desk.letters.redrive("pool", "7-0", limit=2)
    for entry in ("1-0", "2-0"):
        desk.redis.execute_command("XADD", KEYS.queue("pool"), entry, "r", "")
    with pytest.raises(BrokerError, match=r"^the queue 'pool' holds 2 requests and takes no more; 7-0 stays where it is$"):
        await desk.letters.redrive("pool", "7-0", limit=2)
    desk.bury("pool", "8-0", r="{", error="torn")
    with pytest.raises(ConfigurationError, match=r"^the request of 8-0 can't be read, so it can't be run again: torn$"):
        await desk.letters.redrive("pool", "8-0", limit=9)
    assert await desk.letters.ids("pool") == ["7-0", "8-0"]
    monkeypatch.setattr(desk, "execute_script", _gone)
    with pytest.raises(ConfigurationError, match="no dead letter 7-0"):
        await desk.letters.redrive("pool", "7-0", limit=9)


async def _gone(*_: Any) -> Any:
    return [b"gone"]


async def test_only_a_letter_that_is_there_can_be_read_and_dropped(desk: Desk) -> None:
    """An id without a letter is an error, and so is a text that is no id, with an example of one."""
    desk.bury("pool", "7-0", "8-0")
    for step in (desk.letters.get, desk.letters.drop):
        with pytest.raises(ConfigurationError, match=r"^there is no dead letter 9-0 of 'pool'"):
            await step("pool", "9-0")
        with pytest.raises(ConfigurationError, match=r"^'-' is no id of a dead letter; they look like 1790000000000-0$"):
            await step("pool", "-")
    await desk.letters.drop("pool", "7-0")
    assert await desk.letters.ids("pool") == ["8-0"]


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("1-0", True), (f"{2**64 - 1}-{2**64 - 1}", True), (f"{2**64}-0", False), (f"0-{2**64}", False), ("1", False), ("1-0 ", False)],
)
def test_an_id_is_two_numbers_of_64_bits(text: str, is_one: bool) -> None:
    """An id is two numbers below 2^64 with a dash between them, and nothing before or behind them."""
    assert is_letter_id(text) is is_one
