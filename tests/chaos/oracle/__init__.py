"""The judge: pure functions from what was planned and what everybody wrote down to a list of violations.

The rules, by the names that violations carry:

- ``one-end``: each call ends exactly once and by its deadline, with what the tool must say for it, or an error that is true.
- ``stream``: what the caller saw of a stream is whole, in order, without repeats, or has an explicit reset; nothing overtakes what
  stands before it.
- ``rest``: when all calls have ended nothing waits, runs, or lies around: no entries, consumers, or keys without a TTL.
- ``memory``: server and processes stay within what they reached early in the run, and a margin.
- ``address``: no frame comes to the wrong agent or call, and none is unreadable that nobody made so.
- ``executions``: a call runs at most ``max_deliveries`` times, and work that is ``once`` at most once.
- ``shared``: calls with one idempotency key have one answer, of one call.
- ``cancelled``: a cancelled call ends at once, and its handler soon.
- ``session``: a sticky session has one life after the other, and each answers every call of it once.
- ``backlog``: each request without a caller is run, and at most ``max_deliveries`` times.
- ``processes``: nobody died who was not killed, and whoever was told to go went.
"""

from __future__ import annotations

from tests.chaos.history import History
from tests.chaos.options import Options
from tests.chaos.oracle.backlog import backlog
from tests.chaos.oracle.cancellations import cancellations
from tests.chaos.oracle.case import Case, Rule, Violation
from tests.chaos.oracle.ends import deadlines, ends, letters, truth
from tests.chaos.oracle.executions import executions, lifetimes, overlaps
from tests.chaos.oracle.keys import keys
from tests.chaos.oracle.rest import memory, processes, rest
from tests.chaos.oracle.sessions import sessions
from tests.chaos.oracle.streams import addresses, holes, streams
from tests.chaos.plan import Planned

__all__ = ["Violation", "judge"]

RULES: tuple[Rule, ...] = (
    ends,
    deadlines,
    truth,
    letters,
    streams,
    holes,
    addresses,
    executions,
    overlaps,
    lifetimes,
    keys,
    cancellations,
    sessions,
    backlog,
    rest,
    memory,
    processes,
)


def judge(options: Options, planned: list[Planned], history: History) -> list[Violation]:
    """Every violation in a run."""
    case = Case(options, planned, history)
    return [violation for rule in RULES for violation in rule(case)]
