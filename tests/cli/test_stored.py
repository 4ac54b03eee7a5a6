"""Presets that can't be read, and stored tools whose service never came: each is named where an operator looks."""

from __future__ import annotations

import json

import pytest
import redis

from tests.cli.shell import Shell
from tests.tiers import some
from toolbus.bus.broker.server.keys import Keys

# Each with words of its reason.
PRESETS = {
    "no JSON": (b"{", "not YAML"),
    "no text": (b"\xff", "not UTF-8"),
    "empty": (b"", "Expected `object`"),
    "a wrong type": (b'{"name": 5}', "Expected `str`"),
    "an unknown key": (b'{"name": "a", "nodes": []}', "nodes"),
    "a key twice": (b'{"name": "a", "name": "b"}', "stands twice"),
    "a function": (b'{"name": "a", "tools": [{"id": "f", "function": "os:getcwd"}]}', "can't have"),
    "an edge to nothing": (b'{"name": "a", "actions": [{"id": "a", "next": ["b"]}]}', "b"),
}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("flaw", some(["an unknown key"], PRESETS))
def test_a_preset_that_agents_leave_out_is_listed(shell: Shell, url: str, namespace: str, flaw: str) -> None:
    """With its name and its reason, by every command that shows tools or the graph; the others stay."""
    document, why = PRESETS[flaw]
    assert shell.run("toolkit", "load", "data-analysis").returncode == 0
    with redis.Redis.from_url(url) as server:
        server.hset(Keys(namespace).items, "toolkit/broken", document)
    for command in ("tools --all", "see services", "doctor", "toolkit show", "toolkit recommend query", "toolkit export"):
        done = shell.run(*command.split())
        told = done.stdout + done.stderr if command in {"tools --all", "doctor"} else done.stderr
        [line] = [line for line in told.splitlines() if "toolkit/broken" in line]
        assert why in line, command
    assert "connect" in shell.run("toolkit", "show").stdout
    assert [each["name"] for each in shell.json("tools", "--all") if "refused" in each] == ["toolkit/broken"]
    assert shell.json("see", "services") == []
    assert "1 cannot be used: toolkit/broken" in shell.run("tools").stderr
    assert shell.run("operate", "items", "rm", "toolkit/broken").returncode == 0
    assert "toolkit/broken" not in shell.run("doctor").stdout


def test_doctor_names_tools_whose_service_never_came(shell: Shell) -> None:
    """It says what they wait for and what to do, until a worker serves it; a service that went away is another matter."""
    tool = {"type": "tool-service", "name": "early", "description": "Wait.", "service": "late"}
    assert shell.run("operate", "items", "put", "tool/early", given=json.dumps(tool)).returncode == 0
    [found] = [each for each in shell.json("doctor") if each["check"] == "tool"]
    assert found["state"] == "warn"
    assert "'late'" in found["found"]
    assert "toolbus operate items rm tool/early" in found["found"]
    (shell.folder / "late.py").write_text(
        'from toolbus import tool\n\n@tool(service="late", effect="read")\ndef now() -> str:\n    "Be there."\n    return ""\n'
    )
    worker = shell.start("worker", "late.py")
    assert shell.run("call", "now", "--wait", "20").returncode == 0
    assert [each for each in shell.json("doctor") if each["check"] == "tool"] == []
    worker.terminate()
    worker.communicate(timeout=20)
