"""The planted defects: there are enough of them, and each can be planted."""

from __future__ import annotations

from tests.promises import ROOT
from tests.simulation.planted import MISSED, OUT_OF_REACH, PLANTED


def test_each_planted_defect_changes_its_file() -> None:
    """At least forty defects can be planted, each of which changes one place of one file."""
    assert len(PLANTED) >= 40
    assert {*OUT_OF_REACH, *MISSED} < set(PLANTED)
    assert set(OUT_OF_REACH).isdisjoint(MISSED)
    for name, defect in PLANTED.items():
        source = (ROOT / defect.path).read_text("utf-8")
        assert defect.apply(source) != source, name
