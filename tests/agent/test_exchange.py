"""The calls in a kept reply, against those beside it."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus.agent.history import Exchange, ModelReply, Question
from toolbus.bus.client.executor.toolcalls import ModelCall

CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize("calls", [["x", CALL], [CALL, None], [CALL, CALL], [], "x", [{**CALL, "function": "f"}]])
def test_a_message_whose_calls_are_others_is_damaged(calls: Any) -> None:
    """Entries of it that are no calls count too: an endpoint would refuse the conversation."""
    message = {"role": "assistant", "tool_calls": calls}
    with pytest.raises(ValueError, match="record 1"):
        Exchange(Question("q"), 0).add(ModelReply(message, [ModelCall("a", "f", "{}")], "tool_calls", []), 1, 0.0)
