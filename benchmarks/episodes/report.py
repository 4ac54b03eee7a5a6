"""Say what became of the episodes, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.episodes.measure import Outcome
from benchmarks.episodes.player import VERDICTS


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the table as Markdown."""
    lines = ["| turns made by | " + " | ".join(VERDICTS) + " | calls | kills | s |", "|---|" + "---:|" * (len(VERDICTS) + 3)]
    for each in outcomes:
        cells = [*(str(each.counts[verdict]) for verdict in VERDICTS), f"{each.calls:,}", str(each.kills), f"{each.seconds:.1f}"]
        lines.append(f"| {each.plan.title} | {' | '.join(cells)} |")
    return lines


def reasons(outcomes: Sequence[Outcome], most: int = 3) -> list[str]:
    """Return a few lines on episodes that were not identical."""
    lines: list[str] = []
    for each in outcomes:
        lines += [f"{each.plan.title}: {count} times told {text}" for text, count in each.told.most_common(most)]
        for verdict, texts in each.details.items():
            lines += [f"{each.plan.title}: {verdict}: {text}" for text in texts[:most] if verdict != "told"]
    return lines


def document(outcomes: Sequence[Outcome], seed: int, episodes: int) -> dict[str, Any]:
    """Return everything as JSON."""
    return {"seed": seed, "episodes": episodes, "rows": [each.document() for each in outcomes]}
