"""Arguments, settings and words of commands that are not UTF-8: each is refused by name, whoever would have met it."""

from __future__ import annotations

from typing import Any, cast

import click
import pytest
from click.testing import CliRunner

from tests.broker.fakes import KEYS, SETTINGS, FakeLink
from tests.cli.shell import Shell
from tests.cli.test_mistakes import ALL
from toolbus.bus.broker.lease.dead_letters import is_letter_id
from toolbus.bus.broker.registry.registry import Registry
from toolbus.bus.broker.transport.wire import Wire
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.operations.cli import main

BAD = "\udcff"
"""The byte 0xff as Python passes it in an argument or a variable."""


def refused(words: list[str], param: click.Parameter) -> None:
    """Check that a command line ends as a mistake in this parameter, and shows nothing of its value."""
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2, (words, done.output, done.exception)
    assert "Invalid value for" in done.output, done.output
    if isinstance(param.type, click.types.StringParamType):
        assert "is not UTF-8" in done.output, done.output
        assert "secret" not in done.output


def takes_text(param: click.Parameter) -> bool:
    """Return whether a parameter has a value that is no name of a file, whose bytes are the system's."""
    return not isinstance(param.type, click.Path) and not (isinstance(param, click.Option) and param.is_flag)


def given(param: click.Parameter, value: str) -> list[str]:
    """Return the words that give a value to a parameter."""
    return [param.opts[0], value] if isinstance(param, click.Option) else [value]


@pytest.mark.few(20)
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_parameter_of_a_command_refuses_what_is_not_utf8(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of files alone may be of any bytes."""
    monkeypatch.setattr(ALL[words], "callback", lambda **_: None)
    params = ALL[words].params
    for param in filter(takes_text, params):
        line = [*words]
        for each in params:
            if each is param:
                line += given(each, f"secret{BAD}")
            elif each.required or isinstance(each, click.Argument):
                line += given(each, "1")
        refused(line, param)
    for param in filter(takes_text, main.params):
        refused([*given(param, f"secret{BAD}"), *words], param)


def test_a_command_says_so_in_one_line(shell: Shell) -> None:
    """No traceback, whether the bytes came as an argument or in the environment."""
    done = shell.run("operate", "items", "get", BAD)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == "Error: Invalid value for '[KEY]': its text is not UTF-8"
    shell.environment["TOOLBUS_URL"] = f"redis://ann:secret{BAD}@127.0.0.1:1"
    done = shell.run("tools")
    assert (done.returncode, done.stderr) == (2, "toolbus: TOOLBUS_URL is wrong: its text is not UTF-8\n")


@pytest.mark.parametrize("name", ["url", "owner"])
def test_settings_that_are_sent_are_utf8(name: str) -> None:
    """The message shows nothing of the value, which may be a password; names of files may be of any bytes."""
    with pytest.raises(ConfigurationError, match=f"^argument '{name}' is wrong: its text is not UTF-8$"):
        Settings.load({}, **{name: f"secret{BAD}"})
    assert Settings.load({}, password_file=BAD).password_file == BAD


@pytest.mark.anyio
async def test_words_that_cannot_be_sent_are_a_mistake_of_the_caller() -> None:
    """They are named, and nothing waits to be written."""
    wire = Wire(cast("Any", None))
    with pytest.raises(ConfigurationError, match=r"'a\\udcff' can't be sent: its text is not UTF-8"):
        wire.send(("GET", f"a{BAD}"))
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        await wire.execute("GET", BAD)
    assert wire._unsent == []


@pytest.mark.anyio
async def test_a_worker_may_run_in_a_folder_of_any_name() -> None:
    """The place of its code is noted as far as it can be sent, and is no other one for that."""
    link = FakeLink()
    link.answers["HSCAN"] = lambda keys, args: [b"0", [b"i:mine", b"1:x", b"o:mine", link.args("HSET")[0][2].encode()]]
    registry = Registry(cast("Any", link), KEYS, SETTINGS)
    assert await registry.compare("pool", "mine", f"host:/{BAD}/tools.py") == []
    assert link.args("HSET") == [(KEYS.instances("pool"), "o:mine", "host:/\ufffd/tools.py")]


@pytest.mark.parametrize("letter", ["1790000000000-0", "18446744073709551615-18446744073709551615"])
def test_an_id_of_a_letter_has_64_bits_in_each_part(letter: str) -> None:
    """A server takes no other ids."""
    assert is_letter_id(letter)


@pytest.mark.parametrize(
    "letter", ["18446744073709551616-0", "0-18446744073709551616", "1", "1-", "\u0661-0", "1-1-1", "-1-1", "1-1\n", "9" * 5_000 + "-1"]
)
def test_what_no_server_takes_is_no_id_of_a_letter(letter: str) -> None:
    """Commands say so in their own words."""
    assert not is_letter_id(letter)
