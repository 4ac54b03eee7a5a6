"""Options that need another one, and commands that are misspelt, in every group."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from toolbus.operations.cli import main
from toolbus.operations.cli.command import Command


def walk(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, *words, name)


COMMANDS = dict(walk(main))
GROUPS = [words for words, command in COMMANDS.items() if isinstance(command, click.Group)]
ALONE = [(words, name) for words, command in COMMANDS.items() if isinstance(command, Command) for name in command.needs]


@pytest.mark.parametrize("words", GROUPS, ids=" ".join)
def test_every_group_suggests_what_was_meant(words: tuple[str, ...]) -> None:
    """A command without its last letter is told the one that looks like it."""
    group = COMMANDS[words]
    assert isinstance(group, click.Group)
    name = max(group.list_commands(click.Context(group)), key=len)
    done = CliRunner().invoke(main, [*words, name[:-1]])
    assert done.exit_code == 2
    assert "did you mean " in done.output
    assert name in done.output.split("did you mean ")[1]


@pytest.mark.parametrize(("words", "name"), ALONE, ids=lambda each: each if isinstance(each, str) else "-".join(each))
def test_an_option_without_the_one_it_needs_is_refused(words: tuple[str, ...], name: str) -> None:
    """The message names the option that is missing, and nothing is started."""
    command = COMMANDS[words]
    assert isinstance(command, Command)
    [param] = [param for param in command.params if param.name == name]
    assert isinstance(param, click.Option)
    option = param.opts[0]
    arguments = ["x"] * sum(isinstance(param, click.Argument) for param in command.params)
    values = [] if param.is_flag else [{"episodes": "600", "query": "x=env:X"}.get(name, "1")]
    done = CliRunner().invoke(main, [*words, option, *values, *arguments])
    assert done.exit_code == 2, done.output
    other = next(param.opts[0] for param in command.params if param.name == command.needs[name][0])
    assert f"{option} means nothing alone" in done.output
    assert other in done.output


def test_every_command_with_a_host_of_probes_is_checked() -> None:
    """No command takes --health-host alone, and what an option needs are options of the same command."""
    hosts = {words for words, command in COMMANDS.items() if any(param.name == "health_host" for param in command.params)}
    assert hosts == {words for words, name in ALONE if name == "health_host"}
    assert len(hosts) >= 4
    for words, name in ALONE:
        command = COMMANDS[words]
        assert isinstance(command, Command)
        assert {name, *command.needs[name]} <= {param.name for param in command.params}, words
