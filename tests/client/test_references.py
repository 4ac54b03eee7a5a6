"""Earlier results as arguments."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus import ToolError, ToolResult
from toolbus.bus.client.executor.references import Kept, Memories, references, resolved

DATA = {"items": [{"id": "d1"}, {"id": "d2"}], "a.b": 1}


def find(reference: str) -> Kept | None:
    """One result."""
    return {"search": Kept("search", DATA, 1), "text": Kept("text", "words", 1), "bad": Kept("bad", None, 0, "failed (tool_error)")}.get(
        reference
    )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (None, DATA),
        ("", DATA),
        ("$", DATA),
        ("items[0].id", "d1"),
        ("$.items[-1].id", "d2"),
        ("items.1.id", "d2"),
        ('["a.b"]', 1),
        (["items", 1, "id"], "d2"),
    ],
)
def test_a_path_leads_into_the_data(path: Any, value: Any) -> None:
    """Dots, brackets, a dollar and lists lead to a value; without a path it is the whole result."""
    reference = {"$from": "search"} if path is None else {"$from": "search", "path": path}
    assert resolved({"deep": [reference]}, find) == {"deep": [value]}
    assert list(references({"deep": [reference]})) == ["search"]


@pytest.mark.parametrize(
    "reference",
    [
        {"$from": "nothing"},
        {"$from": "bad"},
        {"$from": "search", "path": "items[7]"},
        {"$from": "search", "path": "items[0"},
        {"$from": "search", "path": 3},
        {"$from": "text", "path": "id"},
    ],
)
def test_what_leads_nowhere_is_an_error_for_the_model(reference: Any) -> None:
    """A reference to nothing, to a failure, or past what is there is refused with its place."""
    with pytest.raises(ToolError, match=r"\$\.id") as refused:
        resolved({"id": reference}, find)
    assert refused.value.error.type == "invalid_arguments"


def test_other_objects_are_left_alone() -> None:
    """Only an object of ``$from`` and ``path`` is a reference."""
    for value in ({"$from": 3}, {"$from": "search", "also": 1}, {"path": "x"}):
        assert resolved({"a": value}, find) == {"a": value}
        assert list(references({"a": value})) == []


def test_sessions_do_not_see_each_other() -> None:
    """A result is found in its own session alone, and a tool's name stands for its latest."""
    memories = Memories()
    for call, data in (("c1", 1), ("c2", 2)):
        memories.keep("alice", "s", call, "search", ToolResult.ok(data))
    memory = memories.of("alice", "s")
    assert [getattr(memory.get(name), "value", None) for name in ("c1", "c2", "search", "c3")] == [1, 2, 2, None]
    assert memories.of("bob", "s").get("c1") is None
    assert memories.of("alice", "t").get("search") is None


def test_nothing_is_kept_without_a_session() -> None:
    """Without a session a result is not kept: every conversation of a bus would find it, whoever its user is."""
    memories = Memories()
    for user in ("", "alice"):
        memories.keep(user, "", "c1", "search", ToolResult.ok(1))
        assert memories.of(user, "").get("c1") is None
        assert memories.of(user, "").get("search") is None
    assert not memories._sessions


def test_memory_is_bounded() -> None:
    """Old results and old sessions are forgotten, and what is too large is remembered as that."""
    memories = Memories()
    for number in range(200):
        memories.keep("u", "s", f"c{number}", "t", ToolResult.ok("x" * 1_000_000))
        memories.keep("u", f"s{number}", "c", "t", ToolResult.ok("x" * 1_000_000))
    assert memories.of("u", "s0").get("c") is None
    assert memories.of("u", "s199").get("c") is not None
    assert sum(memory.size for memory in memories._sessions.values()) <= 67_108_864
    memories.keep("u", "s", "big", "t", ToolResult.ok("x" * 2_000_000))
    kept = memories.of("u", "s").get("big")
    assert kept is not None
    assert "too large" in kept.problem
