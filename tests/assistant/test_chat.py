"""The service agent: turns of chats, their order, their memory and their failures."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.agent.endpoint import Canned, calls, says
from tests.agent.keeping import told
from tests.assistant.talking import chatting, hanging
from tests.contract import Place
from tests.servers import eventually
from toolbus import Progress, Worker, tool
from toolbus.agent.assistant.services import ServiceAgent
from toolbus.bus.values.events import Text
from toolbus.bus.values.results import ConfigurationError

pytestmark = pytest.mark.anyio


def last(body: dict[str, Any]) -> str:
    """Return the user's last message in a request."""
    return next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user")


def echo(body: dict[str, Any]) -> Canned:
    """Answer with the user's last message."""
    return says("you said ", last(body))


async def test_a_chat_answers_and_remembers(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message is answered as data, and the next one of the chat follows it; other chats and users know nothing of it."""
    async with chatting(place, monkeypatch, echo) as chats:
        first = await chats.say("one")
        assert first.data == {"response": "you said one", "chat_id": "c"}
        await chats.say("two")
        await chats.say("three", "other")
        await chats.say("four", user="bob")
        bodies = chats.model.bodies
    users = [[content for role, content in told(body) if role == "user"] for body in bodies]
    assert users == [["one"], ["one", "two"], ["three"], ["four"]]


async def test_a_chat_without_an_id_begins_a_new_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an id, the session is the chat, and without a session it is a new one, whose id is told."""
    async with chatting(place, monkeypatch, echo) as chats:
        new = (await chats.bus.call("chat", {"message": "hello"})).data
        again = (await chats.bus.call("chat", {"message": "more", "chat_id": new["chat_id"]})).data
        assert again["chat_id"] == new["chat_id"]
        assert (await chats.bus.call("chat", {"message": "x"}, session="s")).data["chat_id"] == "s"
        assert [content for role, content in told(chats.model.bodies[1]) if role == "user"] == ["hello", "more"]


async def test_text_is_streamed_with_what_the_tools_do(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text arrives in pieces, turns are apart by an empty line, and each tool call is progress."""
    script = [calls(("list_groups", {}), words="Let me look."), says("Here: ", "images")]
    async with chatting(place, monkeypatch, script) as chats:
        events = [event async for event in chats.bus.stream("chat", {"message": "m", "chat_id": "c"}, session="c").events()]
    assert "".join(event.text for event in events if isinstance(event, Text)) == "Let me look.\n\nHere: images"
    assert [event.message for event in events if isinstance(event, Progress)] == ["list_groups", "list_groups: done"]
    assert events[-1].result.data == {"response": "Here: images", "chat_id": "c"}  # type: ignore[union-attr]


async def test_lookups_of_the_model(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model sees tools, details, groups and runtimes, and similar names for a wrong one."""
    wanted = [
        ("list_tools", {"category": "image"}),
        ("list_tools", {"keyword": "stitch images", "group_id": "images"}),
        ("get_tool_details", {"tool_id": "stitch"}),
        ("get_tool_details", {"tool_id": "stich"}),
        ("list_groups", {}),
        ("list_backend_runtimes", {}),
    ]
    group = {
        "name": "Images",
        "tool_ids": ["stitch", "resize"],
        "usage_order": ["resize", "stitch"],
        "usage_example": "resize, then stitch",
    }
    async with chatting(place, monkeypatch, [calls(*wanted), says("ok")]) as chats:
        await chats.bus.put("group/images", json.dumps(group).encode())
        await eventually(lambda: "images" in chats.bus.tools.catalogue.groups)
        await chats.say("look")
        first, second = chats.model.bodies
        await chats.bus.delete("group/images")
    assert {each["function"]["name"] for each in first["tools"]} == {name for name, _ in wanted}
    answers = [message["content"] for message in second["messages"] if message["role"] == "tool"]
    assert [each["tool_id"] for each in json.loads(answers[0])["tools"]] == ["resize", "stitch"]
    assert json.loads(answers[1])["total"] == 1
    details = json.loads(answers[2])
    assert details["description"] == "Stitch two images.\n\nThe second paragraph."
    assert set(details["input_schema"]["properties"]) == {"left", "right"}
    assert details["groups"][0]["usage_order"] == ["resize", "stitch"]
    assert "did you mean" in answers[3]
    assert "stitch" in answers[3]
    assert json.loads(answers[4])["groups"][0]["usage_example"] == "resize, then stitch"
    assert json.loads(answers[5])["backend_runtimes"] == [{"backend_runtime": "worker", "name": "worker", "tool_count": 7}]


async def test_lookups_are_tools_for_everybody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other agents call the same lookups over the bus."""
    async with chatting(place, monkeypatch, []) as chats:
        await chats.bus.wait_for_tool("list_tools")
        assert (await chats.bus.call("list_tools", {"keyword": "stitch"})).data["total"] == 1
        assert (await chats.bus.call("get_tool_details", {"tool_id": "none"})).error.type == "not_found"  # type: ignore[union-attr]


async def test_turns_of_a_chat_take_turns(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of one chat are answered in the order of their publication, and each knows the ones before."""
    async with chatting(place, monkeypatch, echo) as chats:
        found = await asyncio.gather(*(chats.say(str(number)) for number in range(6)))
        bodies = chats.model.bodies
    assert [each.data["response"] for each in found] == [f"you said {number}" for number in range(6)]
    assert [last(body) for body in bodies] == [str(number) for number in range(6)]
    assert len([1 for role, _ in told(bodies[-1]) if role == "user"]) == 6


async def test_a_message_outside_the_session_waits_for_its_turn(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that are not made in the chat's session are answered one after the other, too."""
    async with chatting(place, monkeypatch, echo) as chats:
        found = await asyncio.gather(*(chats.say(str(number), session=f"s{number}") for number in range(3)))
        counts = sorted(sum(role == "user" for role, _ in told(body)) for body in chats.model.bodies)
    assert [each.data["response"] for each in found] == [f"you said {number}" for number in range(3)]
    assert counts == [1, 2, 3]


async def test_many_chats_run_at_once_in_one_slot_each(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats that hold every slot of a worker look tools up all the same."""

    def script(body: dict[str, Any]) -> Canned:
        return says("done") if body["messages"][-1]["role"] == "tool" else calls(("list_tools", {}))

    async with chatting(place, monkeypatch, script, concurrency=2) as chats:
        found = await asyncio.gather(*(chats.say("go", f"c{number}") for number in range(6)))
    assert {each.data["response"] for each in found} == {"done"}


async def test_a_repeated_message_is_answered_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same idempotency key the model is asked once, and the answer is the same."""
    async with chatting(place, monkeypatch, echo) as chats:
        first = await chats.say("one", idempotency_key="k")
        again = await chats.say("one", idempotency_key="k")
        assert first.data == again.data
        assert len(chats.model.bodies) == 1


async def test_a_task_is_submitted_by_the_tool_of_the_coding_agent(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model may call submit_task and check_task_status where a worker serves them, and no other tool of the bus."""
    keys: list[str] = []

    @tool(service="coding-stand-in", effect="idempotent")
    async def submit_task(spec: str) -> dict[str, str]:
        """Submit a task."""
        keys.append(spec)
        return {"task_id": "create_0123abcd", "status": "queued"}

    script = [
        calls(("submit_task", {"spec": "a tool that stitches"}), ("stitch", {"left": "a", "right": "b"})),
        says("create_0123abcd it is"),
    ]
    async with chatting(place, monkeypatch, script, submit_task) as chats:
        await chats.bus.wait_for_tool("submit_task")
        result = await chats.say("make it")
        observed = [message["content"] for message in chats.model.bodies[1]["messages"] if message["role"] == "tool"]
    assert result.data["response"] == "create_0123abcd it is"
    assert keys == ["a tool that stitches"]
    assert "create_0123abcd" in observed[0]
    assert "stitch" in observed[1]
    assert "ab" not in observed[1]


async def test_a_long_chat_is_summed_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older part of a chat becomes a summary within the tokens that are set."""

    def script(body: dict[str, Any]) -> Canned:
        return says("the summary" if body["messages"][0]["content"].startswith("You keep the memory") else "word " * 200)

    async with chatting(place, monkeypatch, script, TOOLBUS_CHAT_MEMORY="1000") as chats:
        for number in range(5):
            await chats.say(f"message {number}")
        body = chats.model.bodies[-1]
    assert "the summary" in body["messages"][0]["content"]
    assert [content for role, content in told(body) if role == "user"] == ["message 2", "message 3", "message 4"]


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (Canned(b'{"error": {"message": "no"}}', status=400, kind="application/json"), "endpoint", "refused the request"),
        (calls(("list_tools", {})), "no_answer_turns", "no answer after 1 requests"),
    ],
)
async def test_a_turn_without_an_answer_says_why(monkeypatch: pytest.MonkeyPatch, answer: Canned, code: str, message: str) -> None:
    """An endpoint that fails, and a model that never answers, are failures of the call that say what to do."""
    place = Place("memory://", "failing")
    async with chatting(place, monkeypatch, [answer], TOOLBUS_CHAT_TURNS="1") as chats:
        result = await chats.say("go")
    assert result.error is not None
    assert (result.error.type, result.error.code) == ("tool_error", code)
    assert message in result.error.message


@pytest.mark.parametrize(
    "arguments", [{"message": ""}, {"message": "m", "chat_id": "x" * 256}, {"message": "m", "chat_id": "a\u202eb"}, {}]
)
async def test_messages_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]) -> None:
    """An empty message and an id that is none are told as invalid arguments, and the model is not asked."""
    async with chatting(Place("memory://", "refusing"), monkeypatch, []) as chats:
        result = await chats.bus.call("chat", arguments)
    assert result.error is not None
    assert result.error.type == "invalid_arguments"


async def test_a_cancelled_turn_stops_asking(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelling the call closes the connection to the model, and the next message goes on."""
    async with chatting(place, monkeypatch, lambda body: hanging("never") if last(body) == "hang" else echo(body)) as chats:
        async with chats.bus.stream("chat", {"message": "hang", "chat_id": "c"}, session="c") as call:
            await asyncio.wait_for(chats.model.answering.wait(), 20)
            call.cancel()
        assert (await chats.say("next")).data["response"] == "you said next"


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"OPENAI_API_KEY": ""}, "set OPENAI_API_KEY"),
        ({"OPENAI_MODEL": ""}, "set OPENAI_MODEL"),
        ({"OPENAI_BASE_URL": "ftp://x"}, "OPENAI_BASE_URL"),
        ({"TOOLBUS_CHAT_MEMORY": "10"}, "TOOLBUS_CHAT_"),
        ({"TOOLBUS_CHAT_TURNS": "many"}, "TOOLBUS_CHAT_"),
    ],
)
async def test_a_worker_without_a_model_says_so_at_its_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], message: str
) -> None:
    """Settings that are missing or wrong end the worker with a line that names them."""
    for name, value in {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=message):
        async with Worker(ServiceAgent(), url="memory://"):
            pass
