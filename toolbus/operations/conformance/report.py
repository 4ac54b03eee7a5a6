"""Tell what a program under test keeps: as lines, as documents, and in the form of JUnit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import msgspec

from toolbus.operations.conformance.checks import Outcome

_WIDE = 16
# Characters that XML 1.0 has no form for.
_UNFIT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Report:
    """Gathers outcomes, and compares them with what is known to be broken.

    Args:
        expected: names of requirements that are known to be broken.
        print_line: called with each line as it comes; None prints nothing.
    """

    def __init__(self, expected: frozenset[str], print_line: Callable[[str], object] | None) -> None:
        self._expected = expected
        self._print = print_line
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Take an outcome in."""
        self.outcomes.append(outcome)
        if self._print is not None:
            for line in self._lines(outcome):
                self._print(line)

    @property
    def failed(self) -> bool:
        """True if something is broken that was not expected to be, or holds that was."""
        return any(self._surprise(outcome) for outcome in self.outcomes)

    def summary(self) -> str:
        """Return a line that counts the outcomes."""
        found = Counter(outcome.status for outcome in self.outcomes)
        return f"{found['holds']} hold, {found['broken']} are broken, {found['not checked']} are not checked"

    def documents(self) -> list[dict[str, Any]]:
        """Return the outcomes as objects for programs."""
        return [
            {**msgspec.structs.asdict(outcome), "holds": outcome.holds, "expected": outcome.name in self._expected}
            for outcome in self.outcomes
        ]

    def junit(self) -> str:
        """Return the outcomes as a JUnit test suite."""
        failures = sum(bool(self._surprise(outcome)) for outcome in self.outcomes)
        skipped = sum(not self._surprise(outcome) and not outcome.holds for outcome in self.outcomes)
        suite = ElementTree.Element(
            "testsuite",
            name="toolbus protocol conformance",
            tests=str(len(self.outcomes)),
            failures=str(failures),
            skipped=str(skipped),
        )
        for outcome in self.outcomes:
            case = ElementTree.SubElement(
                suite, "testcase", classname=f"level {outcome.level}", name=f"{outcome.id} {outcome.name}", time=f"{outcome.seconds:.3f}"
            )
            if surprise := self._surprise(outcome):
                text = "\n".join(_details(outcome))
                ElementTree.SubElement(case, "failure", message=_UNFIT.sub("?", surprise)).text = _UNFIT.sub("?", text)
            elif not outcome.holds:
                ElementTree.SubElement(case, "skipped", message=_UNFIT.sub("?", outcome.problem))
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

    def _surprise(self, outcome: Outcome) -> str:
        """Return what is not as expected about an outcome; empty when nothing is."""
        expected = outcome.name in self._expected
        if outcome.status == "broken" and not expected:
            return outcome.problem
        return "it holds, and was expected to be broken: remove it from the file" if outcome.holds and expected else ""

    def _lines(self, outcome: Outcome) -> list[str]:
        status = {"holds": "holds", "broken": "BROKEN", "not checked": "not checked"}[outcome.status]
        if outcome.status == "broken" and outcome.name in self._expected:
            status = "as expected"
        about = f"{outcome.id} {outcome.name}"
        first = f"L{outcome.level} {status:11} {about}: {outcome.problem if outcome.status == 'broken' else outcome.meaning}"
        if outcome.status == "not checked":
            return [f"{first} ({outcome.problem})"]
        surprise = self._surprise(outcome)
        if outcome.holds:
            return [first, *([" " * _WIDE + surprise] if surprise else [])]
        return [first, *(" " * _WIDE + line for line in [*_details(outcome), f"this check alone: --only {outcome.id}"])]


def _details(outcome: Outcome) -> list[str]:
    """Return what a person needs to understand a broken requirement beside its problem, line by line."""
    lines = [f"{outcome.meaning} (docs/protocol.md, {outcome.id})"]
    lines += [f"frame: {frame}" for frame in outcome.frames]
    lines += [f"it wrote: {line}" for line in outcome.output.splitlines()]
    return lines + ([f"it ended with exit code {outcome.exit_code}"] if outcome.exit_code is not None else [])
