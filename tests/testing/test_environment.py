"""A handler without a bus: what it gets, what is collected, and how it ends."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.servers import eventually
from toolbus import Blob, ConfigurationError, Progress, Session, ToolError, ToolResult, ToolService, invocation, tool
from toolbus.bus.broker.held.confirmations import DeadlineNotes
from toolbus.bus.broker.replies.finish import Endings, Outbox
from toolbus.bus.broker.take.sessions import Snapshots
from toolbus.bus.broker.worker import Beginnings
from toolbus.bus.values.events import Finished, Started, Text
from toolbus.bus.values.results import CallCancelled, EnvelopeError
from toolbus.middleware import Timeout
from toolbus.testing import InvocationEnvironment, NestedCall
from toolbus.testing.environment import Recorder

pytestmark = pytest.mark.anyio


@tool(effect="read", service="environment-tests")
async def narrate(topic: str, times: int = 1) -> AsyncIterator[Any]:
    """Tell of a topic."""
    for _ in range(times):
        yield f"about {topic}; "
    yield Progress(1, 2, "half")
    yield Blob("image/png", b"\x89")
    yield ToolResult(data={"topic": topic})


@tool(service="environment-tests")
def who() -> dict[str, Any]:
    """Say on whose behalf this runs."""
    call = invocation()
    return {
        "user": call.user,
        "session": call.session,
        "tool": call.tool,
        "attempt": call.attempt,
        "metadata": dict(call.metadata),
        "key": call.idempotency_key,
        "within": 0 < call.remaining <= 7,
        "own thread": threading.current_thread() is not threading.main_thread(),
    }


@tool(service="environment-tests", effect="once")
async def summarise(topic: str) -> str:
    """Search, and say what was found."""
    found = await invocation().call("search", {"query": topic})
    return f"found: {found}"


@tool(service="environment-tests")
def count_up() -> Iterator[str]:
    """Count in a thread until nobody waits any more."""
    yield "1 "
    while True:
        invocation().check_cancelled()


@tool(service="environment-tests", timeout=0.05)
async def forever() -> None:
    """Never end."""
    await asyncio.Event().wait()


class Jokes(ToolService):
    """Tells jokes."""

    id = "environment-jokes"
    config_params = ("style",)
    effect = "read"
    tools = (
        {
            "name": "tell-pun",
            "description": "d",
            "style": "pun",
            "arguments": [{"name": "topic", "type": "string", "description": "what it is about"}],
        },
    )

    def __init__(self) -> None:
        self.life: list[str] = []

    async def startup(self) -> None:
        self.life.append("startup")

    async def cleanup(self) -> None:
        self.life.append("cleanup")

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return f"{user}: a {config.get('style')} about {arguments.get('topic')}"

    @tool
    async def rate(self, joke: str) -> int:
        """Rate a joke."""
        self.life.append("rate")
        return len(joke)


async def test_everything_a_handler_yields_is_collected() -> None:
    """Text, progress, blobs and the result come back as a caller would have seen them, in order."""
    async with InvocationEnvironment() as environment:
        outcome = await environment.run(narrate, {"topic": "tea", "times": 2})
    assert outcome.result.data == {"topic": "tea"}
    assert (outcome.text, outcome.texts) == ("about tea; about tea; ", ["about tea; ", "about tea; "])
    assert (outcome.progress, outcome.blobs) == ([Progress(1, 2, "half")], [Blob("image/png", b"\x89")])
    assert [type(event) for event in outcome.events] == [Started, Text, Text, Progress, Blob, Finished]


async def test_arguments_are_bound_and_validated_as_a_worker_does() -> None:
    """Wrong arguments end in invalid_arguments that names the place, and the handler does not run."""
    async with InvocationEnvironment() as environment:
        wrong = await environment.call(narrate, {"topic": "tea", "times": "many"})
        missing = await environment.call(narrate)
        unsent = await environment.call(narrate, {"topic": object()})
        with pytest.raises(EnvelopeError):
            await environment.run(narrate, {"topic": object()})
    assert unsent.error is not None
    assert unsent.error.type == "invalid_arguments"
    assert wrong.error is not None
    assert missing.error is not None
    assert (wrong.error.type, missing.error.type) == ("invalid_arguments", "invalid_arguments")
    assert "$.times" in wrong.error.message


async def test_a_handler_knows_its_caller() -> None:
    """User, session, metadata, attempt, key and deadline are the environment's, in a thread of the handler's own."""
    async with InvocationEnvironment(
        user="alice", session="s", timeout=7, attempt=3, metadata={"a": "b"}, idempotency_key="k"
    ) as environment:
        result = await environment.call(who)
    assert result.data == {
        "user": "alice", "session": "s", "tool": "who", "attempt": 3, "metadata": {"a": "b"}, "key": "k", "within": True,
        "own thread": True,
    }  # fmt: skip


async def test_a_service_runs_from_startup_to_cleanup() -> None:
    """Tools in both tiers and methods are called on one service, which is started once and cleaned up at the end."""
    service = Jokes()
    async with InvocationEnvironment(user="al") as environment:
        assert str(await environment.call(service, {"topic": "tea"}, tool="tell-pun")) == "al: a pun about tea"
        environment.config["style"] = "haiku"
        assert str(await environment.call(service, {"topic": "rain"})) == "al: a haiku about rain"
        assert str(await environment.call(service.rate, {"joke": "ha"})) == "2"
        assert service.life == ["startup", "rate"]
    assert service.life == ["startup", "rate", "cleanup"]


async def test_nested_calls_are_answered_by_stand_ins() -> None:
    """A value, a function, a failure or nothing at all answers a nested call, and each is recorded with its options."""

    async def search(arguments: dict[str, Any]) -> ToolResult:
        return ToolResult.ok(output=f"pages on {arguments['query']}")

    def refuse(arguments: dict[str, Any]) -> str:
        raise ToolError("closed", type="unavailable")

    async with InvocationEnvironment(user="al", answers={"search": "two pages"}) as environment:
        outcome = await environment.run(summarise, {"topic": "tea"})
        assert outcome.result.output == "found: two pages"
        environment.answer("search", search)
        assert (await environment.call(summarise, {"topic": "tea"})).output == "found: pages on tea"
        environment.answer("search", refuse)
        assert (await environment.call(summarise, {"topic": "tea"})).output == "found: Error (unavailable): closed"
    async with InvocationEnvironment() as environment:
        assert "no stand-in for the tool 'search'" in str(await environment.call(summarise, {"topic": "tea"}))
    (call,) = outcome.calls
    assert (call.tool, call.arguments, call.options["user"]) == ("search", {"query": "tea"}, "al")
    assert isinstance(call, NestedCall)


@pytest.mark.parametrize(
    "step",
    [
        Endings.finish,
        Endings.bury,
        Snapshots.forget,
        Beginnings.begin,
        DeadlineNotes.write,
        Outbox.before_sending,
        Outbox.send,
        Outbox.room,
    ],
    ids=lambda step: step.__qualname__,
)
def test_a_handler_is_run_with_the_steps_of_a_worker(step: Callable[..., Any]) -> None:
    """The stand-in for a worker's broker takes what its steps take, and is awaited as they are."""
    stand_in = getattr(Recorder, step.__name__)
    assert list(inspect.signature(stand_in).parameters) == list(inspect.signature(step).parameters)
    assert inspect.iscoroutinefunction(stand_in) is inspect.iscoroutinefunction(step)


async def test_a_handler_ends_at_its_deadline() -> None:
    """A handler whose time is up is cancelled and answers deadline_exceeded."""
    async with InvocationEnvironment() as environment:
        result = await environment.call(forever)
    assert result.error is not None
    assert result.error.type == "deadline_exceeded"


async def test_a_running_call_can_be_cancelled() -> None:
    """cancel() is what a caller's cancellation is to a handler, also to one in a thread."""
    async with InvocationEnvironment() as environment:
        running = asyncio.ensure_future(environment.run(count_up))
        await eventually(lambda: environment.running)
        environment.cancel()
        result = (await running).result
        assert not environment.running
    assert result.error is not None
    assert result.error.type == "cancelled"


async def test_what_a_handler_raises_is_its_result() -> None:
    """An exception is contained as on a worker, and middleware stands around the handler."""

    @tool(service="environment-tests-raising")
    async def raises() -> None:
        """Fail."""
        raise CallCancelled("gone")

    async with InvocationEnvironment(middleware=[Timeout(0.02)], timeout=30) as environment:
        assert str(await environment.call(raises)) == "Error (cancelled): gone"
        assert "deadline_exceeded" in str(await environment.call(forever))


async def test_what_can_not_be_called_is_refused() -> None:
    """A plain function, an unknown tool and a closed environment are errors of the test, not results."""
    with pytest.raises(ConfigurationError, match="async with"):
        await InvocationEnvironment().run(who)
    async with InvocationEnvironment() as environment:
        with pytest.raises(ConfigurationError, match="is not a tool"):
            await environment.run(len)
        with pytest.raises(ConfigurationError, match="it has: rate, tell-pun"):
            await environment.run(Jokes, tool="tell-lie")


async def test_a_failing_clean_up_stops_no_other() -> None:
    """Every service is cleaned up, and what one of them raised fails the test."""

    class Broken(Jokes):
        id = "environment-broken"

        async def cleanup(self) -> None:
            raise OSError("stuck")

    service = Jokes()
    environment = InvocationEnvironment()
    await environment.__aenter__()
    await environment.call(Broken())
    await environment.call(service)
    with pytest.raises(OSError, match="stuck"):
        await environment.__aexit__(None, None, None)
    assert service.life == ["startup", "cleanup"]


async def test_a_persons_answer_is_given() -> None:
    """A handler's question is answered as the test says: yes unless told otherwise, no, nothing, or by looking at it."""

    @tool(replace=True)
    async def careful(rows: int) -> str:
        """Ask."""
        answer = await invocation().confirm(f"Delete {rows}?", {"rows": rows})
        return f"done, {answer}"

    async with InvocationEnvironment() as environment:
        outcome = await environment.run(careful, {"rows": 1})
        assert outcome.text == "done, allowed"
        assert [type(event).__name__ for event in outcome.events] == ["Started", "Asked", "Answered", "Text", "Finished"]
    for confirm, code in (
        (False, "denied"),
        (lambda request: None, "unconfirmed"),
        (lambda request: "9" not in request.question, "denied"),
    ):
        async with InvocationEnvironment(confirm=confirm) as environment:
            error = (await environment.call(careful, {"rows": 9})).error
            assert error is not None
            assert error.code == code


async def test_sessions_are_cleaned_up_when_the_environment_is_left() -> None:
    """A service with sessions sees which call opens one, and each of them ends before the service does; a failure stops nothing."""

    class Keeping(ToolService):
        """Keeps something for sessions."""

        cleaned: list[Session | None]

        async def startup(self) -> None:
            """Begin."""
            self.cleaned = []

        @tool(effect="read")
        async def is_new(self) -> bool:
            """Say whether the session is new."""
            return invocation().session_is_new

        async def cleanup(self, session: Session | None = None) -> None:
            """Write it down, and fail after a session."""
            self.cleaned.append(session)
            if session is not None:
                raise RuntimeError("cleaning up failed")

    service = Keeping()
    environment = InvocationEnvironment(user="ann", session="s1")
    await environment.__aenter__()
    assert [(await environment.call(service.is_new)).data for _ in range(2)] == [True, False]
    assert service.cleaned == []
    with pytest.raises(RuntimeError, match="cleaning up failed"):
        await environment.__aexit__(None, None, None)
    assert service.cleaned == [Session("ann", "s1"), None]
