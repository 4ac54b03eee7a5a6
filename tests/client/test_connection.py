"""A bus keeps while it is open: the calls that wait for a worker, those that are given up, and the sessions that it has used."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.servers import elapse
from tests.virtual_time import VirtualLoop
from toolbus.bus.client.calls import connection
from toolbus.bus.client.calls.connection import Arrival, UsedSessions, WaitingCalls, inquire, may_appear, unfinished_of
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.support.deadlines import Deadlines
from toolbus.bus.values.envelope import NEW_STATE, Request
from toolbus.bus.values.results import BrokerUnavailable, ErrorInfo

pytestmark = pytest.mark.anyio

ABSENT = ErrorInfo("not_found", message="nobody has it")
REFUSED = ErrorInfo("invalid_arguments", message="no")
UNSURE = "it may or may not have taken effect"


@pytest.fixture
def anyio_backend() -> Any:
    """Run each test on a loop whose time passes at once."""
    return ("asyncio", {"loop_factory": VirtualLoop})


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the time of the loop be that of the calls."""
    monkeypatch.setattr(connection, "time", SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time()))


class Call:
    """A call that is not published yet, and takes note of its end."""

    def __init__(self, *, superseded: bool | None = None) -> None:
        self.grant = None if superseded is None else SimpleNamespace(superseded=superseded)
        self.done = False
        self.errors: list[ErrorInfo] = []
        self.cast = cast("Any", self)

    def complete_with(self, error: ErrorInfo) -> None:
        """Take note."""
        self.errors.append(error)


class Place:
    """Calls that wait until the catalogue changes; what keeps them from being published is ``problems``, one after another."""

    def __init__(self, *problems: ErrorInfo | None) -> None:
        self.problems = list(problems)
        self.catalogue = Catalogue()
        self.waiting = WaitingCalls()
        self.tries = 0

    def publish(self, _call: Any) -> ErrorInfo | None:
        """Try to publish a call."""
        self.tries += 1
        return self.problems.pop(0) if len(self.problems) > 1 else self.problems[0]

    async def turns(self, task: asyncio.Task[Any], most: int = 5) -> None:
        """Change the registry until a task has ended."""
        for _ in range(most):
            await asyncio.sleep(0)
            if task.done():
                return
            self.catalogue.wake()


@pytest.mark.parametrize(
    ("problems", "superseded", "tries", "errors"),
    [
        ([None], None, 1, []),
        ([ABSENT, ErrorInfo("unavailable"), None], None, 3, []),
        ([ABSENT, REFUSED], None, 2, [REFUSED]),
        ([ABSENT, None], False, 2, []),
        ([ABSENT, None], True, 1, [ABSENT]),
    ],
)
async def test_a_call_is_published_when_a_worker_appears(
    problems: list[ErrorInfo | None], superseded: bool | None, tries: int, errors: list[ErrorInfo]
) -> None:
    """A call is tried again after each change of the registry, and ends with the reason when no worker could help."""
    place, call = Place(*problems), Call(superseded=superseded)
    task = asyncio.create_task(place.waiting.publish(call.cast, place.publish, place.catalogue, 60.0))
    await place.turns(task)
    await task
    assert (place.tries, call.errors, len(place.waiting)) == (tries, errors, 0)


async def test_what_waits_is_published_in_its_order_before_what_comes_later() -> None:
    """A worker that appears publishes the calls that wait for it at once; one that can't be published says why, and holds no other up."""
    place, published = Place(ABSENT), list[int]()

    def publish(number: int) -> ErrorInfo | None:
        if place.problems == [ABSENT]:
            return ABSENT
        if number == 1:
            raise ValueError("of the second call")
        published.append(number)
        return None

    def wait(number: int, call: Call) -> asyncio.Task[None]:
        return asyncio.create_task(place.waiting.publish(call.cast, lambda _: publish(number), place.catalogue, 60.0))

    tasks = [wait(number, Call()) for number in range(3)]
    await asyncio.sleep(0)
    place.problems = [REFUSED]
    place.catalogue.wake()
    publish(3)
    assert published == [0, 2, 3]
    place.catalogue.wake()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(each) for each in errors] == ["None", "of the second call", "None"]
    assert published == [0, 2, 3]


async def test_a_call_for_which_no_worker_appears_ends_in_its_time() -> None:
    """A waiting call is listed, its own time goes on, and it ends with the reason of its last try."""
    place, call, other = Place(ABSENT), Call(), Call()
    before = asyncio.get_running_loop().time()
    task = asyncio.create_task(place.waiting.publish(call.cast, place.publish, place.catalogue, 3.0))
    await elapse(2.0)
    assert [*place.waiting] == [call]
    assert (call.cast in place.waiting, other.cast in place.waiting) == (True, False)
    assert place.waiting.left(call.cast, 5.0) == pytest.approx(3.0, abs=0.01)
    assert place.waiting.left(call.cast, 1.0) == 0.001
    assert place.waiting.left(other.cast, 5.0) == 5.0
    await task
    assert asyncio.get_running_loop().time() - before == pytest.approx(3.0, abs=0.01)
    assert (call.errors, [*place.waiting]) == ([ABSENT], [])


async def test_a_call_that_ends_while_it_waits_is_not_published() -> None:
    """A change of the registry does not publish a waiting call that has ended."""
    place, call = Place(ABSENT), Call()
    task = asyncio.create_task(place.waiting.publish(call.cast, place.publish, place.catalogue, 60.0))
    await asyncio.sleep(0)
    call.done = True
    await place.turns(task)
    await task
    assert (place.tries, call.errors) == (1, [])


@pytest.mark.parametrize("available", [None, False, True])
async def test_a_tool_is_waited_for_until_it_can_be_called(available: bool | None) -> None:
    """A tool that is unknown, or that nobody serves, is waited for until the time is up; an available one is not waited for."""
    place = Place(None)
    found: list[Any] = [None if available is None else SimpleNamespace(available=available)]
    before = asyncio.get_running_loop().time()
    error = await place.waiting.until_callable(lambda: found[0], {}, place.catalogue, 2.0)
    assert error is None
    assert asyncio.get_running_loop().time() - before == pytest.approx(0.0 if available else 2.0, abs=0.01)


async def test_a_wait_for_a_tool_ends_with_its_bus() -> None:
    """The wait returns the error with which its bus ended it."""
    place = Place(None)
    options = {"session": "s"}
    task = asyncio.create_task(
        place.waiting.until_callable(lambda: cast("Any", SimpleNamespace(available=False)), options, place.catalogue, 60.0)
    )
    await asyncio.sleep(0)
    [arrival] = place.waiting
    assert isinstance(arrival, Arrival)
    assert arrival.options == options
    arrival.complete_with(REFUSED)
    await place.turns(task)
    assert await task == REFUSED
    assert len(place.waiting) == 0


@pytest.mark.parametrize(("type", "appears"), [("not_found", True), ("unavailable", True), ("overloaded", False)])
def test_a_worker_may_help_only_where_one_is_missing(type: Any, appears: bool) -> None:
    """A worker that appears may help against not_found and unavailable, and not where the call itself is refused."""
    assert may_appear(Call().cast, ErrorInfo(type)) is appears


# -- calls that are given up --------------------------------------------------------------------------

LATE, TOLD = ErrorInfo("deadline_exceeded", message="late"), ErrorInfo("cancelled", "why", "told")
TAKEN = "late: a worker took it and did not finish it in time"


class Given:
    """A call that is given up, on a connection whose broker is asked; workers of its service live."""

    def __init__(self, effect: str = "", *, is_open: bool = True, request: bool = True) -> None:
        self.id, self.entry, self.queue, self.queued_ms, self.waited_in_all = "c", "1-0", "q", 0.0, 1.5
        self.request = Request("c", "a", "s", effect=effect, timeout=9.0) if request else None
        self.target = SimpleNamespace(service="s")
        self.is_open = is_open
        self.deadlines = Deadlines(asyncio.get_running_loop(), 0.005)
        self.broker = SimpleNamespace(requests=SimpleNamespace(cancel=self.cancel))
        self.catalogue = SimpleNamespace(service=lambda name: (None, name == "s"))
        self.asked: list[tuple[Any, ...]] = []
        self.on_fate: Any = None
        self.ends: list[ErrorInfo] = []
        self.cast = cast("Any", self)

    def cancel(self, request: Any, queue: str, entry: str, on_fate: Any, *, waited: float, why: str) -> None:
        """Take note."""
        self.asked.append((request, queue, entry, waited, why))
        self.on_fate = on_fate

    def complete_with(self, error: ErrorInfo) -> None:
        """Take note; a call ends once."""
        self.ends = self.ends or [error]


@pytest.mark.parametrize(
    ("effect", "error", "fate", "is_open", "end", "entry"),
    [
        ("", LATE, "removed", True, ("deadline_exceeded", "not_taken"), ""),
        ("", TOLD, "removed", True, ("cancelled", "why"), ""),
        ("", LATE, "signalled", True, ("deadline_exceeded", "not_finished"), ""),
        ("", TOLD, "signalled", True, ("cancelled", "why"), ""),
        ("", LATE, "shared", True, ("deadline_exceeded", ""), "1-0"),
        ("", LATE, "gone", True, None, "1-0"),
        ("", LATE, "gone", False, ("deadline_exceeded", ""), "1-0"),
        ("once", LATE, "removed", True, ("deadline_exceeded", "not_taken"), ""),
        ("once", LATE, "signalled", True, ("outcome_unknown", "deadline_exceeded"), ""),
        ("once", TOLD, "unknown", True, ("outcome_unknown", "cancelled"), "1-0"),
    ],
)
async def test_a_call_ends_as_the_broker_found_it(effect: str, error: ErrorInfo, fate: Any, is_open: bool, end: Any, entry: str) -> None:
    """The broker's word decides the error; a call that is gone was answered, and waits for the answer while the bus is open."""
    given = Given(effect)
    inquire(given.cast, error, given.cast)
    assert given.asked == [(given.request, "q", "1-0", 1.5, error.type)]
    given.is_open = is_open
    given.on_fate(fate)
    assert [(each.type, each.code) for each in given.ends] == ([end] if end else [])
    assert given.entry == entry
    await elapse(2.0)
    [ended] = given.ends
    if ended.type == "outcome_unknown":
        assert ended.message.endswith(f"; {UNSURE}")


@pytest.mark.parametrize(("effect", "moment"), [("", 0.2), ("once", 1.0)])
@pytest.mark.parametrize("asked", [True, False])
async def test_a_call_does_not_wait_long_to_learn_what_became_of_it(effect: str, moment: float, asked: bool) -> None:
    """A call waits 0.2 s for its fate, and once work a second; on a closed bus nothing is asked."""
    given = Given(effect, is_open=asked)
    inquire(given.cast, TOLD, given.cast)
    assert len(given.asked) == asked
    await elapse(moment - 0.05)
    assert given.ends == []
    await elapse(0.1)
    assert given.ends == [TOLD if not effect else ErrorInfo("outcome_unknown", "cancelled", f"told; {UNSURE}")]


async def test_a_call_that_was_not_published_is_not_asked_about() -> None:
    """A call without a request ends with its error, and the broker is not asked."""
    given = Given(request=False)
    inquire(given.cast, TOLD, given.cast)
    await elapse(0.3)
    assert (given.asked, given.ends) == ([], [TOLD])


async def test_a_call_whose_time_was_up_says_where_it_was() -> None:
    """The error says that a worker took it, that its worker was lost, or that it began late."""
    given = Given()
    assert unfinished_of(given.cast, LATE, given.cast).message == TAKEN
    given.catalogue = SimpleNamespace(service=lambda name: (None, name != "s"))
    for call in (given, Given(request=False)):
        told = unfinished_of(call.cast, LATE, given.cast)
        assert (told.code, "no live worker serves 's' now" in told.message) == ("worker_lost", True)
    waited = Given()
    waited.queued_ms = 8_000.0
    assert unfinished_of(waited.cast, LATE, waited.cast).code == "began_late"


# -- sessions -----------------------------------------------------------------------------------------


class Broker:
    """Takes note of what services are told; ``fails`` with an error, or does not answer."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.fails = fails
        self.cast = cast("Any", self)

    async def close_session(self, user: str, session: str, queues: set[str]) -> None:
        """Take note of a session that is over."""
        await self._tell(user, session, queues)

    async def leave_sessions(self, queues: set[str]) -> None:
        """Take note of an agent that leaves."""
        await self._tell(queues)

    async def _tell(self, *what: Any) -> None:
        self.told.append(what)
        if isinstance(self.fails, TimeoutError):
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails


async def test_the_services_of_a_session_are_told_of_its_end() -> None:
    """The services that were called in a session are told once; the next call of each is meant for a new state."""
    used, broker = UsedSessions(), Broker()
    for user, session, queue in (("u", "s", "a"), ("u", "s", "b"), ("u", "t", "c"), ("v", "s", "d"), ("u", "s", "a")):
        used.add(user, session, queue)
    used.learn("u", "s", "a", "first")
    used.learn("u", "s", "a", "second")
    assert (used.state("u", "s", "a"), used.state("u", "s", "a"), used.state("u", "s", "b")) == ("second", "second", "")
    for _ in range(2):
        await used.close(broker.cast, "u", "s")
    assert broker.told == [("u", "s", {"a", "b"})]
    assert [used.state("u", "s", queue) for queue in "aabbcd"] == [NEW_STATE, "", NEW_STATE, "", "", ""]


async def test_all_services_are_told_of_a_bus_that_leaves() -> None:
    """The services of all sessions are told once, also those of closed ones, and nothing is known of any session then."""
    used, broker = UsedSessions(), Broker()
    used.add("u", "s", "a")
    used.add("u", "t", "b")
    used.learn("u", "t", "b", "state")
    await used.close(broker.cast, "u", "s")
    for _ in range(2):
        await used.leave(broker.cast)
    await used.close(broker.cast, "u", "t")
    assert broker.told == [("u", "s", {"a"}), ({"a", "b"},)]
    assert used.state("u", "t", "b") == used.state("u", "s", "a") == ""


@pytest.mark.parametrize(("failure", "said"), [(BrokerUnavailable("gone"), "gone"), (TimeoutError(), '"the server did not answer"')])
async def test_services_that_can_not_be_told_hold_nobody_up(failure: Exception, said: str, caplog: pytest.LogCaptureFixture) -> None:
    """Closing waits two seconds at most for the server, and logs what failed."""
    used, broker = UsedSessions(), Broker(failure)
    used.add("u", "s", "a")
    before = asyncio.get_running_loop().time()
    await used.close(broker.cast, "u", "s")
    waited = asyncio.get_running_loop().time() - before
    assert waited == pytest.approx(2.0 if isinstance(failure, TimeoutError) else 0.0, abs=0.01)
    assert [record.getMessage() for record in caplog.records] == [f"session.untold error={said}"]


async def test_the_session_that_was_not_used_for_the_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number, the session that was used least recently and its state are forgotten."""
    monkeypatch.setattr(connection, "_MOST_SESSIONS", 2)
    used, broker = UsedSessions(), Broker()
    for session in ("one", "two", "one", "three"):
        used.add("u", session, "a")
        used.learn("u", session, "a", session)
    for session in ("two", "one", "three"):
        await used.close(broker.cast, "u", session)
    assert [session for _, session, _ in broker.told] == ["one", "three"]
    again = UsedSessions()
    for session in ("one", "two", "one", "three"):
        again.learn("u", session, "a", session)
    assert [again.state("u", session, "a") for session in ("one", "two", "three")] == ["one", "", "three"]
