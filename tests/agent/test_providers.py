"""Endpoints that want back what they sent, each as strict as the provider that it is like."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.agent.endpoint import DONE, Canned, event, says
from tests.agent.test_agent import setting
from toolbus.agent import ModelText
from toolbus.agent.reply import spoken

pytestmark = pytest.mark.anyio

SIGNATURE = "c2lnbmF0dXJl" * 300
SAID = {"role", "content", "tool_calls"}
CALL: dict[str, Any] = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
DETAILS = [{"type": "reasoning.text", "text": "One and two.", "signature": SIGNATURE, "index": 0}]


def streamed(*deltas: dict[str, Any]) -> Canned:
    """A turn in chunks."""
    return Canned(*[event(delta) for delta in deltas], event({}, "tool_calls"), DONE)


def whole(message: dict[str, Any]) -> Canned:
    """A turn in one piece."""
    document = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    return Canned(json.dumps(document).encode(), kind="application/json")


# For each kind of endpoint: its first turn, and what of it must stand in the conversation of the second.
KINDS: dict[str, tuple[Canned, Callable[[dict[str, Any]], bool]]] = {
    # A field of the call, https://ai.google.dev/gemini-api/docs/thought-signatures
    "gemini": (
        streamed({"tool_calls": [{**CALL, "extra_content": {"google": {"thought_signature": SIGNATURE}}}]}),
        lambda said: said["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": SIGNATURE}},
    ),
    # A field of the message, in pieces, https://api-docs.deepseek.com/guides/thinking_mode
    "deepseek": (
        streamed({"reasoning_content": "One "}, {"reasoning_content": "and two."}, {"content": "", "tool_calls": [CALL]}),
        lambda said: said["reasoning_content"] == "One and two.",
    ),
    # The signature in the call's id, as LiteLLM carries it through clients that know no other place.
    "litellm": (
        streamed({"tool_calls": [{**CALL, "id": f"call_1__thought__{SIGNATURE}"}]}),
        lambda said: said["tool_calls"][0]["id"] == f"call_1__thought__{SIGNATURE}",
    ),
    # A list of the message, https://openrouter.ai/docs/guides/best-practices/reasoning-tokens
    "openrouter": (
        streamed({"reasoning_details": DETAILS}, {"tool_calls": [CALL]}),
        lambda said: said["reasoning_details"] == DETAILS,
    ),
    # A field of the function.
    "within": (
        streamed({"tool_calls": [{**CALL, "function": {**CALL["function"], "signature": "s"}}]}),
        lambda said: said["tool_calls"][0]["function"]["signature"] == "s",
    ),
    "openai": (streamed({"role": "assistant", "content": None}, {"tool_calls": [CALL]}), lambda said: said.keys() == SAID),
    "at once": (
        whole({"role": "assistant", "content": None, "reasoning_content": "One.", "tool_calls": [{**CALL, "extra_content": {"a": 1}}]}),
        lambda said: (said["reasoning_content"], said["tool_calls"][0]["extra_content"]) == ("One.", {"a": 1}),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_an_endpoint_gets_back_what_it_sent(kind: str) -> None:
    """It answers 400 to a second turn without it, or whose answers do not name its calls."""
    first, is_back = KINDS[kind]

    def strict(body: dict[str, Any]) -> Canned:
        said = [each for each in body["messages"] if each["role"] == "assistant"]
        if not said:
            return first
        answered = {each["tool_call_id"] for each in body["messages"] if each["role"] == "tool"}
        if not is_back(said[0]) or answered != {each["id"] for each in said[0]["tool_calls"]}:
            return Canned(b'{"error": {"message": "what was sent is missing"}}', status=400, kind="application/json")
        return says("3")

    async with setting(strict) as given:
        answer = await given.ask()
        assert (answer.text, answer.reason, answer.calls, answer.failed) == ("3", "answered", 1, 0)


async def test_thoughts_are_no_answer() -> None:
    """Thoughts that a model says aloud at the beginning are neither heard nor answered, and go back to it as it said them."""
    words = ["<th", "ink>\nHm, <b>", "</thi", "nk", ">\n", "\n", "It is ", "<think> 3."]
    async with setting([says(*words), says("4")]) as given:
        answer = await given.ask()
        assert answer.text == "It is <think> 3."
        assert "".join(each.text for each in given.heard if isinstance(each, ModelText)) == answer.text
        await given.ask("more")
        assert given.model.bodies[1]["messages"][-2] == {"role": "assistant", "content": "".join(words)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("a < b", "a < b"),
        ("<thing>", "<thing>"),
        (" <think>x</think> y", "y"),
        ("<think>x", ""),
        ("a <think>x</think>", "a <think>x</think>"),
    ],
)
def test_only_a_thought_at_the_beginning_is_left_out(text: str, said: str) -> None:
    """Everything else is what the model says."""
    assert spoken(text) == said
