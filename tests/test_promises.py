"""The list of promises: each has a test that is there, and a change of the product that breaks it."""

from __future__ import annotations

import re

import pytest

from tests.promises import MUTANTS, PAGE, ROOT, named_tests


def test_every_promise_has_a_test_and_a_mutant() -> None:
    """The table of the page and the mutants name the same promises."""
    assert list(named_tests()) == list(MUTANTS)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_promise_is_said_tested_and_can_be_broken(name: str) -> None:
    """The page says it in bold letters, its tests are functions of their files, and what its mutant replaces is there once."""
    page, said = PAGE.read_text("utf-8"), name.partition(":")[0]
    assert f"**{said}" in page or f"\n## {said}" in page
    for test in named_tests()[name]:
        file, _, function = test.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), test
    source = (ROOT / MUTANTS[name].path).read_text("utf-8")
    assert MUTANTS[name].apply(source) != source
