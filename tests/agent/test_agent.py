"""The agent against a scripted endpoint, with real tools in process."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.agent.endpoint import DONE, Canned, Endpoint, Script, calls, endpoint, event, says
from toolbus import ToolBus, Worker, tool
from toolbus.agent import Agent, ChatEndpoint, EndpointError, ModelText, Retrying
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.values.events import Text
from toolbus.bus.values.results import ConfigurationError

pytestmark = pytest.mark.anyio


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def recite(lines: int):
    """Recite a poem."""
    for number in range(lines):
        yield f"line {number}\n"


@tool
async def broken() -> str:
    """Always fail."""
    raise RuntimeError("out of order")


class Setting:
    """An agent, its bus and its endpoint."""

    def __init__(self, agent: Agent, bus: ToolBus, model: Endpoint, namespace: str) -> None:
        self.agent = agent
        self.bus = bus
        self.model = model
        self.namespace = namespace
        self.heard: list[Any] = []

    async def ask(self, question: str = "?") -> Any:
        """Ask, and keep what is heard."""
        return await self.agent.ask(question, self.heard.append)

    def offered(self, turn: int) -> list[str]:
        """The names of the tools that the model was offered in a turn."""
        return [each["function"]["name"] for each in self.model.bodies[turn].get("tools", [])]


@asynccontextmanager
async def setting(script: Script | list[Canned], **options: Any) -> AsyncIterator[Setting]:
    """An agent with the tools above."""
    namespace = uuid.uuid4().hex
    async with (
        endpoint(script) as model,
        Worker([add, recite, broken], url="memory://", namespace=namespace),
        ToolBus("memory://", namespace=namespace) as bus,
        ChatEndpoint(model.url, "sk-secret") as chat,
    ):
        yield Setting(Agent(chat, bus.executor(model="m"), **options), bus, model, namespace)


async def test_words_come_as_they_are_said() -> None:
    """An answer in words is heard piece by piece, and its request names the model, the key and the tools."""
    async with setting([says("Hel", "lo")]) as given:
        answer = await given.ask("hi")
        assert (answer.text, answer.reason, answer.turns) == ("Hello", "answered", 1)
        assert given.heard == [ModelText("Hel"), ModelText("lo")]
        body = given.model.bodies[0]
        assert (body["stream"], body["model"], body["messages"][-1]) == (True, "m", {"role": "user", "content": "hi"})
        assert given.offered(0) == ["add", "broken", "recite"]
        assert given.model.headers[0]["authorization"] == "Bearer sk-secret"


async def test_parallel_calls_run_and_the_model_goes_on() -> None:
    """Calls whose arguments come in parts, in turn, are run together, and the model reads their results in order."""
    async with setting([calls(("add", {"a": 2, "b": 40}), ("recite", {"lines": 2}), words="Let me see."), says("done")]) as given:
        answer = await given.ask()
        assert (answer.text, answer.turns, answer.calls, answer.failed) == ("done", 2, 2, 0)
        said, *results = given.model.bodies[1]["messages"][-3:]
        assert (said["content"], [each["function"]["name"] for each in said["tool_calls"]]) == ("Let me see.", ["add", "recite"])
        assert [(each["tool_call_id"], each["content"]) for each in results] == [
            ("call_add_0", "42"),
            ("call_recite_1", "line 0\nline 1\n"),
        ]
        heard = [(each.id, each.event.text) for each in given.heard if isinstance(each, ToolEvent) and isinstance(each.event, Text)]
        assert "".join(text for call, text in heard if call == "call_recite_1") == "line 0\nline 1\n"
        assert [text for call, text in heard if call == "call_add_0"] == ["42"]


async def test_questions_that_are_asked_at_once_are_answered_in_order() -> None:
    """Each listener hears of its own question, each question stays in the conversation, and one that is cancelled disturbs no other."""
    running, going = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait until it may go on."""
        running.set()
        await going.wait()
        return "held"

    def script(body: dict[str, Any]) -> Canned:
        last = body["messages"][-1]
        return calls(("hold", {})) if last["role"] == "user" and last["content"] == "first" else says(f"to {last['content']}")

    async with setting(script) as given, Worker([hold], url="memory://", namespace=given.namespace):
        await given.bus.wait_for_tool("hold")
        heard: dict[str, list[Any]] = {name: [] for name in ("first", "second", "third", "fourth")}
        first, second, third, fourth = (asyncio.ensure_future(given.agent.ask(name, heard[name].append)) for name in heard)
        await running.wait()
        third.cancel()
        going.set()
        assert [(await each).text for each in (first, second, fourth)] == ["to held", "to second", "to fourth"]
        await asyncio.gather(third, return_exceptions=True)
        said = {name: [each.text for each in events if isinstance(each, ModelText)] for name, events in heard.items()}
        assert {name: "".join(texts) for name, texts in said.items()} == {
            "first": "to held",
            "second": "to second",
            "third": "",
            "fourth": "to fourth",
        }
        assert [len(heard[name]) for name in ("second", "third", "fourth")] == [1, 0, 1]
        spoken = [each["content"] for each in given.agent.messages[1:] if each["content"]]
        assert spoken == ["first", "held", "to held", "second", "to second", "fourth", "to fourth"]


async def test_a_question_goes_on_when_the_one_before_it_is_cancelled() -> None:
    """A question that waits is answered although the one that ran is cancelled, of which nothing stays."""
    hanging = Canned(event({"content": "nothing that stays"}))
    hanging.hang = True
    async with setting([hanging, says("to second")]) as given:
        first, second = (asyncio.ensure_future(given.agent.ask(each)) for each in ("first", "second"))
        await given.model.answering.wait()
        assert len(given.model.bodies) == 1
        first.cancel()
        assert (await second).text == "to second"
        assert first.cancelled()
        assert [each["content"] for each in given.agent.messages[1:]] == ["second", "to second"]


async def test_a_tool_that_appears_is_offered_in_the_next_turn() -> None:
    """A tool that comes while the agent runs is in the next turn's definitions, and can be called then."""

    @tool(service="late")
    async def late() -> str:
        """Come late."""
        return "here I am"

    waiting, there = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for the other tool."""
        waiting.set()
        await there.wait()
        return "it is there"

    async with setting([calls(("wait", {})), calls(("late", {})), says("ok")]) as given:
        async with Worker([wait], url="memory://", namespace=given.namespace):
            await given.bus.wait_for_tool("wait")
            asking = asyncio.ensure_future(given.ask())
            await waiting.wait()
            async with Worker([late], url="memory://", namespace=given.namespace):
                await given.bus.wait_for_tool("late")
                there.set()
                assert (await asking).failed == 0
        assert "late" not in given.offered(0)
        assert "late" in given.offered(1)
        assert given.model.bodies[2]["messages"][-1]["content"] == "here I am"


async def test_a_model_that_repeats_a_failing_call_is_stopped() -> None:
    """A model that calls the same failing tool forever ends at the bound on turns, and the last turn runs nothing."""
    async with setting(lambda body: calls(("broken", {})), max_turns=4) as given:
        answer = await given.ask()
        assert (answer.reason, answer.turns, answer.calls, answer.failed) == ("turns", 4, 3, 3)
        assert [body["tool_choice"] for body in given.model.bodies] == ["auto", "auto", "auto", "none"]
        assert "out of order" in given.model.bodies[1]["messages"][-1]["content"]


async def test_the_time_is_bounded() -> None:
    """An endpoint that says nothing more ends the question when its time is over, and the conversation stays whole."""
    silent = Canned(event({"content": "I think"}))
    silent.hang = True
    async with setting([silent, says("yes")], max_seconds=0.3) as given:
        answer = await given.ask()
        assert (answer.reason, given.heard) == ("time", [ModelText("I think")])
        assert (await given.agent.ask("again")).text == "yes"
        assert [each["content"] for each in given.model.bodies[1]["messages"][1:]] == ["again"]


async def test_a_conversation_goes_on() -> None:
    """The next question comes after the answers before it."""
    async with setting([says("one"), says("two")]) as given:
        await given.ask("first")
        await given.ask("second")
        assert [each["content"] for each in given.model.bodies[1]["messages"][1:]] == ["first", "one", "second"]


async def test_unreadable_calls_are_answered_and_sayable() -> None:
    """Impossible names and broken arguments get an observation, and the conversation stays one that endpoints take."""
    async with setting([calls(("no such tool!", "{"), ("add", '{"a": 1, "b": ')), says("sorry")]) as given:
        answer = await given.ask()
        assert (answer.calls, answer.failed) == (2, 2)
        said, *results = given.model.bodies[1]["messages"][-3:]
        assert [each["function"] for each in said["tool_calls"]] == [
            {"name": "no_such_tool_", "arguments": "{}"},
            {"name": "add", "arguments": "{}"},
        ]
        assert [each["name"] for each in results] == ["no_such_tool_", "add"]
        assert all("Next:" in each["content"] for each in results)


async def test_calls_without_index_or_with_one_index_are_told_apart() -> None:
    """A new id is a new call, also where an endpoint counts none or all as the first; missing ids are given."""

    def whole(ident: str, index: int | None, a: int) -> dict[str, Any]:
        function = {"name": "add", "arguments": json.dumps({"a": a, "b": 0})}
        return {"id": ident, "type": "function", "function": function} | ({} if index is None else {"index": index})

    turns = [
        Canned(event({"tool_calls": [whole("x", 0, 1)]}), event({"tool_calls": [whole("y", 0, 2)]}), event({}, "stop"), DONE),
        Canned(event({"tool_calls": [whole("x", None, 3), whole("y", None, 4)]}, "tool_calls"), DONE),
        Canned(event({"tool_calls": [whole("", 0, 5), whole("", 1, 6)]}, "tool_calls"), DONE),
        says("ok"),
    ]
    async with setting(turns) as given:
        assert (await given.ask()).calls == 6
        results = [each for each in given.agent.messages if each["role"] == "tool"]
        assert [each["content"] for each in results] == ["1", "2", "3", "4", "5", "6"]
        assert len({each["tool_call_id"] for each in results[-2:]}) == 2


def part(ident: str, index: int, name: str, arguments: str) -> bytes:
    """A part of a call."""
    function = ({"name": name} if name else {}) | {"arguments": arguments}
    return event({"tool_calls": [{"id": ident, "index": index, "type": "function", "function": function}]})


@pytest.mark.parametrize("again", ["", "add"])
async def test_parts_with_a_new_id_each_and_one_index_are_one_call(again: str) -> None:
    """The arguments go on until they are complete, also where each part repeats the name."""
    pieces = [
        part("a", 0, "add", ""),
        part("b", 0, again, '{"a": 1'),
        part("c", 0, again, ', "b": 2}'),
        part("d", 1, "add", '{"a":'),
        part("e", 1, again, "3, "),
        part("f", 1, again, '"b": 4}'),
        part("g", 1, "recite", ""),
        part("h", 1, again and "recite", '{"lines": 1}'),
    ]
    async with setting([Canned(*pieces, event({}, "tool_calls"), DONE), says("ok")]) as given:
        assert (await given.ask()).calls == 3
        results = [each for each in given.agent.messages if each["role"] == "tool"]
        assert [each["content"] for each in results] == ["3", "7", "line 0\n"]


@pytest.mark.parametrize("indexed", [True, False])
async def test_calls_beyond_the_most_are_cut_with_a_message(indexed: bool) -> None:
    """The first 128 run, and the model hears that the others did not and what to do."""
    wanted = [
        {"id": f"c{number}", "type": "function", "function": {"name": "add", "arguments": json.dumps({"a": number, "b": 0})}}
        | ({"index": number} if indexed else {})
        for number in range(131)
    ]
    async with setting([Canned(*[event({"tool_calls": [each]}) for each in wanted], event({}, "tool_calls"), DONE), says("ok")]) as given:
        answer = await given.ask()
        assert (answer.text, answer.failed) == ("ok", 1)
        *results, cut = [each for each in given.agent.messages if each["role"] == "tool"]
        assert [each["content"] for each in results] == [str(number) for number in range(128)]
        assert "more than 128 calls at once" in cut["content"]
        assert "3 in all, did not run" in cut["content"]
        asked = [call["id"] for each in given.agent.messages for call in each.get("tool_calls", [])]
        assert asked == [each["tool_call_id"] for each in [*results, cut]]


async def test_an_endpoint_that_does_not_stream_is_understood() -> None:
    """A whole answer in JSON counts as one piece."""
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]}
    async with setting([Canned(json.dumps(whole).encode(), kind="application/json")]) as given:
        assert (await given.ask()).text == "hi"


def refusal(status: int, message: str = "no", **headers: str) -> Canned:
    """An error as OpenAI says it."""
    body = json.dumps({"error": {"message": message, "type": "x", "code": None}}).encode()
    return Canned(body, status=status, kind="application/json", **headers)


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (refusal(401, "Incorrect API key: sk-secret."), "refused the key (401): Incorrect API key: …; check OPENAI_API_KEY"),
        (refusal(404, "no model m"), "knows no such address or model (404): no model m; check OPENAI_BASE_URL and the model"),
        (refusal(429, "slow\n down", retry_after="60"), "is limiting requests (429): slow down; try again in 60 s"),
        (refusal(500, "oops", retry_after="60"), "failed (500): oops; try again in 60 s"),
        (refusal(400, "bad tools"), "refused the request (400): bad tools"),
        (Canned(b"<html>", status=403, kind="text/html"), "refused the key (403); check OPENAI_API_KEY and what it may do"),
        (Canned(event({"content": "Hal"}), cut=True), "cut its answer off: "),
        (Canned(event({"content": "Hal"})), "cut its answer off before the end"),
        (Canned(b"data: {]\n\n"), "gave an answer that can't be read: "),
        (Canned(b'data: {"choices": 5}\n\n'), "gave an answer that can't be read: "),
        (Canned(b"\x00\xff" * 50, kind="application/json"), "gave an answer that can't be read: "),
        (Canned(b"<html>hello</html>", kind="text/html"), "answered with no events (text/html); check the base URL"),
        (Canned(b'data: {"error": {"message": "overheated"}}\n\n'), "failed: overheated"),
    ],
    ids=range(13),
)
async def test_an_endpoints_errors_are_one_clear_line(answer: Canned, line: str) -> None:
    """Each way in which an endpoint fails is one line that says what to do, and never shows the key."""
    # Some are tried again.
    async with setting([answer] * 3) as given:
        with pytest.raises(EndpointError) as raised:
            await given.ask()
        message = str(raised.value)
        assert line in message
        assert message.isprintable()
        assert "sk-secret" not in message
        assert len(given.agent.messages) == 1


@pytest.mark.usefixtures("slow")
async def test_what_passes_is_tried_again() -> None:
    """A limit, a failure or a proxy's page that passes soon is waited for, and the listener is told."""
    page = Canned(b"<html>back soon</html>", kind="text/html")
    for away in ([refusal(429, retry_after="0"), refusal(503, retry_after="0")], [page, page]):
        async with setting([*away, says("there")]) as given:
            assert (await given.ask()).text == "there"
            assert [type(each) for each in given.heard] == [Retrying, Retrying, ModelText]


def failing(error: dict[str, Any], *before: bytes) -> Canned:
    """An answer that ends with an error."""
    return Canned(*before, b"data: " + json.dumps({"error": error}).encode() + b"\n\n")


@pytest.mark.usefixtures("slow")
async def test_an_error_before_any_words_is_tried_again() -> None:
    """An endpoint that is overloaded says so as an event."""
    async with setting([failing({"message": "overloaded"}), failing({"message": "m", "code": 429}), says("there")]) as given:
        assert (await given.ask()).text == "there"
        assert [type(each) for each in given.heard] == [Retrying, Retrying, ModelText]


@pytest.mark.parametrize(
    "answer", [failing({"message": "overloaded"}, event({"content": "Hal"})), failing({"message": "too long", "code": 400})]
)
async def test_an_error_after_words_or_about_the_request_is_not_tried_again(answer: Canned) -> None:
    """Words would be said twice, and a wrong request stays wrong."""
    async with setting([answer, says("there")]) as given:
        with pytest.raises(EndpointError, match=r"overloaded|too long"):
            await given.ask()
        assert len(given.model.bodies) == 1


async def test_an_endpoint_that_is_not_there_is_one_line() -> None:
    """A refused connection says the address, after it was tried again."""
    async with setting([]) as given, ChatEndpoint("http://127.0.0.1:1/v1", "k") as nowhere:
        with pytest.raises(EndpointError, match=r"^the endpoint 127\.0\.0\.1:1 can't be reached: "):
            await nowhere.complete(given.agent._executor.build_request([]))


async def test_silence_is_one_line() -> None:
    """An endpoint that stops in the middle is given up after its time."""
    silent = Canned(event({"content": "Hal"}))
    silent.hang = True
    async with endpoint([silent]) as model, ChatEndpoint(model.url, "k", silence=0.2) as chat:
        with pytest.raises(EndpointError, match=r"sent nothing for 0\.2 s"):
            await chat.complete({})


async def test_cancelling_cancels_the_calls() -> None:
    """A cancelled question cancels the calls that run."""
    ended = asyncio.Event()
    running = asyncio.Event()

    @tool
    async def forever() -> str:
        """Never end."""
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async with setting([calls(("forever", {}))]) as given, Worker([forever], url="memory://", namespace=given.namespace):
        await given.bus.wait_for_tool("forever")
        asking = asyncio.ensure_future(given.ask())
        await running.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(ended.wait(), 10)
        assert len(given.agent.messages) == 1


@pytest.mark.parametrize(("url", "key"), [("ftp://x", "k"), ("nothing", "k"), ("http://x:y", "k"), ("http://x", "a\nb"), ("http://x", "")])
def test_an_impossible_endpoint_is_refused(url: str, key: str) -> None:
    """An address or a key that can't be used is said before anything is sent."""
    with pytest.raises(ConfigurationError):
        ChatEndpoint(url, key)
