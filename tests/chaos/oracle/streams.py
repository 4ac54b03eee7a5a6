"""Rules about what callers see: streams are whole, and nothing comes to the wrong one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.chaos.history import Agent, Counted, Hit, Planted
from tests.chaos.oracle.case import MARGIN, Case, Violation, short
from tests.chaos.oracle.outputs import expected
from tests.chaos.plan import POISON, Planned
from tests.chaos.schedule import KINDS, LOSSY

_KEY = re.compile(r"a(\d+)-\d{6}")
_BABBLE = re.compile(r"<([^:>]+):([^:>]+):(\d+)/(\d+)>")


def streams(case: Case) -> Iterator[Violation]:
    """Each segment a caller saw is one run's text from its beginning; the last one of a success is whole."""
    for key, records in case.ended.items():
        planned = case.planned[key]
        if not planned.streaming or planned.tool in POISON:
            continue
        for ended in records:
            segments = ended.segments or ("",)
            if planned.tool != "babble" and len(segments) > 1:
                yield Violation("stream", f"{len(segments) - 1} resets although every run says the same", key)
            for number, text in enumerate(segments):
                whole = ended.success and number == len(segments) - 1
                what = bad_babble(planned, text, whole=whole) if planned.tool == "babble" else _bad_story(planned, text, whole=whole)
                if what:
                    yield Violation("stream", what, key)
            if ended.success and segments[-1] != (ended.output or ""):
                yield Violation("stream", f"events say {short(segments[-1])}, the result says {short(ended.output)}", key)


def _bad_story(planned: Planned, text: str, *, whole: bool) -> str:
    right = expected(planned) or ""
    if text == right if whole else right.startswith(text):
        return ""
    return f"text {_difference(text, right)}"


def bad_babble(planned: Planned, text: str, *, whole: bool) -> str:
    pieces = _BABBLE.findall(text)
    if "".join(f"<{key}:{run}:{number}/{count}>" for key, run, number, count in pieces) != text:
        return f"pieces are broken: {short(text)}"
    runs = {run for _, run, _, _ in pieces}
    if len(runs) > 1:
        return f"pieces of {len(runs)} runs are mixed without a reset"
    numbers = [int(number) for _, _, number, _ in pieces]
    if numbers != list(range(len(numbers))):
        return f"pieces {numbers} are lost, repeated or out of order"
    if whole and len(numbers) != planned.arguments["pieces"]:
        return f"{len(numbers)} of {planned.arguments['pieces']} pieces at a successful end"
    return ""


def addresses(case: Case) -> Iterator[Violation]:
    """Every piece of text carries the key of its call; no other key may be seen there, unless it is of a call in the same session."""
    sessions: dict[str, set[str]] = defaultdict(set)
    for planned in case.planned.values():
        sessions[planned.session or planned.key].add(planned.work)
    for key, records in case.ended.items():
        for ended in records:
            texts = [*ended.segments, ended.output or ""]
            for found in {match.group() for text in texts for match in _KEY.finditer(text)} - sessions[case.planned[key].session or key]:
                yield Violation("address", f"text of the call {found} came to this one", key)
    planted = {planted.agent for planted in case.history.of(Planted)}
    worst: Counter[str] = Counter()
    for counted in case.history.of(Counted):
        worst[counted.id] = max(worst[counted.id], counted.malformed)
    index = {agent.id: agent.index for agent in case.history.of(Agent)}
    for agent, count in worst.items():
        if count and agent not in planted:
            yield Violation("address", f"agent {index.get(agent)} got {count} frames it could not read, and nobody had sent it any")


def holes(case: Case) -> Iterator[Violation]:
    """No frame comes before an earlier one of its run, unless the server lost what it had or the agent could not be heard of."""
    # Behind what was lost, the next frame of a call that ran then may come as late as its end.
    disturbing = [
        (hit.at, hit.until + (case.options.timeout if hit.kind in LOSSY else 0.0))
        for hit in case.history.of(Hit)
        if KINDS[hit.kind].outage or hit.kind in LOSSY
    ]
    index = {agent.id: agent.index for agent in case.history.of(Agent)}
    before: dict[str, Counted] = {}
    for counted in case.history.of(Counted):
        since = before.get(counted.id, Counted(0.0, counted.id, 0))
        before[counted.id] = counted
        disturbed = any(began < counted.at and ended > since.at - MARGIN for began, ended in disturbing)
        if counted.early > since.early and not disturbed:
            yield Violation(
                "stream", f"agent {index.get(counted.id)} got {counted.early - since.early} frames before earlier ones of their runs"
            )


def _difference(text: str, right: str) -> str:
    at = next((index for index, (a, b) in enumerate(zip(text, right, strict=False)) if a != b), min(len(text), len(right)))
    return f"differs from character {at} of {len(right)} on: {text[at : at + 50]!r} instead of {right[at : at + 50]!r}"
