"""The command line of the benchmarks."""

from __future__ import annotations

import argparse

import pytest

from benchmarks.cli import _parser


def parsers(parser: argparse.ArgumentParser, name: str = "benchmarks") -> dict[str, argparse.ArgumentParser]:
    """A parser and those of its commands, by name."""
    found = {name: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, each in action.choices.items():
                found |= parsers(each, f"{name} {command}")
    return found


PARSERS = parsers(_parser())


@pytest.mark.parametrize("name", PARSERS)
def test_every_command_of_the_benchmarks_explains_itself(name: str) -> None:
    """The help of each command can be written."""
    assert PARSERS[name].format_help().startswith("usage: ")
