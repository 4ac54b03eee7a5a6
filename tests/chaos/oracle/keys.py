"""Rules about idempotency keys: whoever calls with the same one has the same answer, of the same call."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.oracle.case import Case, Violation, short


def keys(case: Case) -> Iterator[Violation]:
    """Calls with one idempotency key are one call until it fails: one output, one id, and for work that is ``once`` never another."""
    if case.options.lossy:
        return
    for key, calls in case.shared.items():
        outputs = sorted({ended.output or "" for call in calls for ended in case.ended.get(call.key, ()) if ended.success})
        if len(outputs) > 1:
            yield Violation("shared", f"different outputs for one idempotency key: {', '.join(map(short, outputs))}", key)
        ran = {begun.call for begun in case.begun.get(key, ())}
        most = 1 if calls[0].tool == "pay" else 1 + case.failures(key)
        if len(ran) > most:
            yield Violation("shared", f"ran as {len(ran)} calls although {case.failures(key)} of its callers saw it fail", key)
