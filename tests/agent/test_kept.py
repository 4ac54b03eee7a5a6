"""Conversations that are kept: what another agent finds, and what it does not do again; in process and on every kind of server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.agent.endpoint import Canned, calls, says
from tests.agent.keeping import setting, told, until_recorded
from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.agent import Agent, EndpointError, ModelText, history
from toolbus.agent.history import HeldConversation
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.client.executor.context import ExecutorContext
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.values.events import Text
from toolbus.bus.values.results import ConfigurationError, ConversationBusy, ConversationError

pytestmark = pytest.mark.anyio


async def test_a_conversation_goes_on_in_another_process(place: Place) -> None:
    """The next agent with the id knows the questions, calls and answers; one of another id or user does not."""
    async with setting(place, [calls(("note", {"text": "a"})), *map(says, "1234")]) as given:
        async with given.agent() as agent:
            assert (await agent.ask("first")).text == "1"
        async with given.agent() as agent:
            assert (await agent.ask("second")).text == "2"
            before = [*agent.messages]
        async with given.agent("other") as agent:
            await agent.ask("third")
        async with given.agent(user="bob") as agent:
            await agent.ask("fourth")
    assert told(given.model.bodies[2]) == [
        ("system", "Be brief."),
        ("user", "first"),
        ("assistant", "note"),
        ("tool", "noted a"),
        ("assistant", "1"),
        ("user", "second"),
    ]
    assert before[:-1] == given.model.bodies[2]["messages"]
    assert [told(body) for body in given.model.bodies[3:]] == [[("system", "Be brief."), ("user", each)] for each in ("third", "fourth")]


async def test_a_question_that_failed_goes_on_where_it_was(place: Place) -> None:
    """After an error of the endpoint the same question asks for the missing answer alone; its calls are not run again."""
    broken = Canned(b'{"error": {"message": "no"}}', status=400, kind="application/json")
    async with setting(place, [calls(("note", {"text": "a"}), ("launch", {"name": "b"})), broken, says("done")]) as given:
        async with given.agent() as agent:
            with pytest.raises(EndpointError):
                await agent.ask("go")
        async with given.agent() as agent:
            answer = await agent.ask("go")
        assert (answer.text, answer.turns, answer.calls, answer.failed) == ("done", 2, 2, 0)
        assert sorted(given.tools.ran) == ["a", "b"]
        assert given.model.bodies[2] == given.model.bodies[1]


async def test_resume_returns_what_is_left_or_the_latest_answer(place: Place) -> None:
    """Without a question an open one goes on, an answered one is told again, and an empty conversation has nothing."""
    broken = Canned(b'{"error": {"message": "no"}}', status=400, kind="application/json")
    async with setting(place, [broken, says("done")]) as given:
        async with given.agent() as agent:
            assert await agent.resume() is None
            assert await agent._executor.state.steps.conversations.newest(10) == []
            with pytest.raises(EndpointError):
                await agent.ask("go")
        async with given.agent() as agent:
            answer = await agent.resume()
            heard: list[Any] = []
            assert await agent.resume(heard.append) == answer
        assert answer is not None
        assert (answer.text, heard, len(given.model.bodies)) == ("done", [ModelText("done")], 2)


async def test_a_question_with_a_key_is_asked_once(place: Place) -> None:
    """The answer of a key is found again, also after other questions; the key can't be another question's."""
    async with setting(place, [says("one"), says("two")]) as given:
        async with given.agent() as agent:
            first = await agent.ask("first", idempotency_key="k1")
            await agent.ask("second", idempotency_key="k2")
        async with given.agent() as agent:
            assert await agent.ask("first", idempotency_key="k1") == first
            with pytest.raises(ConfigurationError, match="another question's"):
                await agent.ask("other", idempotency_key="k1")
        assert len(given.model.bodies) == 2


async def test_another_question_gives_up_the_one_that_was_left(place: Place) -> None:
    """The model is told that the interrupted call has no result, and what became of the others; endpoints accept the conversation."""
    async with setting(place, [calls(("note", {"text": "a"}), ("story", {"name": "s"})), says("fine")]) as given:
        async with given.agent() as agent:
            asking = asyncio.ensure_future(agent.ask("tell"))
            await given.tools.running.wait()
            await until_recorded(given, 3)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        async with given.agent() as agent:
            assert (await agent.ask("never mind")).text == "fine"
        *_, said, first, second, question = given.model.bodies[1]["messages"]
        assert [call["id"] for call in said["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
        assert first["content"] == "noted a"
        assert "may or may not have taken effect" in second["content"]
        assert question == {"role": "user", "content": "never mind"}
        given.tools.gate.set()


async def test_a_turn_that_was_given_up_is_shown_as_any_other(place: Place) -> None:
    """The model sees the calls that ended just as without the interruption: with their images, cut, and with the next step."""
    made = [("draw", {}), ("big", {"size": 300_000}), ("fail", {}), ("leak", {}), ("story", {"name": "s"})]
    script = [calls(*made), says("1"), calls(*made), says("2"), says("3")]
    async with setting(place, lambda body: script.pop(0)) as given:
        given.tools.gate.set()
        async with given.agent("whole") as agent:
            await agent.ask("go")
        given.tools.gate.clear()
        given.tools.running.clear()
        async with given.agent() as agent:
            asking = asyncio.ensure_future(agent.ask("go"))
            await given.tools.running.wait()
            await until_recorded(given, 1 + len(made))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        given.tools.gate.set()
        async with given.agent() as agent:
            await agent.ask("never mind")
            await agent.ask("and now?")
    whole, given_up, later = (given.model.bodies[number]["messages"] for number in (1, 3, 4))
    # Calls of both turns have the same ids.
    answers = {message["tool_call_id"]: message["content"] for message in whole if message["role"] == "tool"}
    interrupted = {message["tool_call_id"]: message["content"] for message in given_up if message["role"] == "tool"}
    *ended, last = answers
    assert [interrupted[call] for call in ended] == [answers[call] for call in ended]
    assert "may or may not have taken effect" in interrupted[last]
    assert "\nNext: " in interrupted[last]
    assert [each["content"] for each in whole if isinstance(each["content"], list)] == [given_up[-2]["content"]]
    assert later[: len(given_up)] == given_up


async def test_two_agents_do_not_continue_one_conversation(place: Place) -> None:
    """While one lives and asks, another is refused, and the first is not disturbed."""
    async with setting(place, [calls(("story", {"name": "s"})), says("done")]) as given, given.agent() as one, given.agent() as two:
        asking = asyncio.ensure_future(one.ask("tell"))
        await given.tools.running.wait()
        with pytest.raises(ConversationBusy, match="another process continues"):
            await two.ask("tell")
        given.tools.gate.set()
        answer = await asking
        assert (answer.text, await two.resume()) == ("done", answer)


async def test_a_question_that_is_refused_hears_nothing_of_the_one_that_runs(place: Place) -> None:
    """An agent that is asked in the middle of a kept question tells of that question only its own listener."""
    first: list[Any] = []
    second: list[Any] = []
    async with setting(place, [calls(("story", {"name": "s"})), says("done")]) as given, given.agent() as agent:
        asking = asyncio.ensure_future(agent.ask("tell", first.append))
        await given.tools.running.wait()
        with pytest.raises(ConversationBusy):
            await agent.ask("me, too", second.append)
        given.tools.gate.set()
        assert (await asking).text == "done"
    assert (first[-1], second) == (ModelText("done"), [])


async def test_who_lost_a_conversation_writes_nothing(place: Place) -> None:
    """A conversation that is deleted while it is continued ends the question with an error, and nothing of it comes back."""
    async with setting(place, [calls(("story", {"name": "s"})), says("new")]) as given:
        async with given.agent() as agent, ToolBus(settings=given.place.settings) as bus:
            kept = bus.executor(model="m").state.steps.conversations
            asking = asyncio.ensure_future(agent.ask("tell"))
            await given.tools.running.wait()
            with pytest.raises(ConversationBusy):
                await kept.remove("", "c")
            assert await kept.remove("", "c", force=True)
            with pytest.raises(ConversationError, match="was deleted"):
                await asking
            assert await kept.read("", "c") == []
            assert not await kept.remove("", "c")
            assert (await agent.ask("again")).text == "new"
        assert told(given.model.bodies[1]) == [("system", "Be brief."), ("user", "again")]
        given.tools.gate.set()


async def test_later_calls_refer_to_results_of_another_process(place: Place) -> None:
    """In a session a reference to an earlier turn's result is resolved, though the process did not see that turn."""
    refers = {"text": {"$from": "big", "path": "text"}}
    async with setting(place, [calls(("big", {"size": 3})), says("1"), calls(("note", refers)), says("2")]) as given:
        async with given.agent(session="s") as agent:
            await agent.ask("first")
        async with given.agent(session="s") as agent:
            assert (await agent.ask("second")).failed == 0
        assert given.tools.ran == ["big", "xxx"]


async def test_the_oldest_questions_go_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation stays within its bound by leaving out whole questions, the same ones for whoever continues it."""
    monkeypatch.setattr("toolbus.agent.history.MOST_RECORDS", 6)
    async with setting(place, lambda body: says("yes")) as given:
        for number in range(5):
            async with given.agent() as agent:
                await agent.ask(f"q{number}")
        assert told(given.model.bodies[4])[1:] == [
            ("user", "q2"),
            ("assistant", "yes"),
            ("user", "q3"),
            ("assistant", "yes"),
            ("user", "q4"),
        ]


async def test_a_question_without_an_end_fills_the_conversation(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """One question that is larger than the bound ends as full; the next one has room."""
    monkeypatch.setattr("toolbus.agent.history.MOST_BYTES", 20_000)
    async with setting(place, [calls(("big", {"size": 30_000})), says("fine")]) as given:
        async with given.agent() as agent:
            assert (await agent.ask("fill it")).reason == "full"
            assert (await agent.ask("and now?")).text == "fine"
            with pytest.raises(ConfigurationError, match="over the bound"):
                await agent.ask("x" * 30_000)
        assert told(given.model.bodies[1])[-1] == ("user", "and now?")


async def test_a_large_result_is_kept_as_its_text(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that is too large to be kept whole is kept as the text that the model sees of it."""
    monkeypatch.setattr(history, "_MOST_RESULT", 1000)
    async with setting(place, [calls(("big", {"size": 5000})), says("fine")]) as given:
        async with given.agent() as agent:
            await agent.ask("go")
        async with ToolBus(settings=place.settings) as bus:
            found = await bus.executor(model="m").state.steps.conversations.read("", "c")
        results = json.loads(found[2].document)["results"]
        assert [each["data"] for each in results.values()] == [None]
        assert given.model.bodies[1]["messages"][-1]["content"].startswith('{"text":"xxx')


async def test_once_work_is_not_run_again_when_its_answer_may_be_forgotten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the retention nobody knows whether a call ran, so work that must not happen twice has an unknown outcome; other work runs."""
    monkeypatch.setattr(ExecutorContext, "retention", -1.0)
    async with setting(place, [calls(("launch", {"name": "l"}), ("note", {"text": "n"})), says("fine")]) as given:
        async with given.agent() as agent, given.agent() as other:

            def die(*args: Any, **options: Any) -> Any:
                raise RuntimeError("killed")

            with monkeypatch.context() as patched:
                patched.setattr("toolbus.bus.client.executor.executor.ToolExecutor.turn", die)
                with pytest.raises(RuntimeError, match="killed"):
                    await agent.ask("go")
            answer = await other.ask("go")
        assert (answer.calls, answer.failed, given.tools.ran) == (2, 1, ["n"])
        assert "too long ago" in given.model.bodies[1]["messages"][-2]["content"]


@pytest.mark.parametrize("name", ["x" * 1024, " a b", "日本 🎉", "{}", "../..", "*", '"]'])
async def test_any_text_is_an_id(place: Place, name: str) -> None:
    """Ids with odd characters are ids like others, and are listed as they are."""
    async with setting(place, [says("one")]) as given:
        async with given.agent(name) as agent:
            await agent.ask("first")
        async with ToolBus(settings=place.settings) as bus:
            kept = bus.executor(model="m").state.steps.conversations
            (found,) = await kept.newest(10)
            assert (found.user, found.id, found.records, found.held) == ("", name, 2, False)
            assert found.expires_at - found.used_at == pytest.approx(604_800, abs=60)
            assert await kept.remove("", name)


@pytest.mark.parametrize("name", ["", "x" * 1025, "\ud800", 5, "a\nb", "a\x00", "a\x1b[2J", "a\u202eb", "a\u200b", "\ufeffa", "a\u2028b"])
async def test_an_impossible_id_is_refused(place: Place, name: Any) -> None:
    """An id that is empty, too long, no text or not what it looks like is a mistake of usage, before anything is asked."""
    async with setting(place, []) as given:
        with pytest.raises(ConfigurationError, match="id of a conversation"):
            async with given.agent(name):
                pass
        async with ToolBus(settings=place.settings) as bus:
            kept = bus.executor(model="m").state.steps.conversations
            with pytest.raises(ConfigurationError, match="id of a conversation"):
                HeldConversation(kept, "", name)


async def test_an_empty_key_of_a_question_is_refused(place: Place) -> None:
    """A key that is empty would let a question be asked twice."""
    async with setting(place, []) as given, given.agent() as agent:
        with pytest.raises(ConfigurationError, match="at least one character"):
            await agent.ask("first", idempotency_key="")


async def test_what_only_kept_conversations_have_is_refused(place: Place) -> None:
    """A key of a question, and resuming, need a conversation that is kept."""
    async with setting(place, []) as given, given.agent(None) as agent:
        with pytest.raises(ConfigurationError, match="conversation"):
            await agent.ask("first", idempotency_key="k")
        with pytest.raises(ConfigurationError, match="conversation"):
            await agent.resume()


@pytest.mark.usefixtures("slow")
async def test_a_call_that_still_runs_is_joined(place: Place) -> None:
    """An agent that comes after one that vanished reads the stream of its call from the start to the end; the call runs once."""
    async with setting(place, [calls(("story", {"name": "s"})), says("done")]) as given:
        async with given.agent() as agent:
            asking = asyncio.ensure_future(agent.ask("tell"))
            await given.tools.running.wait()
            vanish(agent)
            heard: list[Any] = []
            async with given.agent() as other:
                joining = asyncio.ensure_future(other.ask("tell", heard.append))
                await eventually(lambda: heard, timeout=20.0)
                given.tools.gate.set()
                answer = await joining
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        assert (answer.text, answer.calls, answer.failed, given.tools.ran) == ("done", 1, 0, ["s"])
        assert (
            "".join(each.event.text for each in heard if isinstance(each, ToolEvent) and isinstance(each.event, Text)) == "once upon a time"
        )
        assert given.model.bodies[1]["messages"][-1]["content"] == "once upon a time"


def vanish(agent: Agent) -> None:
    """Make an agent one whose process is stopped: it renews nothing, and its connection takes nothing more to the server."""
    broker = agent._executor.state.dispatcher.opened().broker
    broker.steps.links.writing.run = lambda *_, **__: None  # type: ignore[method-assign,union-attr]
    broker.steps.links.writing.send = lambda *_, **__: None  # type: ignore[method-assign,union-attr]


async def test_a_server_that_restarts_in_the_middle_of_a_turn(fresh_server: Callable[..., EmbeddedServer]) -> None:
    """With its data still there, the question goes on by itself, and its call runs once."""
    server = fresh_server(config={"appendonly": "yes", "appendfsync": "always"})
    place = Place(server.url, "restarted")
    async with setting(place, [calls(("story", {"name": "s"})), says("done")]) as given, given.agent() as agent:
        asking = asyncio.ensure_future(agent.ask("tell"))
        await given.tools.running.wait()
        server.kill()
        given.tools.gate.set()
        server.start()
        answer = await asking
        assert (answer.text, answer.calls, answer.failed, given.tools.ran) == ("done", 1, 0, ["s"])
        assert await agent.resume() == answer
