"""A history in which all went well, and changes to it: what the tests of the oracle judge."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from tests.chaos.history import (
    Agent,
    AnyRecord,
    Begun,
    Cancelled,
    Counted,
    Ended,
    Exited,
    History,
    Hit,
    Issued,
    Key,
    Left,
    Queue,
    Sample,
    State,
)
from tests.chaos.options import Options
from tests.chaos.oracle import Violation, judge
from tests.chaos.oracle.outputs import expected
from tests.chaos.plan import Planned, babble, inner

AGENT, WORKER = 100, 200
OPTIONS = Options(seconds=10.0, agents=2, calls=5, faults=("kill", "poison"))
ECHO = Planned("a0-000000", 0, "echo", {"key": "a0-000000", "text": "hello"}, 0.0, 60.0)
STORY = Planned("a1-000001", 1, "story", {"key": "a1-000001", "pieces": 6, "delay": 0.0}, 0.2, 60.0)
BABBLE = Planned("a0-000002", 0, "babble", {"key": "a0-000002", "pieces": 4, "delay": 0.0}, 0.4, 60.0)
PAY = Planned("a1-000003", 1, "pay", {"key": "a1-000003", "seconds": 0.0}, 0.6, 60.0)
CRASH = Planned("a0-000004", 0, "crash", {"key": "a0-000004"}, 0.8, 60.0)
# Two agents call with one idempotency key.
SHARED = Planned("a0-000005", 0, "babble", {"key": "a0-000005", "pieces": 4, "delay": 0.0}, 0.9, 60.0, shares="a0-000005")
TWIN = msgspec.structs.replace(SHARED, key="a1-000006", agent=1)
# One fails at first; one is cancelled, together with what it calls.
FLAKY = Planned("a1-000007", 1, "flaky", {"key": "a1-000007", "fails": 1}, 0.9, 60.0)
DEEP = Planned("a0-000008", 0, "deep", {"key": "a0-000008", "seconds": 48.0}, 0.9, 60.0, cancel=0.5)
# A session whose worker dies between its second and third call.
SITS = [
    Planned(key, 0, "sit", {"key": key, "seconds": 0.0}, 0.9, 60.0, session="s")
    for key in ("a0-000009", "a0-000010", "a0-000011", "a0-000012")
]
SEATS = [f"{call.key}:{seat}" for call, seat in zip(SITS, ("1.5:1", "1.5:2", "2.7:1", "2.7:2"), strict=True)]
# One whose state outlives its worker.
STAYS = [Planned(key, 1, "stay", {"key": key, "seconds": 0.0}, 0.9, 60.0, session="k") for key in ("a1-000013", "a1-000014", "a1-000015")]
SEATS += [f"{call.key}:1.6:{number}" for number, call in enumerate(STAYS, 1)]
PLANNED = [ECHO, STORY, BABBLE, PAY, CRASH, SHARED, TWIN, FLAKY, DEEP, *SITS, *STAYS]
RUN_A, RUN_B = (list(babble(BABBLE.key, run, 4)) for run in ("a", "b"))
SAID, OTHER = ("".join(babble(SHARED.key, run, 4)) for run in ("a", "b"))
# How often each of three requests of a backlog was run, and others: as it must not be.
BACKLOGS = ((1, 0, 1, 0), (1, 6, 1, 0), (1, 1, 1, 1), (1, 1, 0))
GIVEN_UP = ("dead", "1-1", '{"arguments":{"key":"a0-000004"}}')

Change = Callable[[list[AnyRecord]], list[AnyRecord]]


def clean() -> list[AnyRecord]:
    """The history of a run in which all went well, though a worker was killed and a call was poison."""
    records: list[AnyRecord] = [Agent(0.0, 0, "agent-0", AGENT), Agent(0.0, 1, "agent-1", AGENT + 1)]
    for number, planned in enumerate(PLANNED[:4], 1):
        output = "".join(RUN_A) if planned is BABBLE else expected(planned)
        segments = (output or "",) if planned.streaming else ()
        pid = AGENT + planned.agent
        records += [
            Issued(number, planned.key, pid),
            Begun(number + 0.1, planned.key, 1, WORKER, f"id{number}"),
            Left(number + 0.2, planned.key, 1, WORKER, "done"),
            Ended(number + 0.3, planned.key, f"id{number}", pid, number, True, output, attempts=1, worker="w", segments=segments),
        ]
    records += [Begun(7.1, SHARED.key, 1, WORKER, "id7"), Left(7.2, SHARED.key, 1, WORKER, "done")]
    for planned in (SHARED, TWIN):
        pid = AGENT + planned.agent
        records += [Issued(7.0, planned.key, pid), Ended(7.3, planned.key, "id", pid, 7.0, True, SAID, segments=(SAID,))]
    records += [
        Issued(8.0, FLAKY.key, AGENT + 1),
        Begun(8.1, FLAKY.key, 1, WORKER, "id8"),
        Left(8.1, FLAKY.key, 1, WORKER, "ToolError"),
        Begun(8.2, FLAKY.key, 2, WORKER, "id8"),
        Left(8.2, FLAKY.key, 2, WORKER, "done"),
        Ended(8.3, FLAKY.key, "id8", AGENT + 1, 8.0, True, expected(FLAKY), attempts=2),
        Issued(8.0, DEEP.key, AGENT),
        Begun(8.1, DEEP.key, 1, WORKER, "id9"),
        Begun(8.2, inner(DEEP.key), 1, WORKER, "id10"),
        Cancelled(8.5, DEEP.key, AGENT),
        Ended(8.5, DEEP.key, "id9", AGENT, 8.0, False, error="cancelled"),
        Left(8.6, DEEP.key, 1, WORKER, "cancelled"),
        Left(8.7, inner(DEEP.key), 1, WORKER, "cancelled"),
    ]
    for number, (planned, seat) in enumerate(zip([*SITS, *STAYS], SEATS, strict=True)):
        at = 9.0 + number / 10
        records += [
            Issued(at, planned.key, AGENT + planned.agent),
            Begun(at, planned.key, 1, WORKER, f"sit{number}"),
            Left(at, planned.key, 1, WORKER, "done"),
            Ended(at, planned.key, f"sit{number}", AGENT, at, True, seat),
        ]
    records.append(Issued(5.0, CRASH.key, AGENT))
    for attempt in range(1, 6):
        records.append(Begun(5 + attempt / 10, CRASH.key, attempt, WORKER + attempt))
        records.append(Exited(5 + attempt / 10, "worker", WORKER + attempt, 7, False))
    records.append(Ended(6.0, CRASH.key, "id5", AGENT, 5.0, False, error="tool_error", code="max_deliveries", attempts=6))
    records.append(Hit(4.0, "kill", 4.0, "worker", (WORKER + 9,)))
    records.append(Exited(4.0, "worker", WORKER + 9, -9, True))
    records += [Sample(float(second), 2_000_000, {f"worker:{WORKER}": 50_000_000}) for second in range(20)]
    records.append(Counted(6.0, "agent-0", 0))
    queue = Queue("tb:{chaos}:q:chaos", 0, 0, ("w", "~back"))
    keys = (Key("q:chaos", 1000), Key("reg:items", -1), Key("rsp:agent-0", 9000))
    records.append(State(20.0, "quiet", (queue,), keys, live=("w",), letters=(GIVEN_UP,), workers=(WORKER,)))
    records.append(Exited(21.0, "worker", WORKER, 0, True))
    records += [State(22.0, "closed", keys=(Key("log", 1000),)), State(30.0, "later", keys=(Key("log", 1000),))]
    return records


def violations(records: list[AnyRecord], options: Options = OPTIONS) -> list[Violation]:
    """Return the violations that the oracle finds in a history."""
    return judge(options, PLANNED, History(records))


def without(kind: type, key: str = "") -> Change:
    """A change that takes records away."""
    return lambda records: [each for each in records if not (isinstance(each, kind) and key in {"", getattr(each, "key", "")})]


def with_(*more: AnyRecord) -> Change:
    """A change that adds records."""
    return lambda records: [*records, *more]


def changed(kind: type, which: str, **fields: object) -> Change:
    """A change of a call's record, or of a state by its name."""

    def change(records: list[AnyRecord]) -> list[AnyRecord]:
        found = [each for each in records if isinstance(each, kind) and which in {getattr(each, "key", ""), getattr(each, "name", "")}]
        assert found
        return [msgspec.structs.replace(each, **fields) if each in found else each for each in records]

    return change


def seen(planned: Planned, *segments: str, output: str | None = None) -> Change:
    """A change of what a stream's caller saw; the result says the same as its last segment, unless told."""
    return changed(Ended, planned.key, segments=segments, output=segments[-1] if output is None else output)


def unreached(sources: Iterable[Path], work: Callable[[], object]) -> list[str]:
    """Do some work, and return the places of some files that say what is wrong and that it has not come to: violations, and texts."""
    places = {(str(path), node.lineno): ast.unparse(node) for path in sources for node in _complaints(ast.parse(path.read_text("utf-8")))}
    files, reached = {file for file, _ in places}, set[tuple[str, int]]()

    def look(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return look

    before = sys.gettrace()
    sys.settrace(look)
    try:
        work()
    finally:
        sys.settrace(before)
    return [f"{Path(file).name}:{line} {text}" for (file, line), text in sorted(places.items()) if (file, line) not in reached]


def _complaints(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that make a violation, or return or yield the text of one."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="Violation") | ast.Attribute(attr="_broken")):
                yield node
            case ast.Return(value=ast.IfExp(body=one, orelse=other)):
                yield from (each for each in (one, other) if _is_text(each))
            case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value) if _is_text(value):
                yield value
            case _:
                pass


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value))
