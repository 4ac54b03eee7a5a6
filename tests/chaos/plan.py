"""The calls of a run, from the seed alone: agents make them, the oracle knows them too."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

POISON_SHARE = 0.004
"""Part of all calls that are poison, when poison is among the faults."""

SHARED_SHARE = 0.05
"""Part of all calls that are made once more with the same idempotency key."""

CANCELLED_SHARE = 0.03
"""Part of all calls that their agent cancels after a moment."""

# Half of the calls are streams. Weights in thousandths.
_ANSWERS = {"echo": 280, "pay": 80, "nested": 40, "silent": 10, "deep": 10, "flaky": 30, "sit": 30, "stay": 20}
_STREAMS = {"story": 330, "babble": 130, "stumble": 40}
ORDINARY = _ANSWERS | _STREAMS
_POISON = ("crash", "segfault", "hang", "block", "hog", "endless")
STREAMS = frozenset({*_STREAMS, "endless"})
POISON = frozenset(_POISON)
FAILING = frozenset({"flaky", "stumble"})
"""Tools that fail in their first attempts."""

SEATED = frozenset({"sit", "stay"})
"""Tools of sessions."""

# How often they fail. A failed attempt counts, and what has few attempts left runs alone.
_FAILS = (1, 1, 1, 1, 1, 1, 1, 2)
# What can go on for long without saying anything that is not known beforehand.
_LONG = ("silent", "deep", "story")
# How many calls a session has.
_SESSION = (2, 8)
# When a second call with an idempotency key is made: with the first by the same agent or by another, or when it has ended.
_MANNERS = ("together", "elsewhere", "afterwards")


class Planned(msgspec.Struct, frozen=True):
    """One call.

    Attributes:
        key: its identity everywhere, also over attempts.
        due: when it is made, from 0 to 1 of the run's time.
        shares: its idempotency key, which another call has too; empty without one.
        follows: the key of a call of the same agent that must have ended before this one is made.
        session: whose state the tool keeps in its process.
        cancel: seconds after which its agent cancels it, unless it has ended; None: never.
    """

    key: str
    agent: int
    tool: str
    arguments: dict[str, Any]
    due: float
    timeout: float
    shares: str = ""
    follows: str = ""
    session: str = ""
    cancel: float | None = None

    @property
    def streaming(self) -> bool:
        """Return whether the agent reads the call as a stream."""
        return self.tool in STREAMS

    @property
    def work(self) -> str:
        """Return the key by which the handler knows the call: that of the first call with its idempotency key, else the call's own."""
        return str(self.arguments["key"])


def plan(
    seed: int,
    calls: int,
    agents: int,
    *,
    poisoned: bool,
    timeout: float,
    lease: float,
    tools: Iterable[str] = ORDINARY,
    shared: float = SHARED_SHARE,
    cancelled: float = CANCELLED_SHARE,
) -> list[Planned]:
    """Every call of a run, in the order in which agents make them; ``shared`` and ``cancelled`` are the shares of such calls."""
    weights = {name: ORDINARY[name] for name in ORDINARY if name in set(tools)}
    chance = random.Random(f"calls {seed}")
    made: dict[int, Planned] = {}
    for number in range(calls):
        if number in made:
            continue
        call = made[number] = _planned(chance, number, calls, agents, weights, poisoned=poisoned, timeout=timeout, lease=lease)
        manner = chance.choice(_MANNERS) if chance.random() < shared else ""
        twin = number + (1 if manner == "elsewhere" else agents)
        if manner and call.tool not in POISON and call.tool not in SEATED and twin < calls and twin not in made:
            made[number] = msgspec.structs.replace(call, shares=call.key)
            made[twin] = _twin(made[number], twin, calls, agents, later=manner == "afterwards")
    seated = _seated(chance, [made[number] for number in range(calls)])
    return [_given_up(chance, call, lease, cancelled) for call in seated]


def _seated(chance: random.Random, calls: list[Planned]) -> Iterator[Planned]:
    """The calls, with sessions for those that need one: each has a few calls of one agent, one session after the other."""
    left: dict[tuple[int, str], tuple[str, int]] = {}
    for call in calls:
        if call.tool not in SEATED:
            yield call
            continue
        session, more = left.get((call.agent, call.tool), ("", 0))
        if not more:
            session, more = f"s-{call.key}", chance.randint(*_SESSION)
        left[call.agent, call.tool] = (session, more - 1)
        yield msgspec.structs.replace(call, session=session)


def _given_up(chance: random.Random, call: Planned, lease: float, share: float) -> Planned:
    """A call that its agent may cancel: some while they are short, some that would go on for most of their time."""
    if chance.random() > share or call.tool in POISON:
        return call
    if call.shares or chance.random() < 0.5:
        return msgspec.structs.replace(call, cancel=round(chance.uniform(0.0, 0.3), 3))
    tool, seconds = chance.choice(_LONG), call.timeout * 0.8
    arguments = {"key": call.key} | ({"pieces": 200, "delay": seconds / 200} if tool == "story" else {"seconds": seconds})
    return msgspec.structs.replace(call, tool=tool, arguments=arguments, session="", cancel=round(lease * chance.uniform(0.05, 1.5), 3))


def _twin(first: Planned, number: int, calls: int, agents: int, *, later: bool) -> Planned:
    """The same call with the same idempotency key, made at the same moment or when the first has ended."""
    due, follows = (number / calls, first.key) if later else (first.due, "")
    return msgspec.structs.replace(first, key=_key(number, agents), agent=number % agents, due=due, follows=follows)


def _planned(
    chance: random.Random,
    number: int,
    calls: int,
    agents: int,
    weights: dict[str, int],
    *,
    poisoned: bool,
    timeout: float,
    lease: float,
) -> Planned:
    key = _key(number, agents)
    tool = chance.choices(list(weights), list(weights.values()))[0]
    if poisoned and chance.random() < POISON_SHARE:
        tool = chance.choice(_POISON)
    arguments: dict[str, Any] = {"key": key}
    match tool:
        case "echo" | "nested":
            arguments["text"] = f"{chance.getrandbits(64):016x}" * chance.choice((1, 1, 1, 8, 100))
        case "story" | "babble":
            arguments |= {"pieces": chance.randint(5, 40), "delay": chance.choice((0.0, 0.005, 0.02, 0.05))}
        case "flaky":
            arguments["fails"] = chance.choice(_FAILS)
        case "stumble":
            arguments |= {"pieces": chance.randint(5, 40), "delay": chance.choice((0.0, 0.005, 0.02)), "fails": chance.choice(_FAILS)}
        case "silent" | "deep":
            arguments["seconds"] = round(lease * chance.uniform(1.2, 2.5), 2)
        case "block":
            arguments["seconds"] = round(lease * chance.uniform(0.5, 1.5), 2)
        case "pay":
            arguments["seconds"] = round(chance.uniform(0.0, 0.3), 3)
        case "sit" | "stay":
            arguments["seconds"] = round(chance.choice((0.0, 0.1, lease)) * chance.random(), 3)
        case "hang":
            timeout = 2 * lease
        case _:
            pass
    return Planned(key, number % agents, tool, arguments, number / calls, timeout)


def _key(number: int, agents: int) -> str:
    return f"a{number % agents}-{number:06d}"


def story(key: str, pieces: int) -> Iterator[str]:
    """The pieces of a story: each names its call and its place, so that a foreign, missing or repeated one shows."""
    for number in range(pieces):
        yield f"<{key}:{number}/{pieces}:{'lorem ipsum'[: number % 11]}>"


def babble(key: str, run: str, pieces: int) -> Iterator[str]:
    """The pieces of one run of a babble; no two runs say the same."""
    for number in range(pieces):
        yield f"<{key}:{run}:{number}/{pieces}>"


def inner(key: str) -> str:
    """The key of the call that a nested call makes."""
    return f"{key}.inner"
