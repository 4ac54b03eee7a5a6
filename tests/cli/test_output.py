"""No text, whoever wrote it, commands the terminal of the person who looks at it."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import toolbus.operations.cli
from tests.cli.shell import STEPS, Shell
from toolbus.operations.cli import main

EVIL = "\x1b]52;c;ZXZpbA==\x07 \x9b31m \u202elive\u202c \x1b[2J\u200b \x00"
TOOLS = f"""
from toolbus import Progress, ToolError, invocation, tool

EVIL = {EVIL!r}


@tool("evil_text", EVIL, effect="read", service="evil")
async def text():
    yield Progress(1, 2, EVIL)
    yield EVIL + "\\n\\tend\\n"


@tool("evil_data", EVIL, effect="read", service="evil", category=EVIL, groups=[EVIL])
async def data():
    return {{EVIL: EVIL}}


@tool("evil_error", EVIL, effect="read", service="evil")
async def error():
    raise ToolError(EVIL, code=EVIL, details=EVIL)


@tool("evil_crash", EVIL, effect="read", service="evil")
async def crash():
    raise ValueError(EVIL)


@tool("evil_question", EVIL, effect="read", service="evil", confirm=True, parameters={{"properties": {{"a": {{"description": EVIL}}}}}})
async def question(params):
    return ""
"""
# Controls, and what turns or hides text, beside line breaks and tabs.
HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f]")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")

# Each command that can end by itself; the folder has the files.
ENDING = {
    "secure approve": ("secure", "approve", "evil_data"),
    "secure pins approve": ("secure", "pins", "approve", EVIL),
    "secure pins list": ("secure", "pins", "list"),
    "secure pins reject": ("secure", "pins", "reject", EVIL, "--reason", EVIL),
    "secure pins rm": ("secure", "pins", "rm", EVIL),
    "secure pins show": ("secure", "pins", "show", "evil_data"),
    "call": ("call", "evil_error"),
    "see calls": ("see", "calls", "--tool", EVIL),
    "confirm allow": ("confirm", "allow", EVIL),
    "platform chat": ("platform", "chat", EVIL, "--chat-id", "evil", "--timeout", "2"),
    "confirm deny": ("confirm", "deny", EVIL),
    "confirm list": ("confirm", "list"),
    "confirm show": ("confirm", "show", EVIL),
    "protocol conformance agent": ("protocol", "conformance", "agent", "--only", "leaves", "--", EVIL),
    "protocol conformance worker": ("protocol", "conformance", "worker", "--only", "leaves", "--", EVIL),
    "operate conversations list": ("operate", "conversations", "list"),
    "operate conversations rm": ("operate", "conversations", "rm", EVIL, "--yes"),
    "operate conversations show": ("operate", "conversations", "show", EVIL),
    "operate dead drop": ("operate", "dead", "drop", EVIL, "--all", "--yes"),
    "operate dead list": ("operate", "dead", "list", EVIL),
    "operate dead redrive": ("operate", "dead", "redrive", EVIL, "--all", "--yes"),
    "operate dead show": ("operate", "dead", "show", EVIL, "1-0"),
    "see describe": ("see", "describe", "evil_data"),
    "doctor": ("doctor",),
    "operate history": ("operate", "history", EVIL),
    "operate items get": ("operate", "items", "get", "tool/evil_item"),
    "platform host": ("platform", "host", "--label", EVIL),
    "operate items list": ("operate", "items", "list"),
    "operate migrate": ("operate", "migrate", "--dry-run"),
    "mount": ("mount", EVIL, "--", EVIL),
    "new": ("new", EVIL),
    "operate pause": ("operate", "pause", EVIL),
    "secure acl": ("secure", "acl", EVIL),
    "platform cancel": ("platform", "cancel", EVIL),
    "platform export": ("platform", "export", EVIL),
    "platform import": ("platform", "import", "evil"),
    "platform list": ("platform", "list"),
    "platform logs": ("platform", "logs", EVIL),
    "platform status": ("platform", "status", "--tools"),
    "platform sync": ("platform", "sync", "evil/items.json"),
    "platform search": ("platform", "search", EVIL, "--category", EVIL),
    "protocol constants": ("protocol", "constants"),
    "protocol scripts": ("protocol", "scripts", EVIL),
    "operate purge": ("operate", "purge", EVIL, "--yes"),
    "operate items put": ("operate", "items", "put", "tool/evil_item", "item.json"),
    "operate resume": ("operate", "resume", EVIL),
    "operate items rm": ("operate", "items", "rm", f"tool/{EVIL}"),
    "serve": ("serve", "--host", EVIL),
    "see services": ("see", "services"),
    "see settings": ("see", "settings"),
    "see stats": ("see", "stats", EVIL),
    "see top": ("see", "top", "--once", "--every", "0.2"),
    "toolkit learning convert": ("toolkit", "learning", "convert", "evil.json", "out.sqlite"),
    "toolkit learning diff": ("toolkit", "learning", "diff", EVIL),
    "toolkit draw": ("toolkit", "draw", f"{EVIL}.html"),
    "toolkit learning evaluate": ("toolkit", "learning", "evaluate", "--scores", "evil.json", "--log", "evil.json"),
    "toolkit export": ("toolkit", "export"),
    "toolkit learning learn": ("toolkit", "learning", "learn", "evil.json"),
    "toolkit load": ("toolkit", "load", "evil.json"),
    "toolkit presets": ("toolkit", "presets"),
    "toolkit recommend": ("toolkit", "recommend", EVIL),
    "toolkit learning run": ("toolkit", "learning", "run", EVIL, "--log", "evil.json"),
    "toolkit learning revisions": ("toolkit", "learning", "revisions", "--scores", EVIL),
    "toolkit learning rollback": ("toolkit", "learning", "rollback", "--scores", EVIL),
    "toolkit schema": ("toolkit", "schema"),
    "toolkit show": ("toolkit", "show", EVIL),
    "secure tokens add": ("secure", "tokens", "add", EVIL),
    "secure tokens list": ("secure", "tokens", "list"),
    "secure tokens revoke": ("secure", "tokens", "revoke", EVIL),
    "tools": ("tools", "--all"),
    "see usage": ("see", "usage"),
    "worker": ("worker", EVIL),
    "see workers": ("see", "workers"),
}
# These run until they are stopped, or need a model; that they print by `print_line` only is tested below.
OTHERS = {"agent", "confirm watch", "demo", "dev", "operate exporter", "platform im", "mcp", "platform up"}


def paths(command: click.Command, above: str = "") -> set[str]:
    """Every command below one."""
    if not isinstance(command, click.Group):
        return {above}
    context = click.Context(command)
    return {
        path for name in command.list_commands(context) for path in paths(command.get_command(context, name), f"{above} {name}".strip())
    }


def on_terminal(shell: Shell, *words: str) -> str:
    """Return the text that a command writes to a terminal."""
    ours, theirs = pty.openpty()
    words = (sys.executable, "-m", "toolbus", *words)
    process = subprocess.Popen(words, cwd=shell.folder, env=shell.environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65_536):
            written += part
    except OSError:
        # The other end is closed.
        pass
    finally:
        os.close(ours)
        process.wait(30)
    return written.decode().replace("\r\n", "\n")


@pytest.fixture
def served(shell: Shell) -> Shell:
    """A worker whose tools say all they can say with escapes, and files that do so too."""
    (shell.folder / "evil.py").write_text(TOOLS)
    (shell.folder / "evil.json").write_text(json.dumps({"name": EVIL, EVIL: EVIL}))
    item = {"type": "tool-service", "name": "evil_item", "description": EVIL, "service": "evil", "category": EVIL, EVIL: EVIL}
    (shell.folder / "item.json").write_text(json.dumps(item))
    (shell.folder / "evil").mkdir()
    source = {"type": "local", "host_dir": "x", EVIL: EVIL}
    (shell.folder / "evil" / "registry.json").write_text(json.dumps([{"tool_id": "evil", "name": EVIL[:-1], EVIL: 1}, {"tool_id": EVIL}]))
    (shell.folder / "evil" / "items.json").write_text(json.dumps([{"slug": "evil", "title": EVIL}, {"slug": 5, EVIL: EVIL}]))
    (shell.folder / "evil" / "sources.json").write_text(json.dumps({"evil": source, EVIL: source}))
    shell.environment["TOOLBUS_LOG_FORMAT"] = "text"
    shell.start("worker", "evil.py")
    assert shell.run("call", "evil_text", "--wait", "20").returncode == 0
    return shell


def test_every_command_is_here() -> None:
    """A new command needs its words, or a reason."""
    assert paths(main) == {*ENDING, *OTHERS}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("step", STEPS)
def test_nothing_that_a_command_prints_commands_the_terminal(served: Shell, step: int) -> None:
    """Descriptions, keys, errors, files and wrong words are shown with their escapes written out."""
    assert served.run("operate", "items", "put", "tool/evil_item", "item.json").returncode in {0, 1, 2}
    for path, words in list(ENDING.items())[::step]:
        for more in ((), ("--output", "json")):
            done = served.run(*(word.replace("\0", "") for word in words), *more)
            said = done.stdout + done.stderr
            assert HARMFUL.search(said) is None, f"{path}: {said!a}"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "words", [("tools",), ("see", "describe", "evil_data"), ("call", "evil_text"), ("call", "evil_data"), ("call", "evil_error")]
)
def test_nor_on_a_terminal(served: Shell, words: tuple[str, ...]) -> None:
    """There, tables are drawn, text streams, and progress is told; line breaks and tabs stay."""
    said = COLOURS.sub("", on_terminal(served, *words))
    assert HARMFUL.search(said) is None, ascii(said)
    assert "live" in said
    if words == ("call", "evil_text"):
        assert "\n\tend" in said
        assert "[1/2] \\u001b]52" in said


def test_what_a_tool_answers_goes_into_a_pipe_as_it_is(served: Shell) -> None:
    """A program that reads it, or a file, gets every character."""
    assert served.run("call", "evil_text").stdout.startswith(EVIL)


def test_wrong_usage_is_shown_the_same_way() -> None:
    """Click prints these itself, with what was given."""
    for words in ([EVIL], ["tools", EVIL], ["--log-level", EVIL, "tools"], ["call", "x", "--timeout", EVIL]):
        said = CliRunner().invoke(main, words).output
        assert "live" in said
        assert HARMFUL.search(said) is None, ascii(said)


def test_one_module_prints() -> None:
    """All others say what they have to say by it."""
    for path in Path(toolbus.operations.cli.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        called = {ast.unparse(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
        printing = called & {
            "print",
            "click.echo",
            "click.secho",
            "click.style",
            "click.prompt",
            "click.confirm",
            "sys.stdout.write",
            "sys.stderr.write",
        }
        assert path.name == "output.py" or not printing, f"{path.name}: {printing}"
