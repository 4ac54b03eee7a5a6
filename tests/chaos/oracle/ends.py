"""Rules about ends: each call ends once, with the truth, and what was given up is a dead letter."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.history import Ended, Hit, Planted
from tests.chaos.oracle.case import MARGIN, Case, Violation, noticed, short
from tests.chaos.oracle.outputs import expected
from tests.chaos.oracle.sessions import bad_seat, is_about_state
from tests.chaos.oracle.streams import bad_babble
from tests.chaos.plan import SEATED, Planned, inner
from tests.chaos.schedule import PURGE

# Their handlers call others or ask somebody, and pass on how that ended.
_CALLING = frozenset({"nested", "deep", "ask"})
# Longest pause of a tool that fails at first, before its next attempt.
_PAUSE = 1.0
# A connection carries nothing more, and nobody is told; or the server answers nothing else than that it does not.
_SILENCES = frozenset({"half-open", "partition", "client-pause"})


def ends(case: Case) -> Iterator[Violation]:
    """Each call that was made ended once, and each that was planned was made."""
    for key, planned in case.planned.items():
        issued, ended = case.issued.get(key), case.ended.get(key, [])
        if issued is None:
            yield Violation("one-end", "the call was never made", key)
        elif not ended and (planned.shares or not case.abandoned(issued)):
            # What has an idempotency key is made again by an agent that was started again.
            yield Violation("one-end", f"no result; its handler began {case.executions(planned.work)} times", key)
        count = sum(record.finished for record in ended)
        if ended and count != 1:
            yield Violation("one-end", f"{count} terminal results", key)


def deadlines(case: Case) -> Iterator[Violation]:
    """Each call ends by its deadline, or when its agent goes on after that."""
    stops = [hit for hit in case.history.of(Hit) if hit.kind == "agent-stop"]
    silences = [(hit.at, noticed(hit)) for hit in case.history.of(Hit) if hit.kind in _SILENCES]
    for key, records in case.ended.items():
        died = [case.over(run) for run in case.begun.get(case.planned[key].work, ()) if case.left(run) is None]
        for ended in records:
            # Where the server lost the question or refuses to be asked, the connection lost the answer, or a worker died as it asked, the
            # caller waits as long as an answer may take.
            unheard = any(at < ended.at and until > ended.began for at, until in silences)
            unheard = unheard or any(ended.began < at < ended.at for at in died)
            if case.planned[key].tool == "ask" and (case.options.lossy or unheard):
                continue
            stopped = sum(hit.until - hit.at for hit in stops if ended.pid in hit.pids and hit.at < ended.at and hit.until > ended.began)
            late = ended.at - ended.began - case.planned[key].timeout - stopped
            if late > MARGIN:
                yield Violation("one-end", f"it ended {late:.1f} s after its deadline", key)


def truth(case: Case) -> Iterator[Violation]:
    """Each result is what the tool must say for that call, or an error that may be."""
    for key, records in case.ended.items():
        planned = case.planned[key]
        for ended in records:
            what = _wrong_success(case, planned, ended) if ended.success else _wrong_failure(case, planned, ended)
            if what:
                yield Violation("one-end", what, key)


def _wrong_success(case: Case, planned: Planned, ended: Ended) -> str:
    if not case.executions(planned.work):
        return "a success although no handler ever began"
    if planned.tool == "babble":
        return bad_babble(planned, ended.output or "", whole=True)
    if planned.tool in SEATED:
        return bad_seat(planned, ended.output or "")
    right = expected(planned)
    if right is None:
        return f"a success of {planned.tool}, which can't succeed"
    return "" if ended.output == right else f"output {short(ended.output)} instead of {short(right)}"


def _wrong_failure(case: Case, planned: Planned, ended: Ended) -> str:
    began, told = case.executions(planned.work), f"{ended.error}/{ended.code}: {ended.message}"
    if ended.error == "cancelled":
        # What was asked for with an idempotency key and must not happen twice has one answer, also when another caller cancelled it; so has
        # what others wait for whose reply streams the server lost.
        by = case.shared[planned.shares] if planned.shares and (planned.tool == "pay" or case.options.lossy) else [planned]
        purged = any(ended.began < hit.until and hit.at < ended.at for hit in case.history.of(Hit) if hit.kind == PURGE)
        return "" if purged or any(call.key in case.cancelled for call in by) else f"{told}, and nobody cancelled it"
    if _is_expected(case, planned, ended):
        return ""
    if ended.error in {"unavailable", "overloaded"} or ended.code == "ReplyError":
        # Another call with its idempotency key may have run, what a handler calls may be refused, and so may the state be for another run.
        ran = sum(not begun.call or begun.call == ended.id for begun in case.begun.get(planned.work, ()))
        again = planned.tool in _CALLING or ended.code in {"other_revision", "state_unread"}
        return f"refused as {told}, but its handler began {ran} times" if ran and not again else ""
    if _is_given_up(case, ended) or _is_behind(case, ended):
        return ""
    match planned.tool:
        case "crash" | "segfault" if ended.error in {"tool_error", "deadline_exceeded"}:
            return ""
        # The last attempt that there is, or that has time.
        case "flaky" | "stumble" if ended.code == "not_yet" and (
            began >= case.options.max_deliveries - 1 or ended.at > ended.began + planned.timeout - _PAUSE
        ):
            return ""
        case "hang" if ended.error == "deadline_exceeded":
            return ""
        case "hog" if ended.code == "MemoryError":
            return ""
        # Only one revision has it, whose workers may be gone.
        case "revised" if ended.error == "invalid_arguments" and not began:
            return ""
        case "endless" if ended.code == "output_limit":
            return ""
        # One that ran into its deadline was lost, as any other call would be.
        case "pay" if ended.error == "outcome_unknown" and ended.code != "deadline_exceeded":
            return ""
        case _:
            return f"{told} (its handler began {began} times)"


def _is_given_up(case: Case, ended: Ended) -> bool:
    """Return whether a call has ended as any may, once faults have taken as many runs from it as poison gets.

    A first delivery counts before it runs. One attempt earlier a call runs alone, and waits in vain for the calls that it makes if there is
    no other worker.
    """
    late, planned = ended.error == "deadline_exceeded", case.planned[ended.key]
    fewest = case.options.max_deliveries - (2 if planned.tool in _CALLING and late else 1)
    return (late or ended.code == "max_deliveries") and case.given_up(planned.work, fewest, ended.began, ended.at)


def _is_behind(case: Case, ended: Ended) -> bool:
    """Return whether a call's time was up when every worker had run others alone for half of it."""
    suspects = [run for runs in case.begun.values() for run in runs if run.attempt >= case.options.max_deliveries - 1]
    alone = sum(max(0.0, min(case.over(run), ended.at) - max(run.at, ended.began)) for run in suspects)
    return ended.error == "deadline_exceeded" and alone > case.options.workers * (ended.at - ended.began) / 2


def _is_expected(case: Case, planned: Planned, ended: Ended) -> bool:
    """Return whether what was lost, or had little time, may end with such an error."""
    if (
        planned.tool == "pay"
        and ended.error != "outcome_unknown"
        and any(each.call == ended.id for each in case.begun.get(planned.work, ()))
    ):
        # Of work that must not happen twice it would say that it did not happen.
        return False
    if planned.tool == "stay" and is_about_state(case, planned, ended):
        return True
    if case.options.lossy and ended.error in {"deadline_exceeded", "outcome_unknown", "unavailable"}:
        return True
    if case.was_cut_off(ended) and ended.error in {"deadline_exceeded", "outcome_unknown"}:
        return True
    if ended.error == "deadline_exceeded" and case.starved(ended.began, ended.at):
        return True
    if planned.timeout >= case.options.timeout:
        return False
    # Of work that must not happen twice the caller is told whether it began. A worker may have appeared too late.
    never_ran = not case.executions(planned.work)
    late = ended.error == "deadline_exceeded" and (never_ran or planned.tool != "pay")
    # A retry for which no time is left is not begun.
    return late or ended.code == "not_yet" or ended.error == "outcome_unknown" or (ended.error == "not_found" and never_ran)


def letters(case: Case) -> Iterator[Violation]:
    """Yield a violation for each request that was given up or could not be read, and is not a dead letter."""
    state = case.states.get("quiet")
    if state is None or case.options.lossy:
        return
    entries = {entry for _, entry, _ in state.letters}
    for planted in case.history.of(Planted):
        if not planted.agent and planted.entry not in entries:
            yield Violation("one-end", f"the unreadable request {planted.entry} is not among the dead letters")
    documents = "\n".join(document for _, _, document in state.letters)
    for key, records in case.ended.items():
        # A handler passes on how a call of its own ended.
        work = case.planned[key].work
        if any(ended.code == "max_deliveries" for ended in records) and not any(f'"{each}"' in documents for each in (work, inner(work))):
            yield Violation("one-end", "given up, but not among the dead letters", key)
