"""The backlog: requests that nobody waits for are counted, each by four bytes a run, and judged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.chaos.backlog import count
from tests.chaos.history import History, Hit
from tests.chaos.oracle import judge
from tests.chaos.samples import BACKLOGS, OPTIONS, PLANNED, clean, with_


@pytest.mark.parametrize(
    ("runs", "right"),
    [((1, 1, 5, 0), True), *((runs, False) for runs in BACKLOGS)],
)
def test_each_request_of_the_backlog_is_run(runs: tuple[int, ...], right: bool) -> None:
    """At least once, at most as often as it is delivered, and nothing else; a group made anew delivers anew, and lost data is lost."""
    options = msgspec.structs.replace(OPTIONS, backlog=3)
    assert (judge(options, PLANNED, History(clean(), runs)) == []) is right
    destroyed = with_(Hit(3.0, "group-destroy", 3.0, "of heap"))(clean())
    assert (judge(options, PLANNED, History(destroyed, runs)) == []) is (right or runs == (1, 6, 1, 0))
    lossy = msgspec.structs.replace(options, faults=("flushall",))
    assert (judge(lossy, PLANNED, History(clean(), runs)) == []) is (right or runs == (1, 0, 1, 0))


def test_runs_of_the_backlog_are_counted_from_what_its_workers_left(tmp_path: Path) -> None:
    """Four bytes a run, in any number of files; a number cut short by a kill is none, and one that is too large counts at the end."""
    (tmp_path / "worker-1.ticks").write_bytes(b"".join(number.to_bytes(4, "little") for number in (0, 2, 2, 7)) + b"\x01")
    (tmp_path / "worker-2.ticks").write_bytes((0).to_bytes(4, "little"))
    assert list(count(tmp_path, 3)) == [2, 0, 2, 1]
