"""Faults that are planted into a worker and an agent, the check that finds each, and the page that lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.checks import Table
from toolbus.operations.conformance.worker_checks import WORKER

# The check that finds each, and what the fault is.
WORKER_FAULTS = {
    "no-end": ("answers", "forgets the frame with end_of_stream"),
    "two-ends": ("answers", "answers twice"),
    "skips-seq": ("streams", "leaves a number out of seq"),
    "seq-from-one": ("answers", "counts seq from 1"),
    "one-run": ("draws-runs", "uses one run token for all calls"),
    "wrong-id": ("answers", "answers under another id"),
    "keeps-entries": ("answers", "never acknowledges"),
    "splits-utf8": ("cuts-between-characters", "cuts text between bytes"),
    "huge-pieces": ("cuts-between-characters", "sends pieces of any size"),
    "trusts-d": ("survives-hostile-deadlines", "ends at a deadline that is no number"),
    "trusts-requests": ("survives-unreadable-requests", "ends at a request that is no JSON"),
    "runs-expired": ("leaves-expired-requests", "runs what has expired"),
    "runs-unknown": ("refuses-unknown-tools", "answers for tools that it does not have"),
    "any-version": ("refuses-other-versions", "accepts any envelope version"),
    "ignores-cancel": ("cancels", "never hears of cancellations"),
    "ignores-deadline": ("keeps-deadlines", "lets calls run beyond their deadline"),
    "no-start": ("tells-starts", "sends no start frame"),
    "all-at-end": ("streams", "sends all text with the end"),
    "makes-streams": ("survives-callers-that-left", "writes to a caller that left with XADD"),
    "leaks-slots": ("frees-slots", "loses a slot with each expired call"),
    "stays": ("leaves", "stays in the registry when it ends"),
    "no-again": ("registers-again", "never registers again"),
    "no-renew": ("renews", "never renews what it holds"),
    "no-beat": ("beats", "never beats"),
    "no-fence": ("drops-what-it-lost", "finishes without asking the fence"),
    "no-reap": ("takes-over", "takes nothing over"),
    "reruns-poison": ("buries-poison", "runs a request however often it failed"),
    "drops-at-end": ("hands-back", "drops what runs when it is told to end"),
    "counts-no-hand-back": ("hands-back", "hands a call back under the number of the run that it cut off"),
    "same-attempt": ("takes-over", "calls every attempt the first"),
}

AGENT_FAULTS: dict[str, tuple[str, str]] = {}

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
_MARK = "\n## Workers\n"


def _rows(table: Table[Any], faults: dict[str, tuple[str, str]]) -> str:
    lines = ["| Number | Level | Requirement | Check | Faults that it finds |", "|---|---|---|---|---|"]
    for each in table.requirements:
        found = "; ".join(f"`{name}`: {about}" for name, (check, about) in faults.items() if check == each.name)
        check = f"`{each.name}`" if each.run else f"not checked: {each.unchecked}"
        lines.append(f"| {each.id} | {each.level} | {each.meaning} | {check} | {found} |")
    return "\n".join(lines)


def page() -> str:
    """Return the page of requirements: what stands at its beginning, and the tables as the code has them."""
    beginning, _, _ = PAGE.read_text("utf-8").partition(_MARK)
    workers, agents = _rows(WORKER, WORKER_FAULTS), _rows(AGENT, AGENT_FAULTS)
    return f"{beginning}{_MARK}\n{workers}\n\n## Agents\n\n{agents}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
