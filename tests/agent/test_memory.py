"""A long conversation, as the model is told of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.agent.endpoint import Canned, calls, says
from tests.agent.keeping import setting, told
from tests.contract import Place
from toolbus.agent import Memory
from toolbus.agent.history import tokens, transcript
from toolbus.bus.values.results import ConfigurationError

pytestmark = pytest.mark.anyio

LONG = "word " * 300


class Model:
    """Answers each question with a long text, and sums up in a few words."""

    def __init__(self, *, fails: bool = False) -> None:
        self.asked: list[dict[str, Any]] = []
        self.summed_up: list[dict[str, Any]] = []
        self.fails = fails

    def __call__(self, body: dict[str, Any]) -> Canned:
        if body["messages"][0]["content"].startswith("You keep the memory"):
            self.summed_up.append(body)
            if self.fails:
                return Canned(b'{"error": {"message": "no"}}', status=400, kind="application/json")
            return says(f"summary {len(self.summed_up)}")
        self.asked.append(body)
        return says(f"answer {len(self.asked)} ", LONG)


async def test_older_questions_become_a_summary(place: Place) -> None:
    """Beyond the bound the model is told its summary and the latest questions; the next process knows the same."""
    model = Model()
    async with setting(place, model) as given:
        for number in range(8):
            async with given.agent(memory=Memory(2_000)) as agent:
                await agent.ask(f"question {number}")
        async with given.agent() as agent:
            await agent.resume()
            kept = agent.messages
    assert len(model.summed_up) >= 2
    assert all(tokens(body["messages"]) < 2_600 for body in model.asked)
    system, *rest = told(model.asked[-1])
    assert system[0] == "system"
    assert system[1].startswith("Be brief.")
    assert f"summary {len(model.summed_up)}" in system[1]
    assert rest[-1] == ("user", "question 7")
    assert rest[-3] == ("user", "question 6")
    assert "tools" not in model.summed_up[0]
    # A summary is of everything before: of the one before it, too.
    assert "summary 1" in model.summed_up[1]["messages"][1]["content"]
    assert "question 0" in model.summed_up[0]["messages"][1]["content"]
    assert kept[:-1] == model.asked[-1]["messages"]


async def test_the_latest_question_stays_however_long(place: Place) -> None:
    """A question that alone is over the bound is told whole to the next one."""
    model = Model()
    async with setting(place, model) as given, given.agent(memory=Memory(500)) as agent:
        for number in range(3):
            await agent.ask(f"question {number} {LONG * 2}")
    assert [content.partition(LONG)[0].strip() for role, content in told(model.asked[2]) if role == "user"] == ["question 1", "question 2"]
    assert told(model.asked[2])[2][1] == f"answer 2 {LONG}"


async def test_without_a_summary_all_stays(place: Place) -> None:
    """When the endpoint refuses to sum up, nothing is lost, and the next question tries again."""
    model = Model(fails=True)
    async with setting(place, model) as given, given.agent(memory=Memory(500)) as agent:
        for number in range(3):
            await agent.ask(f"question {number}")
        assert [content for role, content in told(model.asked[2]) if role == "user"] == [f"question {number}" for number in range(3)]
        model.fails = False
        await agent.ask("question 3")
    assert [content for role, content in told(model.asked[3]) if role == "user"] == ["question 2", "question 3"]


async def test_calls_are_summed_up_with_their_answers(place: Place) -> None:
    """Answers of tools are part of what is summed up."""
    asked: list[str] = []

    def script(body: dict[str, Any]) -> Canned:
        first, last = body["messages"][0]["content"], body["messages"][-1]
        if first.startswith("You keep the memory"):
            asked.append(last["content"])
            return says("short")
        return calls(("note", {"text": "a-1"})) if last["content"] == "note it" else says(LONG)

    async with setting(place, script) as given, given.agent(memory=Memory(500)) as agent:
        for question in ("note it", "two", "three"):
            await agent.ask(question)
    assert 'assistant: [calls note({"text": "a-1"})]\ntool note: noted a-1\nassistant: word' in asked[-1]


def test_bounds_of_a_memory() -> None:
    """A memory that is too small is refused."""
    for wrong in (0, 499, -1):
        with pytest.raises(ConfigurationError, match="at least 500 tokens"):
            Memory(wrong)
    with pytest.raises(ConfigurationError, match="seconds above 0"):
        Memory(500, within=0)


def test_a_transcript_is_bounded() -> None:
    """Long messages lose their middle, and images are named."""
    text = transcript([{"role": "user", "content": "a" * 1000}, {"role": "tool", "name": "t", "content": [{"type": "image_url"}]}], 30)
    assert text == f"user: {'a' * 20} … {'a' * 10}\ntool t: [image_url]"
