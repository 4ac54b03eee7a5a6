"""Answers that are none: every script and every command gets a reply of each wrong type, and exactly one answer all the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import toolbus.bus.broker
from tests.broker.serving import Server, linked, server
from tests.servers import eventually
from tests.tiers import some
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.scripts import COMMANDS, fits
from toolbus.bus.broker.transport.command import ReplyError, WrongAnswerError
from toolbus.bus.broker.transport.link import Link

pytestmark = pytest.mark.anyio

__all__ = ["server"]

WRONG: dict[str, tuple[bytes, Any]] = {
    "nil": (b"_\r\n", None),
    "text": (b"$3\r\nabc\r\n", b"abc"),
    "status": (b"+OK\r\n", b"OK"),
    "integer": (b":7\r\n", 7),
    "big integer": (b"(" + b"9" * 40 + b"\r\n", b"9" * 40),
    "double": (b",1.5\r\n", 1.5),
    "boolean": (b"#t\r\n", True),
    "empty list": (b"*0\r\n", []),
    "list of integers": (b"*2\r\n:1\r\n:2\r\n", [1, 2]),
    "list with an error": (b"*1\r\n-ERR no\r\n", [ReplyError("ERR no")]),
    "nested list": (b"*1\r\n*1\r\n*1\r\n$1\r\na\r\n", [[[b"a"]]]),
    "map": (b"%1\r\n$1\r\na\r\n:1\r\n", {b"a": 1}),
    "set": (b"~1\r\n*0\r\n", [[]]),
    "five texts": (b"*5\r\n" + b"$1\r\na\r\n" * 5, [b"a"] * 5),
}
"""Replies as they go over the wire, with what the parser makes of them."""

SCRIPTS = {script.name: script for script in scripts.ALL}
FORMS = {**{script.name: script.form for script in scripts.ALL}, **COMMANDS}
CASES = [(name, wrong) for name, form in FORMS.items() for wrong, (_, parsed) in WRONG.items() if not fits(parsed, form)]
# What a call meets, a beat, and what looks for lost work.
OFTEN = ["TIME", "XREAD", "XREADGROUP", "finish/finish", "lease/beat", "publish/publish", "recover/reap", "registry/register", "take/start"]
ANSWERED_BY_PUSH = {"SUBSCRIBE"}
# The lease thread asks by itself.
OF_THE_LEASE_THREAD = {"EVALSHA"}
# Of other servers, or of a greeting.
OF_OTHERS = {"ASKING", "EVAL", "SCRIPT", "SENTINEL"}


def test_every_script_and_every_command_has_a_form() -> None:
    """The table has whatever the sources send, and each form refuses nearly everything."""
    source = "".join(path.read_text() for path in Path(toolbus.bus.broker.__file__).parent.rglob("*.py"))
    sent = set(re.findall(r'(?:execute|send|pack|command = |scan\(link, |scan\(self._link, )\s*\(*\s*"([A-Z]{3,})"', source))
    assert sent - OF_OTHERS - ANSWERED_BY_PUSH - OF_THE_LEASE_THREAD == set(COMMANDS)
    folder = Path(toolbus.bus.broker.__file__).parent / "server" / "lua"
    files = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.lua")}
    assert {script.name for script in scripts.ALL} == {name for name in files if "/_" not in name}
    refused = {name: sum(case == name for case, _ in CASES) for name in FORMS}
    assert min(refused.values()) >= 7, refused


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_script_drops_what_it_unpacks(name: str) -> None:
    """Lua passes the first value alone of an ``unpack`` that other arguments follow."""
    assert not re.search(r"unpack\([^()]*\)\s*,", SCRIPTS[name].source)


def test_the_right_types_fit() -> None:
    """Each alternative of a form is accepted; so is anything where there is no form."""
    finish = scripts.FINISH.form
    assert fits([b"1.a", b"5"], finish)
    assert fits([b"1.a", b"5", [1], [b"key"], 3], finish)
    assert not fits([b"1.a", b"5", [1]], finish)
    assert fits({b"key": [[b"1-0", [b"r", b"x"]], [b"2-0", None]]}, COMMANDS["XREADGROUP"])
    assert all(fits(parsed, scripts.ANYTHING) for _, parsed in WRONG.values())
    assert not any(fits(parsed, scripts.PUSHED) for _, parsed in WRONG.values())


def send(link: Link, name: str, answers: list[Any], *, repeatable: bool) -> None:
    """Send a command, or run a script, by its name in the tables."""
    if name in SCRIPTS:
        link.run(SCRIPTS[name], ("key",), (), answers.append, repeatable=repeatable)
    else:
        link.send((name, "key"), answers.append, repeatable=repeatable)


@pytest.mark.parametrize("name", some(OFTEN, FORMS))
async def test_a_wrong_answer_is_one_error(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed over once, as an error; so is the second to what may be repeated; and what was sent behind is answered."""
    # Hundreds of reconnects, which need no pause.
    monkeypatch.setattr("toolbus.bus.broker.transport.link._SETTLED", 0.0)
    for wrong, (text, _) in [(case, WRONG[case]) for each, case in CASES if each == name]:
        for repeatable in (False, True):
            server.answer = lambda command, text=text: b"+behind\r\n" if command[0] == b"BEHIND" else text
            async with linked(server) as link:
                answers: list[Any] = []
                behind: list[Any] = []
                send(link, name, answers, repeatable=repeatable)
                link.send(("BEHIND",), behind.append, repeatable=True)
                await eventually(lambda behind=behind: behind)
                assert [type(answer) for answer in answers] == [WrongAnswerError], (wrong, repeatable)
                assert behind == [b"behind"]


@pytest.mark.parametrize("script", scripts.ALL, ids=repr)
def test_a_script_begins_with_its_keys_and_arguments(script: scripts.Script) -> None:
    """KEYS and ARGV stand before the code, and no comment of a file that others include, too, is in the code."""
    found = re.fullmatch(r"(#![^\n]*\n)?((?:--[^\n]*\n)+)(.*)", script.source, re.DOTALL)
    assert found is not None
    flags, header, code = found.groups()
    assert "-- include" not in script.source
    if script is not scripts.PROBE:
        assert "KEYS" in header
        assert "ARGV" in header
    own = (Path(scripts.__file__).parent / "lua" / f"{script.name}.lua").read_text("utf-8")
    assert (flags or "") == (own.splitlines(keepends=True)[0] if own.startswith("#!") else "")
    comments = [line for line in code.splitlines() if line.lstrip().startswith("--")]
    assert all(line in own.splitlines() for line in comments)
