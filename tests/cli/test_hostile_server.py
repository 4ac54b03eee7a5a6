"""Every command against a server whose every key holds what nothing of toolbus writes."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import click
import pytest
import redis

from tests.cli.shell import STEPS, Shell
from tests.faults import hostile
from toolbus.bus.broker.server.keys import Keys
from toolbus.operations.cli import main

ECHO = """
from toolbus import tool

@tool(service="canary", effect="read")
def canary_echo(text: str) -> str:
    "Give a text back."
    return text
"""

# Each command that asks the server, with arguments that reach what it reads.
ASKING = {
    "agent": ("agent", "hello", "--base-url", "http://127.0.0.1:9/v1", "--model", "none", "--timeout", "2"),
    "secure approve": ("secure", "approve", "canary_echo"),
    "secure pins approve": ("secure", "pins", "approve", "--all", "--yes"),
    "secure pins list": ("secure", "pins", "list"),
    "secure pins reject": ("secure", "pins", "reject", "other"),
    "secure pins rm": ("secure", "pins", "rm", "other"),
    "secure pins show": ("secure", "pins", "show", "other"),
    "call": ("call", "canary_echo", "text=x", "--timeout", "2"),
    "see calls": ("see", "calls"),
    "platform chat": ("platform", "chat", "hello", "--timeout", "2"),
    "confirm allow": ("confirm", "allow", "c1"),
    "confirm deny": ("confirm", "deny", "c1"),
    "confirm list": ("confirm", "list"),
    "confirm show": ("confirm", "show", "c1"),
    "operate conversations list": ("operate", "conversations", "list"),
    "operate conversations rm": ("operate", "conversations", "rm", "other", "--yes"),
    "operate conversations show": ("operate", "conversations", "show", "other"),
    "operate dead drop": ("operate", "dead", "drop", "canary", "--all", "--yes"),
    "operate dead list": ("operate", "dead", "list", "canary"),
    "operate dead redrive": ("operate", "dead", "redrive", "canary", "--all", "--yes", "--timeout", "2"),
    "operate dead show": ("operate", "dead", "show", "canary", "1-0"),
    "see describe": ("see", "describe", "canary_echo"),
    "doctor": ("doctor",),
    "operate items get": ("operate", "items", "get", "tool/other"),
    "operate items list": ("operate", "items", "list"),
    "operate migrate": ("operate", "migrate"),
    "operate pause": ("operate", "pause", "canary"),
    "platform cancel": ("platform", "cancel", "create_00000000"),
    "platform export": ("platform", "export", "exported"),
    "platform import": ("platform", "import", "platform"),
    "platform list": ("platform", "list"),
    "platform logs": ("platform", "logs", "other"),
    "platform search": ("platform", "search", "x"),
    "platform status": ("platform", "status"),
    "platform sync": ("platform", "sync", "platform/groups.json"),
    "operate purge": ("operate", "purge", "canary", "--yes"),
    "operate items put": ("operate", "items", "put", "tool/new", "new.json"),
    "operate resume": ("operate", "resume", "canary"),
    "operate items rm": ("operate", "items", "rm", "tool/other", "--force"),
    "see services": ("see", "services"),
    "see stats": ("see", "stats", "--patience", "0.5"),
    "toolkit draw": ("toolkit", "draw", "picture.html"),
    "toolkit export": ("toolkit", "export"),
    "toolkit recommend": ("toolkit", "recommend", "canary_echo"),
    "toolkit show": ("toolkit", "show"),
    "secure tokens add": ("secure", "tokens", "add", "new"),
    "secure tokens list": ("secure", "tokens", "list"),
    "secure tokens revoke": ("secure", "tokens", "revoke", "000000000000"),
    "tools": ("tools", "--all"),
    "see top": ("see", "top", "--once", "--every", "0.2"),
    "see usage": ("see", "usage"),
}
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# These run until they are stopped, ask no server, or bring one of their own.
OTHERS = {
    "confirm watch",
    "demo",
    "dev",
    "operate exporter",
    "operate history",
    "platform host",
    "platform im",
    "mcp",
    "mount",
    "new",
    "platform up",
    "serve",
    "see settings",
    "worker",
    "see workers",
}
OTHERS |= {"secure acl", "protocol conformance agent", "protocol conformance worker", "protocol constants", "protocol scripts"}
OTHERS |= {f"toolkit {name}" for name in ("load", "presets", "schema")}
OTHERS |= {f"toolkit learning {name}" for name in ("convert", "diff", "evaluate", "learn", "revisions", "rollback", "run")}


def _commands(command: click.Command, path: str = "") -> Iterator[str]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _commands(found, f"{path} {name}".strip())
    else:
        yield path


def test_every_command_is_tried() -> None:
    """A command that is added is added here, too."""
    assert set(_commands(main)) == set(ASKING) | OTHERS


def _problems(done: subprocess.CompletedProcess[str]) -> Iterator[str]:
    text = done.stdout + done.stderr
    if "Traceback" in text or done.returncode not in {0, 1}:
        yield text[-2_000:]
    if _CONTROLS.search(text):
        yield f"control characters in {text[:500]!r}"
    if len(done.stderr) > 20_000:
        yield f"{len(done.stderr)} characters of complaint"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("kind", "served"), [("values", False), ("values", True), ("types", False), ("ids", False)])
def test_no_command_ends_in_a_traceback(shell: Shell, server: str, namespace: str, kind: str, served: bool, step: int) -> None:
    """Junk is named or left out, whether it was there before the worker or came while it ran; nothing of it reaches the terminal raw."""
    (shell.folder / "tools.py").write_text(ECHO)
    shell.environment["OPENAI_API_KEY"] = "any"
    (shell.folder / "new.json").write_text('{"name": "new", "service": "canary", "description": "New."}')
    (shell.folder / "platform").mkdir()
    (shell.folder / "platform" / "groups.json").write_text("[]")
    keys = Keys(namespace)
    places = hostile.places(keys, hostile.Names("canary", "a1", "i1", "c1", "d1", "2026-01-01"))
    with redis.Redis.from_url(server) as client:
        if served:
            shell.start("worker", "tools.py", "--lease", "1")
            assert shell.run("call", "canary_echo", "text=x", "--wait", "20").returncode == 0
        for place in places.values():
            if kind == "values":
                hostile.fill(client, place)
            elif place.kind == "channel":
                continue
            elif kind == "types":
                hostile.replace(client, place)
            elif place.kind == "stream":
                client.xadd(place.key, {"o": "1"}, id=hostile.HIGHEST)
        if not served:
            shell.start("worker", "tools.py", "--lease", "1")
        said = {name: shell.run(*words) for name, words in list(ASKING.items())[::step]}
        found = shell.run("call", "canary_echo", "text=right", "--wait", "20")
        assert (found.returncode, found.stdout.strip()) == (0, "right"), found.stderr
        worker = shell.started[0]
        assert worker.poll() is None
        worker.terminate()
        _, errors = worker.communicate(timeout=30)
        assert "Traceback" not in errors
        problems = [f"{name} ended with {done.returncode}: {text}" for name, done in said.items() for text in _problems(done)]
        assert not problems, "\n".join(problems)
        for key in client.scan_iter(f"{keys.prefix}*"):
            client.delete(key)
