"""Scenarios: the calls and the faults of a run, drawn from a seed, as values that can be shortened and written down."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from random import Random

import msgspec

from tests.chaos import plan
from tests.chaos.options import Options
from tests.chaos.plan import Planned
from tests.chaos.schedule import POISON
from tests.simulation.faults import KINDS, Aimed

_TOOLS = ("echo", "pay", "nested", "silent", "deep", "flaky", "sit", "stay", "story", "babble", "stumble")
_STREAMS = {"story", "babble", "stumble"}
# Their calls hold a slot for long, or wait for others: they need more slots than there are calls.
_LONG = {"deep", "nested", "silent"}
# Others of the poisonous tools end a real process.
_POISON = ("crash", "hang", "hog", "endless")
_POISONED_SHARE, _MOST_POISON = 0.2, 3
_ASKING_SHARE, _REPLACED = 0.2, 0.1
_METERED_SHARE = 0.2
# Nothing may be lost in most runs, since then everything must be right to the last.
_LOSSY_SHARE = 0.15
_MOST_FAULTS = 16
_AIMED_SHARE = 0.85
_TOGETHER_SHARE, _APART_SHARE = 0.35, 0.5
# Streams with more are to last.
_MOST_PIECES = 40
# All calls of a run are done within so many seconds by one worker, if nothing disturbs it.
_WORK = 8.0
# Steps of the protocol at which faults are aimed: those that every call takes, those that some may take, and those of a kind of call.
_EVERY = ("XREAD", "XREADGROUP", "publish/publish", "finish/send", "finish/finish", "recover/reap")
_SOME = ("publish/listen", "take/take", "finish/finish_each", "lease/beat", "lease/renew", "recover/hand_back", "registry/register")
_OF_KINDS: dict[str, Callable[[Planned], bool]] = {
    "publish/cancel": lambda call: call.cancel is not None,
    "publish/share": lambda call: bool(call.shares),
    "sessions/load": lambda call: call.tool == "stay",
    "sessions/save": lambda call: call.tool == "stay",
    "sessions/own": lambda call: bool(call.session),
    "sessions/disown": lambda call: bool(call.session),
    "take/count": lambda call: call.tool in plan.FAILING,
    "take/start": lambda call: call.tool == "pay",
    "dead_letters/bury": lambda call: call.tool in plan.POISON,
}


class Scenario(msgspec.Struct, frozen=True):
    """The calls and faults of a run; their order in detail is left to chance.

    Attributes:
        seed: of everything that is left to chance.
        delay: the longest usual delay in the network, in seconds.
        splits: the share of writes that arrive in pieces.
        metered: whether workers count what users' calls cost.
    """

    seed: int
    options: Options
    calls: list[Planned]
    faults: list[Aimed]
    delay: float = 0.001
    splits: float = 0.02
    metered: bool = False


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed. Each has few of the features and few of the faults, and much of them, so that rare ones meet."""
    random = Random(f"scenario {seed}")
    lossy = random.random() < _LOSSY_SHARE
    poisoned = random.random() < _POISONED_SHARE
    # Half of the poison is alone, so that whatever else goes wrong is its work.
    most = 0 if poisoned and random.random() < 0.5 else 6
    kinds = _kinds(random, min(most, random.choice((0, 1, 1, 1, 2, 2, 3, 5))), lossy=lossy)
    features = random.sample(_TOOLS, random.choice((1, 1, 1, 2, 2, 3, 5, len(_TOOLS))))
    options = Options(
        seed=seed,
        seconds=random.choice((0.3, 1.0, 1.0, 3.0, 6.0)),
        calls=random.choice((12, 40, 40, 100, 250)),
        agents=random.randint(1, 3),
        workers=random.randint(1, 4),
        faults=tuple(sorted({*(KINDS[name].taken_for for name in kinds), *(["versions"] if random.random() < 0.2 else [])})),
        lease=random.choice((0.6, 0.6, 1.0, 2.0)),
        grace=random.choice((0.1, 1.0, 5.0)),
        # What was lost ends with its time, and until then nothing happens.
        timeout=12.0 if lossy else 40.0,
    )
    calls = _calls(random, options, features)
    # What runs alone waits in vain for what it calls itself, if no other worker is there.
    if poisoned and _LONG.isdisjoint(features):
        calls = _poisoned(random, calls, options.lease)
        options = msgspec.structs.replace(options, faults=(*options.faults, POISON))
    if random.random() < _ASKING_SHARE:
        calls = _some_of(random, calls, "ask")
    if "versions" in options.faults:
        calls = _some_of(random, calls, "revised", mark="new")
    waits = not _LONG.isdisjoint(features) or any(call.tool == "ask" for call in calls)
    concurrency = 128 if waits else _concurrency(random, calls)
    options = msgspec.structs.replace(options, concurrency=concurrency)
    return Scenario(
        seed,
        options,
        calls,
        _faults(random, kinds, options, calls),
        delay=random.choice((0.0005, 0.001, 0.01)),
        splits=random.choice((0.0, 0.02, 0.3)),
        metered=random.random() < _METERED_SHARE,
    )


# What differs between neighbours: some faults are left out, one may come in addition, and each moves by a part of a lease.
_LEFT_OUT, _ONE_MORE, _MOVED = 0.1, 0.5, 0.2


def near(scenario: Scenario, seed: int) -> Scenario:
    """Return a neighbour of a scenario: its calls, and nearly its faults, with all that is left to chance drawn from another seed."""
    random, options = Random(f"near {seed}"), scenario.options
    faults = [fault for fault in scenario.faults if random.random() > _LEFT_OUT]
    if random.random() < _ONE_MORE:
        name = random.choice([name for name, kind in KINDS.items() if options.lossy or not kind.lossy])
        options = msgspec.structs.replace(options, faults=tuple(sorted({*options.faults, KINDS[name].taken_for})))
        faults += _faults(random, [name], options, scenario.calls)[:1]
    moved = [msgspec.structs.replace(fault, at=max(0.0, fault.at + random.gauss(0.0, _MOVED * options.lease))) for fault in faults]
    options = msgspec.structs.replace(options, seed=seed)
    return msgspec.structs.replace(scenario, seed=seed, options=options, faults=sorted(moved, key=lambda fault: fault.at))


def _kinds(random: Random, count: int, *, lossy: bool) -> list[str]:
    """Return kinds of faults, from as many of their groups as there may be: a few groups have most of the kinds."""
    groups: dict[str, list[str]] = {}
    for name, kind in KINDS.items():
        if not kind.lossy:
            groups.setdefault(kind.group, []).append(name)
    # What ends processes is what most of the protocol is about.
    left = [*sorted(groups), "processes", "stops"]
    random.shuffle(left)
    chosen = {random.choice(groups[left[number]]) for number in range(count)}
    if lossy:
        chosen.add(random.choice([name for name, kind in KINDS.items() if kind.lossy]))
    return sorted(chosen)


def _calls(random: Random, options: Options, features: list[str]) -> list[Planned]:
    """Return calls of the tools ``features``, of which so many are shared, cancelled or short of time as the run happens to have."""
    calls = plan.plan(
        options.seed, options.calls, options.agents, poisoned=False, timeout=options.timeout, lease=options.lease, tools=features,
        shared=random.choice((0.0, 0.0, 0.05, 0.5)), cancelled=random.choice((0.0, 0.0, 0.03, 0.3)),
    )  # fmt: skip
    pieces, tight = random.choice((3, 8, 40)), random.choice((0.0, 0.0, 0.2, 0.6))
    calls = [_with_fewer_pieces(call, pieces) for call in calls]
    return [_with_little_time(random, call, options.lease) if random.random() < tight else call for call in calls]


def _with_fewer_pieces(call: Planned, most: int) -> Planned:
    """Let a stream that is not to last have fewer pieces: what happens to the first ones happens to all."""
    if call.tool not in _STREAMS or call.arguments["pieces"] > _MOST_PIECES:
        return call
    return msgspec.structs.replace(call, arguments=call.arguments | {"pieces": min(most, call.arguments["pieces"])})


def _with_little_time(random: Random, call: Planned, lease: float) -> Planned:
    """Let a call have less time than faults may take from it."""
    if call.shares or call.session or call.cancel is not None:
        return call
    return msgspec.structs.replace(call, timeout=round(lease * random.uniform(0.1, 3.0), 3))


def _poisoned(random: Random, calls: list[Planned], lease: float) -> list[Planned]:
    """Let a few calls be poison."""
    simple = _simple(calls)
    for number in random.sample(simple, min(len(simple), random.randint(1, _MOST_POISON))):
        call, tool = calls[number], random.choice(_POISON)
        timeout = 2 * lease if tool == "hang" else call.timeout
        calls[number] = msgspec.structs.replace(call, tool=tool, arguments={"key": call.key}, timeout=timeout)
    return calls


def _concurrency(random: Random, calls: list[Planned]) -> int:
    """Return how many slots a worker has: few, so that calls wait for them, but enough for all calls in good time."""
    return max(random.choice((1, 2, 4, 32)), ceil(sum(map(_seconds, calls)) / _WORK))


def _seconds(call: Planned) -> float:
    """Return for how long a call runs."""
    arguments = call.arguments
    lasts = arguments.get("seconds", 0.0) + arguments.get("pieces", 0) * arguments.get("delay", 0.0)
    return float(lasts if call.cancel is None else min(lasts, call.cancel))


def _some_of(random: Random, calls: list[Planned], tool: str, **arguments: str) -> list[Planned]:
    """Let some calls be of another tool."""
    for number in _simple(calls):
        call = calls[number]
        if call.tool not in plan.POISON and random.random() < _REPLACED:
            calls[number] = msgspec.structs.replace(call, tool=tool, arguments={"key": call.key, **arguments})
    return calls


def _simple(calls: list[Planned]) -> list[int]:
    """Return the places of the calls that are nothing but calls."""
    return [number for number, call in enumerate(calls) if not (call.shares or call.session or call.cancel is not None)]


def _faults(random: Random, kinds: list[str], options: Options, calls: list[Planned]) -> list[Aimed]:
    """Return faults, many of which wait for a step of the protocol, again and again: each for one, each kind, or all together.

    Of those that wait together some meet the step when it is taken once more.
    """
    aims = (*_EVERY, *_SOME, *(3 * [step for step, takes in _OF_KINDS.items() if any(map(takes, calls))]))
    found, together = [], random.choice(aims) if random.random() < _TOGETHER_SHARE else ""
    whens = [_when(random, options) for _ in range(_MOST_FAULTS)]
    for name in kinds:
        aim = together or random.choice(aims) if random.random() < _AIMED_SHARE else ""
        apart, again = aim and not together and random.random() < _APART_SHARE, random.randint(0, 1) * bool(together)
        for number in range(random.randint(1, max(1, _MOST_FAULTS // len(kinds)))):
            step = random.choice(aims) if apart else aim
            at, nth = whens[number] if together else _when(random, options)
            lasts = random.uniform(*KINDS[name].lasts) * options.lease
            found.append(Aimed(at, name, round(lasts, 6), round(random.random(), 6), step, nth + again if step else 0))
    return sorted(found, key=lambda fault: fault.at)


def _when(random: Random, options: Options) -> tuple[float, int]:
    """Return when a fault begins to wait for its step, and for how many of them it waits."""
    return round(random.random() * options.seconds, 6), random.choice((1, 1, 2, 3, 8))
