"""The list of promises: each has a test that is there, and a change of the product that breaks it."""

from __future__ import annotations

import re

import pytest

from tests.promises import MUTANTS, PAGE, ROOT, TESTS


def test_every_promise_has_a_test_and_a_mutant() -> None:
    """The tables of tests and of mutants name the same promises."""
    assert list(TESTS) == list(MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_promise_is_said_tested_and_can_be_broken(name: str) -> None:
    """The page says it in bold letters, its test is a function of its file, and what its mutant replaces is there once."""
    page, said = PAGE.read_text("utf-8"), name.partition(":")[0]
    assert f"**{said}" in page or f"\n## {said}" in page
    file, _, function = TESTS[name].partition("::")
    assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), TESTS[name]
    source = (ROOT / MUTANTS[name].path).read_text("utf-8")
    assert MUTANTS[name].apply(source) != source
