"""Tool calls in the shapes of the providers, and the messages that answer them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus import ConfigurationError
from toolbus.bus.client.executor.toolcalls import ModelCall, Observation, answers, tool_calls

CHAT = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESPONSES = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "g"}
ANTHROPIC = {"type": "tool_use", "id": "c1", "name": "f", "input": {}}


class Dumped:
    """An SDK's object."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def model_dump(self) -> Any:
        """Return the plain data."""
        return self.content


@pytest.mark.parametrize(
    ("message", "shape", "arguments"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [CHAT]}, "chat", "{}"),
        ({"choices": [{"message": {"role": "assistant", "tool_calls": [CHAT]}}]}, "chat", "{}"),
        (Dumped({"choices": [{"message": {"role": "assistant", "tool_calls": [CHAT]}}]}), "chat", "{}"),
        ([CHAT], "chat", "{}"),
        ([Dumped(CHAT)], "chat", "{}"),
        (CHAT, "chat", "{}"),
        ({"id": "c1", "name": "f", "arguments": {}}, "chat", {}),
        ([{"id": "c1", "name": "f", "args": {}, "type": "tool_call"}], "chat", {}),
        ([{"name": "f", "id": "c1"}], "chat", None),
        ([ModelCall("c1", "f")], "chat", None),
        ({"object": "response", "output": [{"type": "reasoning", "id": "r"}, RESPONSES]}, "responses", "{}"),
        ([{"type": "message", "role": "assistant", "content": []}, RESPONSES], "responses", "{}"),
        ({"role": "assistant", "content": [{"type": "text", "text": "hm"}, ANTHROPIC], "stop_reason": "tool_use"}, "anthropic", {}),
        ([{"type": "thinking", "thinking": "hm"}, ANTHROPIC], "anthropic", {}),
    ],
)
def test_every_shape_is_understood(message: Any, shape: Any, arguments: Any) -> None:
    """Messages, responses, lists and single calls give the same call, from plain data and from SDK objects."""
    assert tool_calls(message) == [ModelCall("c1", "f", arguments, shape)]


@pytest.mark.parametrize(
    "message", [None, [], {"role": "assistant", "content": "words"}, {"role": "assistant", "tool_calls": None}, {"output": []}]
)
def test_words_alone_are_no_calls(message: Any) -> None:
    """A message without calls gives none."""
    assert tool_calls(message) == []


@pytest.mark.parametrize("message", ["words", 3, {"what": 1}])
def test_something_else_is_refused(message: Any) -> None:
    """A value that is no message is a mistake of the program, and the error says so."""
    with pytest.raises(ConfigurationError):
        tool_calls(message)


@pytest.mark.parametrize("item", [None, 3, "f", {}, {"id": 3, "function": {"name": None}}, {"type": "tool_use"}, {"function": []}])
def test_what_is_almost_a_call_is_one_with_a_problem(item: Any) -> None:
    """A call that can't be understood has a problem and an id, so that it can be answered."""
    [call] = tool_calls({"role": "assistant", "tool_calls": [item]})
    assert call.problem
    assert call.id == "call_0"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda parts: (
            st.lists(parts, max_size=3)
            | st.dictionaries(
                st.sampled_from(["tool_calls", "content", "output", "choices", "message", "type", "name", "function", "id", "arguments"]),
                parts | st.sampled_from(["tool_use", "function_call", "function", "text"]),
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_message_raises_anything_else(message: Any) -> None:
    """Any message gives calls, gives none, or is refused, and every call can be answered."""
    try:
        calls = tool_calls(message)
    except ConfigurationError:
        return
    answers(calls, [Observation("")] * len(calls))


def test_answers_have_the_shape_of_their_calls() -> None:
    """Each shape has its own answer; Anthropic's go into one message."""
    made = answers(
        [
            ModelCall("1", "f"),
            ModelCall("2", "g", None, "responses"),
            ModelCall("3", "h", None, "anthropic"),
            ModelCall("4", "i", None, "anthropic"),
        ],
        [Observation("é"), Observation("b", success=False), Observation("c"), Observation("d", success=False)],
    )
    assert made == [
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "é"},
        {"type": "function_call_output", "call_id": "2", "output": "b"},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "3", "content": "c"},
                {"type": "tool_result", "tool_use_id": "4", "content": "d", "is_error": True},
            ],
        },
    ]
