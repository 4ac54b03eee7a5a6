"""The plan of the calls follows from the seed, and has everything in it."""

from __future__ import annotations

import statistics

from tests.chaos.plan import SEATED, Planned, plan


def test_the_plan_is_the_seeds() -> None:
    """The same seed plans the same calls, another one others; half of them are streams."""
    one, same, other = (plan(seed, 10_000, 5, poisoned=True, timeout=60.0, lease=2.0) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert len({call.key for call in one}) == 10_000
    assert 0.4 < sum(call.streaming for call in one) / 10_000 < 0.6
    assert [call.key for call in one] == [f"a{number % 5}-{number:06d}" for number in range(10_000)]
    assert {"crash", "segfault", "hang", "block", "hog", "endless"} <= {call.tool for call in one}


def test_idempotency_keys_are_shared_by_two_calls() -> None:
    """Each key has two calls with the same arguments: of one agent or of two, at one moment or one after the other."""
    pairs: dict[str, list[Planned]] = {}
    for call in plan(1, 4000, 5, poisoned=True, timeout=60.0, lease=2.0):
        if call.shares:
            pairs.setdefault(call.shares, []).append(call)
    assert 100 < len(pairs) < 300
    for first, second in pairs.values():
        assert first.key == first.work == second.work != second.key
        assert (first.tool, first.arguments) == (second.tool, second.arguments)
        assert (second.due == first.due) != (second.follows == first.key)
    assert {len({call.agent for call in pair}) for pair in pairs.values()} == {1, 2}


def test_some_calls_are_cancelled_before_their_end() -> None:
    """Calls that would go on for long are always cancelled, and some others too; all in time."""
    cancelled = [call for call in plan(1, 4000, 5, poisoned=True, timeout=60.0, lease=2.0) if call.cancel is not None]
    long = [call for call in cancelled if call.arguments.get("seconds", 0) > 40 or call.arguments.get("pieces", 0) == 200]
    assert {call.tool for call in long} == {"silent", "deep", "story"}
    assert 20 < len(long) < 0.7 * len(cancelled) < 140
    assert all(call.cancel < 5 for call in cancelled if call.cancel is not None)


def test_sessions_have_a_few_calls_of_one_agent() -> None:
    """Every call that needs a session is in one, with calls of the same agent; most have several."""
    found: dict[str, list[Planned]] = {}
    for call in plan(1, 4000, 5, poisoned=True, timeout=60.0, lease=2.0):
        assert (call.tool in SEATED) == bool(call.session)
        if call.session:
            found.setdefault(call.session, []).append(call)
    sizes = [len(calls) for calls in found.values()]
    assert len(sizes) > 20
    assert (max(sizes), statistics.median(sizes) >= 3) == (8, True)
    assert all(len({call.agent for call in calls}) == 1 for calls in found.values())
