"""The oracle is right: it passes what is right, and catches each thing that can go wrong."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.chaos import oracle
from tests.chaos.history import (
    Begun,
    Cancelled,
    Counted,
    Ended,
    Exited,
    History,
    Hit,
    Issued,
    Journal,
    Key,
    Left,
    Planted,
    Queue,
    Sample,
    Serving,
    Started,
    State,
    read,
)
from tests.chaos.oracle import judge
from tests.chaos.oracle.case import Case
from tests.chaos.plan import Planned, inner, story
from tests.chaos.report import recoveries, report, text
from tests.chaos.samples import (
    AGENT,
    BABBLE,
    BACKLOGS,
    CRASH,
    DEEP,
    ECHO,
    FLAKY,
    GIVEN_UP,
    OPTIONS,
    OTHER,
    PAY,
    PLANNED,
    RUN_A,
    RUN_B,
    SAID,
    SEATS,
    SHARED,
    SITS,
    STAYS,
    STORY,
    TWIN,
    WORKER,
    Change,
    changed,
    clean,
    seen,
    unreached,
    violations,
    with_,
    without,
)
from tests.chaos.tools import define
from toolbus.testing import InvocationEnvironment

TOLD = list(story(STORY.key, 6))
QUEUE = Queue("tb:{chaos}:q:chaos", 0, 0, ())

PLANTED: dict[str, tuple[Change, str, str]] = {
    "a missing terminal": (without(Ended, ECHO.key), "one-end", ECHO.key),
    "a call that was never made": (lambda records: without(Issued, ECHO.key)(without(Ended, ECHO.key)(records)), "one-end", ECHO.key),
    "two terminals": (with_(Ended(9.0, ECHO.key, "x", AGENT, 1.0, True, f"{ECHO.key}:hello")), "one-end", ECHO.key),
    "a second Finished event": (changed(Ended, STORY.key, finished=2), "one-end", STORY.key),
    "a wrong output": (changed(Ended, ECHO.key, output="hello"), "one-end", ECHO.key),
    "a success out of nothing": (without(Begun, ECHO.key), "one-end", ECHO.key),
    "a lost call that ends by its deadline": (
        changed(Ended, ECHO.key, success=False, output=None, error="deadline_exceeded"),
        "one-end",
        ECHO.key,
    ),
    "lost once work that ends by its deadline": (
        changed(Ended, PAY.key, success=False, output=None, error="outcome_unknown", code="deadline_exceeded"),
        "one-end",
        PAY.key,
    ),
    "a refusal of what ran": (changed(Ended, ECHO.key, success=False, output=None, error="unavailable"), "one-end", ECHO.key),
    "given up by its deadline too early": (
        lambda records: [
            *changed(Ended, ECHO.key, success=False, output=None, error="deadline_exceeded")(records),
            Begun(2.0, ECHO.key, 2, 1),
            Begun(2.1, ECHO.key, 3, 1),
        ],
        "one-end",
        ECHO.key,
    ),
    "given up too early": (
        changed(Ended, ECHO.key, success=False, output=None, error="tool_error", code="max_deliveries"),
        "one-end",
        ECHO.key,
    ),
    "a success of poison": (changed(Ended, CRASH.key, success=True, error="", code="", output="fine"), "one-end", CRASH.key),
    "a lost dead letter": (changed(State, "quiet", letters=()), "one-end", CRASH.key),
    "an unreadable request silently gone": (with_(Planted(3.0, "7-7")), "one-end", ""),
    "a lost piece": (seen(STORY, "".join(TOLD[:2] + TOLD[3:])), "stream", STORY.key),
    "a lost end": (seen(STORY, "".join(TOLD[:-1])), "stream", STORY.key),
    "a repeated piece": (seen(STORY, "".join([*TOLD[:2], *TOLD[1:]])), "stream", STORY.key),
    "pieces out of order": (seen(STORY, "".join([TOLD[1], TOLD[0], *TOLD[2:]])), "stream", STORY.key),
    "a needless reset": (seen(STORY, "".join(TOLD[:2]), "".join(TOLD)), "stream", STORY.key),
    "a result that differs from its events": (seen(STORY, "".join(TOLD[:-1]), output="".join(TOLD)), "stream", STORY.key),
    "mixed runs": (seen(BABBLE, "".join(RUN_A[:2] + RUN_B[2:])), "stream", BABBLE.key),
    "a run from its middle": (seen(BABBLE, "".join(RUN_A[:2]), "".join(RUN_B[2:])), "stream", BABBLE.key),
    "a broken piece": (seen(BABBLE, "".join(RUN_A)[:-1]), "stream", BABBLE.key),
    "a wrong prefix of a failed stream": (
        changed(Ended, STORY.key, success=False, error="unavailable", segments=(TOLD[1],), output=None),
        "stream",
        STORY.key,
    ),
    "two callers with one key and two answers": (seen(TWIN, OTHER), "shared", SHARED.key),
    "one key that runs as two calls": (with_(Begun(7.15, SHARED.key, 1, WORKER + 32, "id8")), "shared", SHARED.key),
    "a second caller's lost piece": (seen(TWIN, SAID[: len(SAID) // 2]), "stream", TWIN.key),
    "a shared call of a killed agent that was not made again": (
        lambda records: with_(Exited(7.2, "agent", AGENT, -9, True))(without(Ended, SHARED.key)(records)),
        "one-end",
        SHARED.key,
    ),
    "a failure that should have been tried again": (
        changed(Ended, FLAKY.key, success=False, output=None, error="tool_error", code="not_yet"),
        "one-end",
        FLAKY.key,
    ),
    "a cancellation that nobody asked for": (without(Cancelled, DEEP.key), "one-end", DEEP.key),
    "a cancelled call that ends late": (changed(Ended, DEEP.key, at=18.0), "cancelled", DEEP.key),
    "a cancelled call that ends twice": (with_(Ended(8.6, DEEP.key, "id9", AGENT, 8.0, False, error="cancelled")), "one-end", DEEP.key),
    "a handler that goes on when its call is cancelled": (changed(Left, DEEP.key, at=18.0), "cancelled", DEEP.key),
    "a handler that begins long after its call was cancelled": (
        with_(Begun(18.5, DEEP.key, 2, WORKER, "id9"), Left(18.6, DEEP.key, 2, WORKER, "cancelled")),
        "cancelled",
        DEEP.key,
    ),
    "a nested handler that goes on": (changed(Left, inner(DEEP.key), at=18.0), "cancelled", inner(DEEP.key)),
    "a handler that goes on when its agent has died": (
        lambda records: with_(Exited(1.15, "agent", AGENT, -9, True))(changed(Left, ECHO.key, at=90.5)(without(Ended, ECHO.key)(records))),
        "cancelled",
        ECHO.key,
    ),
    "a session that goes back": (changed(Ended, SITS[3].key, output=f"{SITS[3].key}:1.5:3"), "session", SITS[3].key),
    "two lives of a session in turns": (
        lambda records: changed(Ended, SITS[1].key, output=f"{SITS[1].key}:2.7:3")(
            changed(Ended, SITS[2].key, output=f"{SITS[2].key}:1.5:2")(records)
        ),
        "session",
        SITS[2].key,
    ),
    "two calls that are one to their session": (changed(Ended, SITS[1].key, output=f"{SITS[1].key}:1.5:1"), "session", SITS[1].key),
    "a call that is in its session's state twice": (
        changed(Ended, STAYS[2].key, output=f"{STAYS[2].key}:1.6:4:{STAYS[1].key}"),
        "session",
        STAYS[2].key,
    ),
    "a state that was lost, and nobody was told": (changed(Ended, STAYS[2].key, output=f"{STAYS[2].key}:2.9:1"), "session", STAYS[2].key),
    "a lost state where nothing was lost": (
        changed(Ended, STAYS[2].key, success=False, output=None, error="tool_error", code="session_lost"),
        "one-end",
        STAYS[2].key,
    ),
    "an answer of another call's seat": (changed(Ended, SITS[1].key, output=SEATS[0]), "one-end", SITS[1].key),
    "text of another call": (seen(STORY, "".join(story("a0-000009", 6))), "address", STORY.key),
    "a frame that overtook another": (with_(Counted(7.0, "agent-0", 0, 1)), "stream", ""),
    "an unreadable frame that nobody planted": (with_(Counted(7.0, "agent-1", 1)), "address", ""),
    "once work done twice": (with_(Begun(9.0, PAY.key, 2, WORKER + 30)), "executions", PAY.key),
    "too many deliveries": (with_(Begun(7.0, CRASH.key, 6, WORKER + 31)), "executions", CRASH.key),
    "work that nobody asked for": (with_(Begun(7.0, "a0-777777", 1, WORKER)), "executions", "a0-777777"),
    "an execution that never ends": (without(Left, ECHO.key), "executions", ECHO.key),
    "a call that ends long after its deadline": (changed(Ended, ECHO.key, at=1.0 + 60 + 6), "one-end", ECHO.key),
    "an execution far beyond its time, in a run that was cut short": (
        lambda records: without(State)(changed(Left, ECHO.key, at=19.0 + 60)(records)),
        "executions",
        ECHO.key,
    ),
    "an execution far beyond its time": (changed(Left, ECHO.key, at=19.0 + 60), "executions", ECHO.key),
    "an entry left in a queue": (changed(State, "quiet", queues=(msgspec.structs.replace(QUEUE, length=1),)), "rest", ""),
    "a pending entry": (changed(State, "closed", queues=(msgspec.structs.replace(QUEUE, pending=1),)), "rest", ""),
    "a dead consumer": (changed(State, "quiet", queues=(msgspec.structs.replace(QUEUE, consumers=("ghost",)),)), "rest", ""),
    "a dead instance in the registry": (changed(State, "quiet", dead=("ghost",)), "rest", ""),
    "a key without a TTL": (changed(State, "quiet", keys=(Key("started:x", -1),)), "rest", ""),
    "a reply stream that outlives its agent": (changed(State, "later", keys=(Key("rsp:agent-0", 100_000),)), "rest", ""),
    "a lease that outlives its worker": (changed(State, "later", live=("w",)), "rest", ""),
    "a run that was cut short": (lambda records: [each for each in records if not isinstance(each, State)], "rest", ""),
    "a server that grows": (with_(*(Sample(20.0 + i, 300_000_000 + i, {}) for i in range(20))), "memory", ""),
    "a worker that grows": (with_(*(Sample(20.0 + i, 2_000_000, {f"worker:{WORKER}": 400_000_000}) for i in range(20))), "memory", ""),
    "a death without a cause": (with_(Exited(8.0, "worker", WORKER + 40, 1, False)), "processes", ""),
    "a crash that is no poison's": (with_(Exited(8.0, "worker", WORKER + 41, -11, False)), "processes", ""),
    "a worker that did not drain": (changed(State, "closed", workers=(WORKER,)), "processes", ""),
}


def test_a_clean_history_has_no_violations() -> None:
    """A run in which everything was as promised passes, kills and poison included."""
    assert violations(clean()) == []


@pytest.mark.parametrize("what", PLANTED)
def test_each_planted_fault_is_caught(what: str) -> None:
    """One thing that went wrong is found, under its rule and its call."""
    change, rule, key = PLANTED[what]
    found = violations(change(clean()))
    assert (rule, key) in {(violation.rule, violation.key) for violation in found}


def test_each_rule_has_a_planted_fault() -> None:
    """Each thing that the oracle can say is wrong was seen once, but for the outputs of tools that none of the samples calls."""

    def judge_everything() -> None:
        for change, _, _ in PLANTED.values():
            violations(change(clean()))
        for runs in BACKLOGS:
            judge(msgspec.structs.replace(OPTIONS, backlog=3), PLANNED, History(clean(), runs))

    sources = [path for path in Path(oracle.__file__).parent.glob("*.py") if path.name != "outputs.py"]
    assert unreached(sources, judge_everything) == []


def test_a_reset_before_another_run_is_right() -> None:
    """A diverging stream may begin anew after an explicit reset."""
    assert violations(seen(BABBLE, "".join(RUN_A[:3]), "".join(RUN_B))(clean())) == []


def test_calls_of_a_killed_agent_need_no_result() -> None:
    """The calls of a killed agent need no recorded end, because it can't have written one."""
    killed = Exited(1.2, "agent", AGENT, -9, True)
    assert violations(with_(killed)(without(Ended, ECHO.key)(clean()))) == []


def test_a_shared_call_is_made_again_by_the_restarted_agent() -> None:
    """An agent that was killed may find its call again: two beginnings, one end."""
    killed = [Issued(6.9, SHARED.key, AGENT + 7), Exited(6.95, "agent", AGENT + 7, -9, True)]
    assert violations(with_(*killed)(clean())) == []


def test_a_call_stands_for_the_work_that_it_shares() -> None:
    """The later one of two calls with an idempotency key is planned work by itself, also when the first is not made."""
    planned = [call for call in PLANNED if call != SHARED]
    assert judge(OPTIONS, planned, History(without(Ended, SHARED.key)(clean()))) == []


def test_a_failure_frees_an_idempotency_key() -> None:
    """When one of the callers saw the call fail, or may have before it was killed, the next one's may run anew; not so once work."""
    again = with_(Begun(7.25, SHARED.key, 1, WORKER, "id8"), Left(7.26, SHARED.key, 1, WORKER, "done"))
    failed = changed(Ended, SHARED.key, success=False, output=None, error="tool_error", code="max_deliveries", segments=())
    assert [found.rule for found in violations(again(clean()))] == ["shared"]
    assert "shared" not in {found.rule for found in violations(again(failed(clean())))}
    killed = with_(Issued(6.9, SHARED.key, AGENT + 7), Exited(6.95, "agent", AGENT + 7, -9, True))
    assert "shared" not in {found.rule for found in violations(again(killed(clean())))}
    pay = [msgspec.structs.replace(call, tool="pay", arguments={"key": SHARED.key, "seconds": 0.0}) for call in (SHARED, TWIN)]
    found = judge(OPTIONS, [*(call for call in PLANNED if not call.shares), *pay], History(again(failed(clean()))))
    assert {("shared", SHARED.key), ("executions", SHARED.key)} <= {(each.rule, each.key) for each in found}


def test_a_handler_that_nobody_can_reach_may_go_on() -> None:
    """Word of a cancellation takes as long as whatever silences its agent or worker, and no longer."""
    late = changed(Left, DEEP.key, at=18.0)
    for kind, pids, right in (("stop", (WORKER,), True), ("partition", (), True), ("stop", (WORKER + 1,), False), ("kill", (), False)):
        assert (violations(with_(Hit(8.4, kind, 12.4, "", pids))(late(clean()))) == []) is right
    assert violations(with_(Hit(8.4, "partition", 8.6, ""))(late(clean())))


def test_a_cancellation_may_die_with_its_agent() -> None:
    """One that is killed before a server that was away can be heard has told nobody; one that lived on, or was heard, has."""
    again = with_(Begun(18.5, DEEP.key, 2, WORKER, "id9"), Left(18.6, DEEP.key, 2, WORKER, "done"))
    for away, killed, right in ((8.6, 9.3, True), (8.2, 9.3, False), (8.6, 30.0, False)):
        faults = with_(Hit(8.0, "server-kill", away, ""), Exited(killed, "agent", AGENT, -9, True))
        late = [found for found in violations(again(faults(clean()))) if found.key == DEEP.key and "began" in found.what]
        assert (late == []) is right, (away, killed)
    for step, right in (("publish/cancel", True), ("publish/publish", True), ("publish/listen", False)):
        faults = with_(Hit(8.5, "agent-kill", 8.5, f"agent-1 at {step}", (AGENT,)), Exited(8.5, "agent", AGENT, -9, True))
        late = [found for found in violations(again(faults(clean()))) if found.key == DEEP.key and "began" in found.what]
        assert (late == []) is right, step


def test_what_a_worker_had_taken_when_the_server_lost_it_ends_with_its_time() -> None:
    """Nobody can cancel it; what was made after the loss is known."""
    [begun] = [each for each in clean() if isinstance(each, Begun) and each.key == ECHO.key]
    for at, right in ((begun.at - 0.001, True), (0.5, False)):
        found = violations(with_(Hit(at, "flushall", at, ""))(changed(Left, ECHO.key, at=25.0)(clean())))
        assert ("executions" not in {each.rule for each in found if each.key == ECHO.key}) is right, at


def test_a_worker_that_leaves_answers_what_it_had_begun_of_a_session() -> None:
    """While it drains, a session has calls at the old worker and at the new one; before that, it has not."""
    late = changed(Ended, SITS[3].key, output=f"{SITS[3].key}:1.5:3")
    assert violations(with_(Hit(9.25, "term", 9.25, "", (1,)))(late(clean()))) == []
    first = changed(Ended, SITS[1].key, output=f"{SITS[1].key}:3.9:1")
    assert violations(with_(Hit(9.05, "term", 9.05, "", (3,)))(first(clean()))) == []
    turns = changed(Ended, SITS[2].key, output=f"{SITS[2].key}:1.5:2")
    assert violations(with_(Hit(9.05, "term", 9.05, "", (3,)))(turns(first(clean())))) == []
    assert [found.rule for found in violations(turns(first(clean())))] == ["session"]
    for hit in (Hit(9.25, "term", 9.25, "", (2,)), Hit(9.9, "term", 9.9, "", (1,)), Hit(9.25, "kill", 9.25, "", (1,))):
        assert [found.rule for found in violations(with_(hit)(late(clean())))] == ["session"]


@pytest.mark.parametrize(("at", "until", "right"), [(9.1, 9.1, True), (8.0, 8.5, True), (8.0, 8.2, False), (9.9, 9.9, False)])
def test_a_session_that_the_server_lost_has_another_worker_beside_the_first(at: float, until: float, right: bool) -> None:
    """The first one still answers the call that it ran then, or has begun before its next beat; another call of it is a violation."""
    late = changed(Ended, SITS[3].key, output=f"{SITS[3].key}:1.5:3", began=9.0)
    found = violations(with_(Hit(at, "flushall", until, ""))(late(clean())))
    assert ("session" not in {each.rule for each in found}) is right


def test_a_worker_beside_the_one_that_has_a_session_does_not_take_it_over() -> None:
    """It did not know yet that the server had lost whose the session is, and those that follow come from the first one."""
    beside = changed(Ended, SITS[1].key, output=f"{SITS[1].key}:3.9:1")(clean())
    beside = changed(Ended, SITS[2].key, output=f"{SITS[2].key}:1.5:2")(beside)
    assert "session" in {each.rule for each in violations(beside)}
    assert "session" not in {each.rule for each in violations(with_(Hit(9.05, "flushall", 9.05, ""))(beside))}


def test_a_call_of_a_dead_agent_may_outlive_it_by_as_many_streams_as_there_are_others() -> None:
    """Each worker that sends to it makes its reply stream anew for a moment, which the others take for a sign of life.

    So do those that came in the place of workers that ran its calls and died.
    """
    gone = with_(Exited(1.15, "agent", AGENT, -9, True))
    alone = without(Begun, CRASH.key)(without(Ended, ECHO.key)(clean()))
    for at, workers, others, right in ((30.5, 4, 0, True), (30.5, 2, 0, False), (30.5, 2, 3, True), (18.0, 1, 0, True)):
        late = gone(changed(Left, ECHO.key, at=at)(alone))
        for pid in range(WORKER + 1, WORKER + 1 + others):
            late = with_(Begun(1.12, ECHO.key, 1, pid, f"id{pid}"), Left(2.0, ECHO.key, 1, pid, "done"))(late)
        found = violations(late, msgspec.structs.replace(OPTIONS, workers=workers))
        assert ("cancelled" not in {each.rule for each in found}) is right, (at, workers, others)


def test_a_run_that_goes_on_is_not_begun_again() -> None:
    """Not while its worker lives and can be heard; one that was stopped or cut off may have lost it, and another call is another matter."""
    again = with_(Begun(2.15, STORY.key, 2, WORKER + 60, "id2"), Left(2.18, STORY.key, 2, WORKER + 60, "done"))
    assert {found.rule for found in violations(again(clean()))} == {"executions"}
    for hit, right in (
        (Hit(1.0, "stop", 2.1, "", (WORKER,)), True),
        (Hit(1.0, "stop", 2.1, "", (WORKER + 1,)), False),
        (Hit(1.0, "partition", 2.1, ""), True),
        (Hit(-15.0, "half-open", -15.0, ""), True),
        (Hit(-15.0, "partition", -15.0, ""), False),
        (Hit(2.0, "term", 2.0, "", (WORKER,)), False),
    ):
        assert (violations(with_(hit)(again(clean()))) == []) is right
    other = with_(Begun(2.15, STORY.key, 2, WORKER + 60, "another"), Left(2.18, STORY.key, 2, WORKER + 60, "done"))
    assert violations(other(clean())) == []


def test_a_failure_has_its_last_attempt_when_there_is_no_time_for_another() -> None:
    """Before that it is tried again."""
    [ended] = [each for each in clean() if isinstance(each, Ended) and each.key == FLAKY.key]
    for left, right in ((0.5, True), (5.0, False)):
        failed = changed(
            Ended, FLAKY.key, success=False, output=None, error="tool_error", code="not_yet", at=ended.began + FLAKY.timeout - left
        )
        found = {each.rule for each in violations(failed(clean())) if each.key == FLAKY.key and "not_yet" in each.what}
        assert (found == set()) is right, left


def test_unknown_outcomes_are_for_once_work_only() -> None:
    """``outcome_unknown`` is an answer for work that must not be repeated, and a violation for all else."""
    fields = {"success": False, "output": None, "error": "outcome_unknown"}
    assert violations(changed(Ended, PAY.key, **fields)(clean())) == []
    assert [found.key for found in violations(changed(Ended, ECHO.key, **fields)(clean()))] == [ECHO.key]


def test_a_server_without_persistence_may_lose_work_but_not_repeat_it() -> None:
    """With data loss among the faults a deadline is an end, and once is still once."""
    options = msgspec.structs.replace(OPTIONS, durable=False, faults=("server-kill",))
    lost = changed(Ended, ECHO.key, success=False, output=None, error="deadline_exceeded")
    assert violations(lost(clean()), options) == []
    assert violations(PLANTED["once work done twice"][0](clean()), options)


def test_a_server_that_loses_a_snapshot_brings_an_older_state_back() -> None:
    """Then a session counts a call again as it has counted another one; without such a loss that is a violation."""
    again = changed(Ended, STAYS[2].key, output=f"{STAYS[2].key}:1.6:2")
    for faults, right in ((("flushall", "kill", "poison"), True), (OPTIONS.faults, False)):
        options = msgspec.structs.replace(OPTIONS, faults=faults)
        assert ("session" not in {found.rule for found in violations(again(clean()), options)}) is right


@pytest.mark.parametrize(("at", "right"), [(8.0, True), (-5.0, False)])
def test_a_server_that_loses_a_cancellation_lets_its_call_run(at: float, right: bool) -> None:
    """Be it long afterwards, when a worker has room; one that lost something much earlier has no such excuse."""
    options = msgspec.structs.replace(OPTIONS, faults=("flushall", "kill", "poison"))
    again = with_(Begun(18.5, DEEP.key, 2, WORKER, "id9"), Left(18.6, DEEP.key, 2, WORKER, "cancelled"), Hit(at, "flushall", at, ""))
    assert ("cancelled" not in {found.rule for found in violations(again(clean()), options)}) is right


def test_an_agent_that_was_cut_off_for_long_may_lose_its_calls() -> None:
    """A server that takes a quarter of a minute to come back finds its agents gone; one that takes two seconds does not."""
    lost = changed(Ended, ECHO.key, success=False, output=None, error="deadline_exceeded")
    assert violations(with_(Hit(-5.5, "server-kill", 9.5, ""))(lost(clean()))) == []
    assert violations(with_(Hit(0.5, "server-kill", 2.5, ""))(lost(clean())))
    assert violations(with_(Hit(4.5, "server-kill", 19.5, ""))(lost(clean())))
    assert violations(with_(Hit(-25.0, "server-kill", -10.0, ""))(lost(clean())))


def test_a_pool_that_only_starts_may_let_calls_wait_too_long() -> None:
    """Nobody keeps a deadline where workers are killed before they serve; somebody does where they serve half of the time."""
    lost = changed(Ended, ECHO.key, success=False, output=None, error="deadline_exceeded")
    pool = with_(Started(0.0, "worker", WORKER + 80), Started(0.0, "worker", WORKER + 81), Exited(1.2, "worker", WORKER + 81, -9, True))
    for at, right in ((1.25, True), (1.0, False)):
        assert (violations(with_(Serving(at, WORKER + 80))(pool(lost(clean())))) == []) is right
    assert violations(pool(lost(clean())))


@pytest.mark.parametrize(
    ("where", "right"), [(" at take/count", True), (" at sessions/load", True), (" at lease/renew", False), ("", False)]
)
def test_a_worker_that_is_killed_between_the_count_of_an_attempt_and_its_handler_has_used_it(where: str, right: bool) -> None:
    """A call of which that often became nothing may be given up; one whose workers were killed elsewhere may not."""
    [ended] = [each for each in clean() if isinstance(each, Ended) and each.key == FLAKY.key]
    at = (ended.began + ended.at) / 2
    kills = [Hit(at, "kill", at, f"kill worker-1{where}", (WORKER + 40 + number,)) for number in range(4)]
    failed = changed(Ended, FLAKY.key, success=False, output=None, error="tool_error", code="max_deliveries")
    found = [each.what for each in violations(with_(*kills)(failed(clean()))) if (each.rule, each.key) == ("one-end", FLAKY.key)]
    assert any(what.startswith("tool_error/max_deliveries") for what in found) is not right


@pytest.mark.parametrize(
    ("why", "at", "right"),
    [("died", 2.0, True), ("client-pause", 2.0, True), ("half-open", 0.5, True), ("client-pause", 0.5, False), ("kill", 2.0, False)],
)
def test_a_caller_waits_for_an_answer_to_the_question_of_a_dead_worker(why: str, at: float, right: bool) -> None:
    """Its time stands still until the call is run again, or the server can be asked; where nothing keeps the answer it has a deadline."""
    ask = Planned("a0-000000", 0, "ask", {"key": "a0-000000"}, 0.0, 2.0)
    first = Exited(1.5, "worker", WORKER + 1, -9, True) if why == "died" else Left(1.5, ask.key, 1, WORKER + 1, "ToolError")
    records = [Issued(1.0, ask.key, AGENT), Begun(1.1, ask.key, 1, WORKER + 1), first]
    records += [Begun(9.0, ask.key, 2, WORKER), Left(9.1, ask.key, 2, WORKER, "done")]
    records.append(Ended(9.2, ask.key, "id", AGENT, 1.0, True, f"{ask.key}:allowed", attempts=2))
    records.append(Hit(at, "kill" if why == "died" else why, at, ""))
    found = judge(OPTIONS, [ask], History(records))
    assert (not any(each.what == "it ended 6.2 s after its deadline" for each in found)) is right


@pytest.mark.parametrize(("gone", "right"), [(8.6, True), (8.9, True), (11.0, False)])
def test_a_cancellation_may_die_with_the_worker_that_passes_it_on(gone: float, right: bool) -> None:
    """The calls of a handler are given up when its worker counts as gone; one that lived on has had the time to say so."""
    moved = [changed(kind, DEEP.key, pid=WORKER + 40) for kind in (Begun, Left)]
    records = with_(Exited(gone, "worker", WORKER + 40, -9, True))(changed(Left, inner(DEEP.key), at=21.0)(clean()))
    for change in moved:
        records = change(records)
    found = {(each.key, each.rule) for each in violations(records)}
    assert ((inner(DEEP.key), "cancelled") not in found) is right


@pytest.mark.parametrize(("code", "right"), [("state_unread", True), ("", False)])
def test_the_state_may_be_refused_for_another_run(code: str, right: bool) -> None:
    """A call that is unavailable for anything else has not begun to run."""
    refused = changed(Ended, STAYS[2].key, success=False, output=None, error="unavailable", code=code)
    assert ((STAYS[2].key, "one-end") not in {(each.key, each.rule) for each in violations(refused(clean()))}) is right


@pytest.mark.parametrize(("fault", "right"), [("flushall", True), ("group-destroy", True), ("kill", False)])
def test_a_call_that_the_server_lost_keeps_no_snapshot(fault: str, right: bool) -> None:
    """Its caller is told that what it changed may be lost; a server that lost nothing has no reason to."""
    moved = changed(Ended, STAYS[2].key, success=False, output=None, error="tool_error", code="session_moved")
    options = msgspec.structs.replace(OPTIONS, faults=(fault,))
    assert ((STAYS[2].key, "one-end") not in {(each.key, each.rule) for each in violations(moved(clean()), options)}) is right


@pytest.mark.parametrize(
    ("what", "until", "right"),
    [("refuse-oom", 100.0, True), ("refuse-few OOM", 100.0, True), ("refuse-oom", 0.5, False), ("kill", 100.0, False)],
)
def test_a_server_without_room_keeps_no_snapshot(what: str, until: float, right: bool) -> None:
    """The state is then lost with its worker, which is told; before the session was used, and with room, there is no such excuse."""
    told = changed(Ended, STAYS[2].key, success=False, output=None, error="tool_error", code="session_lost")
    found = violations(with_(Hit(0.5, "client-pause", until, what))(told(clean())))
    assert ((STAYS[2].key, "one-end") not in {(each.key, each.rule) for each in found}) is right


def test_nobody_looks_at_a_service_whose_pause_has_no_end() -> None:
    """A server that lost the end of a pause keeps its queue, and consumers of the dead; without both, each of them is a violation."""
    stranger = changed(State, "quiet", queues=(msgspec.structs.replace(QUEUE, length=1, pending=1, consumers=("ghost",)),))
    pause = with_(Hit(5.0, "client-pause", 6.0, "pause chaos for 1.0 s"))
    lossy = msgspec.structs.replace(OPTIONS, faults=("flushall", "kill", "poison"))
    for records, options, right in ((pause, lossy, True), (pause, OPTIONS, False), (with_(), lossy, False)):
        assert (violations(records(stranger(clean())), options) == []) is right


@pytest.mark.parametrize(("until", "gone", "right"), [(8.55, 8.6, True), (8.4, 9.3, True), (8.4, 9.5, False), (7.0, 8.6, False)])
def test_a_cancellation_may_die_with_its_agent_while_the_server_refuses(until: float, gone: float, right: bool) -> None:
    """A refusal is followed by another try within a second, which its agent may not live to see; until that counts as gone, calls go on."""
    late = changed(Left, inner(DEEP.key), at=25.0)(changed(Left, DEEP.key, at=25.0)(clean()))
    hits = with_(Hit(until - 0.2, "client-pause", until, ""), Exited(gone, "agent", AGENT, -9, True))
    found = {(each.key, each.rule) for each in violations(hits(late))}
    assert ((DEEP.key, "cancelled") not in found) is right


@pytest.mark.parametrize(("tool", "attempts", "right"), [(DEEP, 3, True), (DEEP, 2, False), (ECHO, 3, False), (ECHO, 4, True)])
def test_what_runs_alone_may_wait_in_vain_for_what_it_calls(tool: Planned, attempts: int, right: bool) -> None:
    """One attempt before it would be given up its time may be up; what calls nothing has one attempt more."""
    more = [
        record
        for number in range(2, attempts + 1)
        for record in (Begun(1.15, tool.key, number, WORKER + 40), Left(1.16, tool.key, number, WORKER + 40, "cancelled"))
    ]
    late = changed(Ended, tool.key, success=False, output=None, error="deadline_exceeded")
    found = {(each.key, each.rule) for each in violations(with_(*more)(late(clean())))}
    assert ((tool.key, "one-end") not in found) is right


@pytest.mark.parametrize(("attempt", "until", "right"), [(4, 3.6, True), (3, 3.6, False), (4, 2.4, False)])
def test_what_runs_alone_holds_the_others_up(attempt: int, until: float, right: bool) -> None:
    """A call may be late when what may be poison has run alone for half of its time, in each worker; not behind anything else."""
    options = msgspec.structs.replace(OPTIONS, workers=2)
    behind = changed(Ended, ECHO.key, success=False, output=None, error="deadline_exceeded", began=1.0, at=5.0)
    runs = [
        record
        for pid in (WORKER + 40, WORKER + 41)
        for record in (Begun(1.5, STORY.key, attempt, pid), Left(until, STORY.key, attempt, pid, "cancelled"))
    ]
    found = {(each.key, each.rule) for each in violations(with_(*runs)(behind(clean())), options)}
    assert ((ECHO.key, "one-end") not in found) is right


def test_a_handler_passes_on_that_its_own_call_was_given_up() -> None:
    """The inner call has used up its deliveries, and is the dead letter; one that ran less often was given up too early."""
    told = changed(Ended, DEEP.key, error="tool_error", code="max_deliveries")
    letter = ("dead", "2-2", f'{{"arguments":{{"key":"{inner(DEEP.key)}"}}}}')
    buried = changed(State, "quiet", letters=(GIVEN_UP, letter))
    attempts = [Begun(8.7 + number / 100, inner(DEEP.key), number, WORKER, "id10") for number in range(2, 5)]
    lefts = [Left(8.7 + number / 100, inner(DEEP.key), number, WORKER, "cancelled") for number in range(2, 5)]
    assert violations(with_(*attempts, *lefts)(buried(told(clean())))) == []
    for change in (buried, with_(*attempts, *lefts)):
        assert [found.key for found in violations(change(told(clean())))] == [DEEP.key]


def test_a_server_that_lost_frames_leaves_holes() -> None:
    """Frames counted around that time say nothing about an order; later ones do."""
    late = with_(Hit(5.5, "server-kill", 6.5, ""), Counted(7.0, "agent-0", 0, 3), Counted(15.0, "agent-0", 0, 3))
    assert violations(late(clean())) == []
    assert violations(with_(Counted(17.0, "agent-0", 0, 4))(late(clean())))


def test_a_group_made_anew_counts_deliveries_anew() -> None:
    """More executions than deliveries are right when the group was destroyed meanwhile."""
    again = [Begun(7.0, STORY.key, number, WORKER + 50 + number) for number in range(1, 6)]
    left = [Left(7.1, STORY.key, number, WORKER + 50 + number, "cancelled") for number in range(1, 6)]
    assert violations(with_(*again, *left)(clean()))
    assert violations(with_(*again, *left, Hit(6.5, "group-destroy", 6.5, ""))(clean())) == []


def test_what_a_leaving_worker_hands_back_is_no_delivery() -> None:
    """A run that is cut off by a drain is begun once more under the same number; one that is cut off by anything else counts."""
    pids = [WORKER + 50 + number for number in range(6)]
    again = [Begun(7.0 + number, STORY.key, max(1, number), pid) for number, pid in enumerate(pids)]
    left = [Left(7.1 + number, STORY.key, max(1, number), pid, "cancelled") for number, pid in enumerate(pids)]
    assert violations(with_(*again, *left)(clean()))
    leaving = Hit(6.9, "term", 6.9, "", (pids[0], pids[1]))
    assert violations(with_(*again, *left, leaving)(clean())) == []


def test_inner_calls_belong_to_their_outer_call() -> None:
    """The call that a nested call makes is known by its key."""
    begun = Begun(1.1, inner(ECHO.key), 1, WORKER)
    assert violations(with_(begun, Left(1.2, inner(ECHO.key), 1, WORKER, "done"))(clean())) == []


def test_recovery_is_the_silence_around_a_kill() -> None:
    """The longest silence of a stream counts when its first worker died within it."""
    stream = changed(Ended, STORY.key, first="host-77-abc", attempts=2, silence=(3.9, 6.4))
    numbered = [Started(0.0, "worker", WORKER + 9, system=77), Started(15.0, "worker", WORKER + 12, system=77)]
    later = Exited(16.0, "worker", WORKER + 12, -9, True)
    times = recoveries(History(with_(*numbered, later)(stream(clean()))))
    assert (times.count, times.most) == (1, 2.5)
    assert recoveries(History(with_(numbered[1], later)(stream(clean())))).count == 0
    assert recoveries(History(clean())).count == 0


@pytest.mark.anyio
async def test_a_process_that_has_the_number_of_an_earlier_one_is_another(tmp_path: Path) -> None:
    """The system gives numbers again: a run that died with the earlier one is over with it, and not with the later one."""
    exits = [Exited(time.monotonic() + after, "worker", pid, -9, True) for pid, after in ((1, 60.0), (2, 3000.0))]
    async with InvocationEnvironment() as environment:
        for gone in exits:
            # This process plays both, one after the other.
            journal = Journal(tmp_path, f"worker-0-{gone.pid}", gone.pid)
            await environment.call(define(journal, 0)[0], {"key": ECHO.key, "text": "hello"})  # type: ignore[arg-type]
            journal.close()
    died = without(Left)(list(read(tmp_path)))
    case = Case(OPTIONS, PLANNED, History([*died, *exits]))
    assert [case.over(begun) for begun in case.begun[ECHO.key]] == [gone.at for gone in exits]


def test_the_report_counts_and_names_violations() -> None:
    """The report has each tool's results, and each violation with its call."""
    records = History(without(Ended, ECHO.key)(clean()))
    found = report(OPTIONS, PLANNED, records, judge(OPTIONS, PLANNED, records), 10.0)
    assert not found.passed
    assert found.results["crash"] == {"tool_error/max_deliveries": 1}
    assert (found.calls, found.kills, found.faults) == (15, 6, {"kill": 1})
    assert ECHO.key in text(found)
    assert msgspec.json.decode(msgspec.json.encode(found))["violations"][0]["rule"] == "one-end"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    """A journal's records come back as they were; a line that is still being written is left out."""
    journal = Journal(tmp_path, "someone")
    for record in clean():
        journal.write(record)
    journal.close()
    with (tmp_path / "someone.jsonl").open("ab") as file:
        file.write(b'{"t":"Begun","at":1')
    assert list(read(tmp_path)) == clean()
