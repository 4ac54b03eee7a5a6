"""The judge: pure functions from what was planned and what everybody wrote down to a list of violations.

The rules, by the names that violations carry:

- ``one-end``: each call ends exactly once, with what the tool must say for it, or an error that is true.
- ``stream``: what the caller saw of a stream is whole, in order, without repeats, or has an explicit reset.
- ``rest``: when all calls have ended nothing waits, runs, or lies around: no entries, consumers, or keys without a TTL.
- ``memory``: server and processes stay within what they reached early in the run, and a margin.
- ``address``: no frame comes to the wrong agent or call, and none is unreadable that nobody made so.
- ``executions``: a call runs at most ``max_deliveries`` times, and work that is ``once`` at most once.
- ``processes``: nobody died who was not killed, and whoever was told to go went.
"""

from __future__ import annotations

import re
import signal
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

import msgspec

from tests.chaos import snapshot
from tests.chaos.history import Agent, Begun, Counted, Ended, Exited, History, Hit, Issued, Left, Planted, Sample, State
from tests.chaos.options import Options
from tests.chaos.plan import POISON, Planned, inner, story

# What a poisoned process may die of: os._exit(7), and a segmentation fault.
_DEADLY = {"crash": 7, "segfault": -11}
_KEY = re.compile(r"a(\d+)-\d{6}")
_BABBLE = re.compile(r"<([^:>]+):([^:>]+):(\d+)/(\d+)>")
# Keys that people put there, and may stay for good.
_KEPT = "reg:items"
_MARGIN = 5.0


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept: the rule, what happened, and the call it happened to."""

    rule: str
    what: str
    key: str = ""


class Case:
    """A run as the rules look at it."""

    def __init__(self, options: Options, planned: list[Planned], history: History) -> None:
        self.options = options
        self.history = history
        self.planned = {call.key: call for call in planned}
        self.issued = {issued.key: issued for issued in history.of(Issued)}
        self.ended: dict[str, list[Ended]] = defaultdict(list)
        for ended in history.of(Ended):
            self.ended[ended.key].append(ended)
        self.begun: dict[str, list[Begun]] = defaultdict(list)
        for begun in history.of(Begun):
            self.begun[begun.key].append(begun)
        self.exits = {gone.pid: gone for gone in history.of(Exited)}
        self.states = {state.name: state for state in history.of(State)}

    def executions(self, key: str) -> int:
        """How often a call's handler began."""
        return len(self.begun.get(key, ()))

    def abandoned(self, issued: Issued) -> bool:
        """Whether the agent that made the call was killed."""
        gone = self.exits.get(issued.pid)
        return gone is not None and gone.wanted and gone.status < 0


Rule = Callable[[Case], Iterator[Violation]]


def judge(options: Options, planned: list[Planned], history: History) -> list[Violation]:
    """Every violation in a run."""
    case = Case(options, planned, history)
    return [violation for rule in RULES for violation in rule(case)]


# -- one end --------------------------------------------------------------------------------------------


def ends(case: Case) -> Iterator[Violation]:
    """Each call that was made ended once, and each that was planned was made."""
    for key in case.planned:
        issued, ended = case.issued.get(key), case.ended.get(key, [])
        if issued is None:
            yield Violation("one-end", "the call was never made", key)
        elif not ended and not case.abandoned(issued):
            yield Violation("one-end", f"no result; its handler began {case.executions(key)} times", key)
        count = sum(record.finished for record in ended)
        if ended and count != 1:
            yield Violation("one-end", f"{count} terminal results", key)


def truth(case: Case) -> Iterator[Violation]:
    """Each result is what the tool must say for that call, or an error that may be."""
    for key, records in case.ended.items():
        planned = case.planned[key]
        for ended in records:
            what = _wrong_success(case, planned, ended) if ended.success else _wrong_failure(case, planned, ended)
            if what:
                yield Violation("one-end", what, key)


def _wrong_success(case: Case, planned: Planned, ended: Ended) -> str:
    if not case.executions(planned.key):
        return "a success although no handler ever began"
    if planned.tool == "babble":
        return _bad_babble(planned, ended.output or "", whole=True)
    right = expected(planned)
    if right is None:
        return f"a success of {planned.tool}, which can't succeed"
    return "" if ended.output == right else f"output {_short(ended.output)} instead of {_short(right)}"


def _wrong_failure(case: Case, planned: Planned, ended: Ended) -> str:
    began, told = case.executions(planned.key), f"{ended.error}/{ended.code}: {ended.message}"
    if case.options.lossy and ended.error in {"deadline_exceeded", "outcome_unknown", "unavailable"}:
        return ""
    if ended.error in {"unavailable", "overloaded"}:
        return f"refused as {told}, but its handler began {began} times" if began else ""
    # Any call may be given up, once faults have taken as many runs from it as poison gets; a first delivery counts before it runs.
    given_up = ended.code == "max_deliveries" or ended.error == "deadline_exceeded"
    if given_up and began >= case.options.max_deliveries - 1:
        return ""
    match planned.tool:
        case "crash" | "segfault" if ended.error in {"tool_error", "deadline_exceeded"}:
            return ""
        case "hang" if ended.error == "deadline_exceeded":
            return ""
        case "hog" if ended.code == "MemoryError":
            return ""
        case "endless" if ended.code == "output_limit":
            return ""
        # One that ran into its deadline was lost, as any other call would be.
        case "pay" if ended.error == "outcome_unknown" and ended.code != "deadline_exceeded":
            return ""
        case _:
            return f"{told} (its handler began {began} times)"


def expected(planned: Planned) -> str | None:
    """The whole output of a successful call; None when it can't succeed or differs per run."""
    arguments, key = planned.arguments, planned.key
    match planned.tool:
        case "echo":
            return f"{key}:{arguments['text']}"
        case "nested":
            return f"{key}:({inner(key)}:{arguments['text']})"
        case "pay":
            return f"{key}:paid"
        case "silent":
            return f"{key}:at last"
        case "block":
            return f"{key}:unblocked"
        case "story":
            return "".join(story(key, arguments["pieces"]))
        case _:
            return None


def letters(case: Case) -> Iterator[Violation]:
    """What was given up or could not be read is a dead letter, never silently gone."""
    state = case.states.get("quiet")
    if state is None or case.options.lossy:
        return
    entries = {entry for _, entry, _ in state.letters}
    for planted in case.history.of(Planted):
        if not planted.agent and planted.entry not in entries:
            yield Violation("one-end", f"the unreadable request {planted.entry} is not among the dead letters")
    documents = "\n".join(document for _, _, document in state.letters)
    for key, records in case.ended.items():
        if any(ended.code == "max_deliveries" for ended in records) and f'"{key}"' not in documents:
            yield Violation("one-end", "given up, but not among the dead letters", key)


# -- streams --------------------------------------------------------------------------------------------


def streams(case: Case) -> Iterator[Violation]:
    """Each segment a caller saw is one run's text from its beginning; the last one of a success is whole."""
    for key, records in case.ended.items():
        planned = case.planned[key]
        if not planned.streaming or planned.tool in POISON:
            continue
        for ended in records:
            segments = ended.segments or ("",)
            if planned.tool == "story" and len(segments) > 1:
                yield Violation("stream", f"{len(segments) - 1} resets although every run says the same", key)
            for number, text in enumerate(segments):
                whole = ended.success and number == len(segments) - 1
                what = _bad_babble(planned, text, whole=whole) if planned.tool == "babble" else _bad_story(planned, text, whole=whole)
                if what:
                    yield Violation("stream", what, key)
            if ended.success and segments[-1] != (ended.output or ""):
                yield Violation("stream", f"events say {_short(segments[-1])}, the result says {_short(ended.output)}", key)


def _bad_story(planned: Planned, text: str, *, whole: bool) -> str:
    right = expected(planned) or ""
    if text == right if whole else right.startswith(text):
        return ""
    return f"text {_difference(text, right)}"


def _bad_babble(planned: Planned, text: str, *, whole: bool) -> str:
    pieces = _BABBLE.findall(text)
    if "".join(f"<{key}:{run}:{number}/{count}>" for key, run, number, count in pieces) != text:
        return f"pieces are broken: {_short(text)}"
    runs = {run for _, run, _, _ in pieces}
    if len(runs) > 1:
        return f"pieces of {len(runs)} runs are mixed without a reset"
    numbers = [int(number) for _, _, number, _ in pieces]
    if numbers != list(range(len(numbers))):
        return f"pieces {numbers} are lost, repeated or out of order"
    if whole and len(numbers) != planned.arguments["pieces"]:
        return f"{len(numbers)} of {planned.arguments['pieces']} pieces at a successful end"
    return ""


# -- addresses ------------------------------------------------------------------------------------------


def addresses(case: Case) -> Iterator[Violation]:
    """Every piece of text carries the key of its call; no other key may be seen there."""
    for key, records in case.ended.items():
        for ended in records:
            texts = [*ended.segments, ended.output or ""]
            for found in {match.group() for text in texts for match in _KEY.finditer(text)} - {key}:
                yield Violation("address", f"text of the call {found} came to this one", key)
    planted = {planted.agent for planted in case.history.of(Planted)}
    worst: Counter[str] = Counter()
    for counted in case.history.of(Counted):
        worst[counted.id] = max(worst[counted.id], counted.malformed)
    index = {agent.id: agent.index for agent in case.history.of(Agent)}
    for agent, count in worst.items():
        if count and agent not in planted:
            yield Violation("address", f"agent {index.get(agent)} got {count} frames it could not read, and nobody had sent it any")


# -- executions -----------------------------------------------------------------------------------------


def executions(case: Case) -> Iterator[Violation]:
    """Deliveries are bounded, and work that is once is done once."""
    for key, begun in case.begun.items():
        planned = case.planned.get(key.removesuffix(inner("")))
        if planned is None:
            yield Violation("executions", "a handler ran for a call that nobody planned", key)
            continue
        # Each recreated group counts deliveries anew.
        fresh = sum(
            begun[0].at - _MARGIN < hit.at < begun[-1].at for hit in case.history.of(Hit) if hit.kind in {"group-destroy", "flushall"}
        )
        limit = case.options.max_deliveries * (1 + fresh)
        # Each execution of a nested call makes a call of its own.
        limit *= limit if key != planned.key else 1
        if len(begun) > limit:
            yield Violation("executions", f"the handler began {len(begun)} times, more than {limit}", key)
        if planned.tool == "pay" and len(begun) > 1:
            told = ", ".join(f"attempt {record.attempt} in {record.pid} at {record.at:.3f}" for record in begun)
            yield Violation("executions", f"once work began {len(begun)} times: {told}", key)


def lifetimes(case: Case) -> Iterator[Violation]:
    """No execution goes on when every call has ended, nor much longer than its call's time."""
    left = {(record.key, record.pid, record.attempt): record for record in case.history.of(Left)}
    quiet = case.states.get("quiet")
    for key, records in case.begun.items():
        planned = case.planned.get(key.removesuffix(inner("")))
        for begun in records:
            end = left.get((key, begun.pid, begun.attempt))
            gone = case.exits.get(begun.pid)
            over = end.at if end is not None else gone.at if gone is not None else float("inf")
            if quiet is not None and over > quiet.at and begun.at < quiet.at:
                yield Violation(
                    "executions", f"attempt {begun.attempt} still runs in process {begun.pid} although every call has ended", key
                )
            elif planned is not None and end is not None and over - begun.at > planned.timeout + _MARGIN + 2 * case.options.lease:
                yield Violation("executions", f"attempt {begun.attempt} ran for {over - begun.at:.1f} s of {planned.timeout:g} s", key)


# -- rest, memory, processes ----------------------------------------------------------------------------


def rest(case: Case) -> Iterator[Violation]:
    """What the server holds at the end is what it may hold."""
    for name in ("quiet", "closed", "later"):
        state = case.states.get(name)
        if state is None:
            yield Violation("rest", f"the run ended before the server was looked at ({name})")
            continue
        for queue in state.queues:
            if queue.length or queue.pending:
                yield Violation("rest", f"{name}: {queue.name} holds {queue.length} entries, {queue.pending} of them pending")
        for dead in state.dead if name == "quiet" else ():
            yield Violation("rest", f"{name}: the dead instance {dead} is still in the registry")
        for stranger in snapshot.strangers(state):
            yield Violation("rest", f"{name}: the consumer {stranger} belongs to nobody alive")
        for key in state.keys:
            if key.ttl == -1 and key.name != _KEPT:
                yield Violation("rest", f"{name}: the key {key.name} has no TTL")
    later = case.states.get("later")
    for key in later.keys if later is not None else ():
        if key.name.startswith("rsp:"):
            yield Violation("rest", f"later: the reply stream {key.name} outlives its agent (TTL {key.ttl} ms)")
    for instance in later.live if later is not None else ():
        yield Violation("rest", f"later: the instance {instance} has a lease after its worker left")


def memory(case: Case) -> Iterator[Violation]:
    """Nobody grows beyond what was reached in the first third of its life, half as much again, and a margin."""
    samples = case.history.of(Sample)
    series: dict[str, list[int]] = defaultdict(list)
    for sample in samples:
        series["server"].append(sample.server)
        for name, size in sample.processes.items():
            if size:
                series[name].append(size)
    for name, sizes in series.items():
        if len(sizes) < 9:
            continue
        third = len(sizes) // 3
        early, late = max(sizes[:third]), statistics.median(sizes[-third:])
        if late > early * 1.5 + case.options.memory * 1_048_576:
            yield Violation("memory", f"{name} grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB")


def processes(case: Case) -> Iterator[Violation]:
    """Every death has its cause."""
    open_runs: dict[int, Counter[str]] = defaultdict(Counter)
    for begun in case.history.of(Begun):
        open_runs[begun.pid][begun.key] += 1
    for left in case.history.of(Left):
        open_runs[left.pid][left.key] -= 1
    for gone in case.exits.values():
        # A worker that is terminated within its first moments has not yet said what it does then.
        if gone.wanted and (gone.status in {0, -9} or (gone.status == -signal.SIGTERM and gone.pid not in open_runs)):
            continue
        running = {case.planned[key].tool for key, count in open_runs[gone.pid].items() if count > 0 and key in case.planned}
        if not any(tool in running and status == gone.status for tool, status in _DEADLY.items()):
            yield Violation("processes", f"{gone.role} {gone.pid} ended with {gone.status} by itself")
    closed = case.states.get("closed")
    for pid in closed.workers if closed is not None else ():
        yield Violation("processes", f"worker {pid} was told to go and did not")


RULES: tuple[Rule, ...] = (ends, truth, letters, streams, addresses, executions, lifetimes, rest, memory, processes)


def _short(text: str | None) -> str:
    return repr(text) if text is None or len(text) < 80 else f"{text[:60]!r}… ({len(text)} characters)"


def _difference(text: str, right: str) -> str:
    at = next((index for index, (a, b) in enumerate(zip(text, right, strict=False)) if a != b), min(len(text), len(right)))
    return f"differs from character {at} of {len(right)} on: {text[at : at + 50]!r} instead of {right[at : at + 50]!r}"
