"""Scenarios: the calls and the faults of a run, drawn from a seed, as values that can be shortened and written down."""

from __future__ import annotations

from random import Random

import msgspec

from tests.chaos import plan
from tests.chaos.options import Options
from tests.chaos.plan import Planned
from tests.chaos.schedule import POISON, Fault
from tests.simulation.faults import KINDS

_TOOLS = ("echo", "pay", "nested", "silent", "deep", "flaky", "sit", "story", "babble", "stumble")
# Their calls hold a slot for long, or wait for others: they need more slots than there are calls.
_LONG = {"deep", "nested", "silent"}
_LEAST_SHARE = 0.04
# Others of the poisonous tools end a real process.
_POISON = ("crash", "hang", "hog", "endless")
_POISONED_SHARE, _MOST_POISON = 0.15, 3
_TIGHT_SHARE, _TIGHT_CALLS = 0.3, 0.2
_ASKING_SHARE, _SOME = 0.2, 0.1
_METERED_SHARE = 0.2
# Nothing may be lost in most runs, since then everything must be right to the last.
_LOSSY_SHARE = 0.1


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
    faults: list[Fault]
    delay: float = 0.001
    splits: float = 0.02
    metered: bool = False


def draw(seed: int) -> Scenario:
    """Return the scenario of a seed. Each has some of the features and some of the faults only, so that rare ones meet."""
    random = Random(f"scenario {seed}")
    lossy = random.random() < _LOSSY_SHARE
    usable = [name for name, kind in KINDS.items() if lossy or not kind.lossy]
    kinds = tuple(sorted(random.sample(usable, random.randint(0, 6))))
    features = set(random.sample(_TOOLS, random.randint(1, len(_TOOLS))))
    # So many are planned that about as many as are wanted are of these tools.
    share = max(_LEAST_SHARE, sum(plan.ORDINARY[name] for name in features) / sum(plan.ORDINARY.values()))
    options = Options(
        seed=seed,
        seconds=random.choice((1.0, 3.0, 8.0)),
        calls=round(random.choice((40, 100, 250)) / share),
        agents=random.randint(1, 3),
        workers=random.randint(1, 4),
        faults=tuple(sorted({*(KINDS[name].taken_for for name in kinds), *(["versions"] if random.random() < 0.2 else [])})),
        concurrency=random.choice((8, 32)) if features.isdisjoint(_LONG) else 128,
        lease=random.choice((0.6, 1.0, 2.0)),
        timeout=40.0,
    )
    everything = plan.plan(seed, options.calls, options.agents, poisoned=False, timeout=options.timeout, lease=options.lease)
    calls = [call for call in everything if call.tool in features]
    names = {call.key for call in calls}
    calls = [msgspec.structs.replace(call, follows=call.follows if call.follows in names else "") for call in calls]
    if random.random() < _TIGHT_SHARE:
        calls = _with_tight_deadlines(random, calls, options.lease)
    # What runs alone waits in vain for what it calls itself, if no other worker is there.
    if random.random() < _POISONED_SHARE and features.isdisjoint(_LONG):
        calls = _poisoned(random, calls, options.lease)
        options = msgspec.structs.replace(options, faults=(*options.faults, POISON))
    if random.random() < _ASKING_SHARE:
        calls = _some_of(random, calls, "ask")
    if "versions" in options.faults:
        calls = _some_of(random, calls, "revised", mark="new")
    return Scenario(
        seed,
        options,
        calls,
        _faults(random, kinds, options),
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
        faults += _faults(random, (name,), options)[:1]
    moved = [msgspec.structs.replace(fault, at=max(0.0, fault.at + random.gauss(0.0, _MOVED * options.lease))) for fault in faults]
    options = msgspec.structs.replace(options, seed=seed)
    return msgspec.structs.replace(scenario, seed=seed, options=options, faults=sorted(moved, key=lambda fault: fault.at))


def _with_tight_deadlines(random: Random, calls: list[Planned], lease: float) -> list[Planned]:
    """Let some calls have less time than faults may take from them."""

    def tight(call: Planned) -> Planned:
        if call.shares or call.session or call.cancel or random.random() > _TIGHT_CALLS:
            return call
        return msgspec.structs.replace(call, timeout=round(lease * random.uniform(0.1, 3.0), 3))

    return [tight(call) for call in calls]


def _poisoned(random: Random, calls: list[Planned], lease: float) -> list[Planned]:
    """Let a few calls be poison."""
    simple = _simple(calls)
    for number in random.sample(simple, min(len(simple), random.randint(1, _MOST_POISON))):
        call, tool = calls[number], random.choice(_POISON)
        timeout = 2 * lease if tool == "hang" else call.timeout
        calls[number] = msgspec.structs.replace(call, tool=tool, arguments={"key": call.key}, timeout=timeout)
    return calls


def _some_of(random: Random, calls: list[Planned], tool: str, **arguments: str) -> list[Planned]:
    """Let some calls be of another tool."""
    for number in _simple(calls):
        call = calls[number]
        if call.tool not in plan.POISON and random.random() < _SOME:
            calls[number] = msgspec.structs.replace(call, tool=tool, arguments={"key": call.key, **arguments})
    return calls


def _simple(calls: list[Planned]) -> list[int]:
    """Return the places of the calls that are nothing but calls."""
    return [number for number, call in enumerate(calls) if not (call.shares or call.session or call.cancel)]


def _faults(random: Random, kinds: tuple[str, ...], options: Options) -> list[Fault]:
    found = []
    for name in kinds:
        for _ in range(random.randint(1, 6)):
            at = random.uniform(0.0, 1.0) * options.seconds
            lasts = random.uniform(*KINDS[name].lasts) * options.lease
            found.append(Fault(round(at, 6), name, round(lasts, 6), round(random.random(), 6)))
    return sorted(found, key=lambda fault: fault.at)
