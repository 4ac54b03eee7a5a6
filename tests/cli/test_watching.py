"""``toolbus see stats``, ``calls`` and ``top --once``, as users run them."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
import redis

from tests.cli.shell import Shell
from tests.servers import eventually, eventually_sync
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import EmbeddedServer

pytestmark = pytest.mark.anyio

TOOLS = '''"""Tools of a test."""

import asyncio

from toolbus import ToolError, tool


@tool(effect="read")
async def shout(text: str):
    """Shout a text."""
    return text.upper()


@tool(effect="read")
async def dawdle():
    """Take a minute."""
    await asyncio.sleep(60)


@tool(effect="read")
async def stumble():
    """Fail."""
    raise ToolError("no luck", code="luck")
'''


@pytest.fixture
def called(shell: Shell) -> Shell:
    """Return a shell with a worker whose tools were called three times."""
    (shell.folder / "loud.py").write_text(TOOLS)
    shell.start("worker", "loud.py")
    for text in ("hey", "ho"):
        assert shell.run("call", "shout", f"text={text}", "--user", "ann", "--wait", "20").returncode == 0
    assert shell.run("call", "stumble").returncode == 1
    return shell


def test_stats_are_shown_by_tool_and_by_worker(called: Shell) -> None:
    """For people and for programs."""
    lines = called.run("see", "stats").stdout.splitlines()
    assert lines[0].split()[:4] == ["SERVICE", "TOOL", "CALLS", "FAILED"]
    assert [line.split()[1:4] for line in lines[1:]] == [["shout", "2", "0"], ["stumble", "1", "1"]]
    assert "tool_error: luck: no luck" in lines[2]
    rows = called.run("see", "stats", "--instance").stdout.splitlines()
    assert (len(rows), rows[0].split()[:3]) == (2, ["WORKER", "HOST", "PID"])
    found = called.json("see", "stats")
    [answer] = found["instances"]
    assert found["silent"] == []
    assert {tool["tool"]: tool["started"] for tool in answer["tools"]} == {"shout": 2, "stumble": 1}
    assert len(found["bounds_ms"]) >= len(answer["tools"][0]["buckets"])


@pytest.mark.usefixtures("slow")
def test_stats_name_those_that_did_not_answer(called: Shell) -> None:
    """The others' answers are shown."""
    key = Keys(called.environment["TOOLBUS_NAMESPACE"]).live
    with redis.Redis.from_url(called.environment["TOOLBUS_URL"]) as client:
        client.zadd(key, {"loud/gone-1-abc": 10**15 // 2})
    done = called.run("see", "stats", "--patience", "0.5")
    assert done.returncode == 0
    assert "shout" in done.stdout
    assert "1 of 2 workers did not answer within 0.5 s: gone-1-abc" in done.stderr
    assert "(no answer)" in called.run("see", "stats", "--instance", "--patience", "0.5").stdout
    assert called.json("see", "stats", "--patience", "0.5")["silent"] == [{"instance": "gone-1-abc", "services": ["loud"]}]


@pytest.mark.usefixtures("slow")
def test_workers_are_not_blamed_for_a_server_that_takes_no_answers(shell: Shell, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """With a full memory nobody can answer: commands that ask workers say so, and `top` calls no worker silent."""
    shell.environment["TOOLBUS_URL"] = fresh_server().url
    with redis.Redis.from_url(shell.environment["TOOLBUS_URL"]) as client:
        client.zadd(Keys(shell.environment["TOOLBUS_NAMESPACE"]).live, {"loud/here-1-abc": 10**15 // 2})
        client.config_set("maxmemory", 1)
    for words in (("see", "stats"), ("see", "stats", "--instance"), ("see", "calls", "--running"), ("see", "stats", "--output", "json")):
        done = shell.run(*words)
        assert (done.returncode, done.stdout) == (1, "")
        assert "workers can't answer" in done.stderr
        assert "OOM" in done.stderr
    shown = shell.run("see", "top", "--once", "--every", "0.1")
    assert "unknown" in shown.stdout
    assert "silent" not in shown.stdout
    assert "here-1-abc" not in shown.stderr
    assert "memory is full" in shown.stderr.splitlines()[0]
    examined = shell.run("doctor", "--output", "json")
    assert examined.returncode == 1
    found = [(each["check"], each["state"]) for each in json.loads(examined.stdout)]
    assert found[0] == ("memory", "fail")
    assert "worker" not in dict(found)


def test_an_unknown_service_and_an_empty_namespace_are_told(shell: Shell) -> None:
    """The first is a mistake, the second is not."""
    done = shell.run("see", "stats", "nosuch")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no service 'nosuch'" in done.stderr
    for words, said in (
        (
            ("see", "stats"),
            "no calls",
        ),
        (("see", "stats", "--instance"), "no workers"),
        (
            ("see", "calls"),
            "no recent calls",
        ),
    ):
        done = shell.run(*words)
        assert (done.returncode, done.stdout) == (0, "")
        assert said in done.stderr


@pytest.mark.usefixtures("slow")
def test_calls_can_be_narrowed(called: Shell) -> None:
    """By tool, user, outcome and id; the oldest comes first, and the limit keeps the newest."""
    found = called.json("see", "calls")
    assert [(each["tool"], each["outcome"], each["user"]) for each in found] == [
        ("shout", "succeeded", "ann"),
        ("shout", "succeeded", "ann"),
        ("stumble", "failed", ""),
    ]
    assert all(each["ms"] >= 0 and each["queued_ms"] >= 0 for each in found)
    for words, expected in (
        (("--tool", "shout"), found[:2]),
        (("--service", "loud"), found),
        (("--user", "ann"), found[:2]),
        (("--failed",), found[2:]),
        (("--call", found[1]["id"][:8]), found[1:2]),
        (("--limit", "2"), found[1:]),
        (("--tool", "other"), []),
    ):
        assert called.json("see", "calls", *words) == expected, words
    for filters, code, said in (
        (("--tool", "other"), 0, "none of the 3 recent attempts"),
        (("--error", "luck"), 0, "--error takes a type, of which they have tool_error"),
        (("--history", "calls.db"), 2, "--history needs --since"),
        (("--history", "calls.db", "--since", "9999-01-01"), 2, "is in the future"),
    ):
        done = called.run("see", "calls", *filters)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    missed = called.run("call", "nosuch").stderr
    assert "there is no tool 'nosuch'" in missed
    assert "`toolbus see services`" in missed
    lines = called.run("see", "calls").stdout.splitlines()
    assert lines[0].split()[:4] == ["ENDED", "TOOL", "OUTCOME", "TRY"]
    assert "tool_error: luck: no luck" in lines[3]


@pytest.mark.usefixtures("slow")
def test_running_calls_are_listed(called: Shell) -> None:
    """With their users and workers, as text and JSON, also for who may only watch; what makes no sense with them is refused."""
    assert called.json("see", "calls", "--running") == []
    called.start_anew("call", "dawdle", "--user", "ann")
    [found] = eventually_sync(lambda: called.json("see", "calls", "--running", "--tool", "dawdle"))
    assert (found["tool"], found["user"], found["attempt"], found["stopped"]) == ("dawdle", "ann", 1, False)
    assert found["since"] > 1e9
    assert called.json("see", "calls", "--running", "--user", "bob") == []
    lines = called.run("see", "calls", "--running").stdout.splitlines()
    assert lines[0].split() == ["SINCE", "TOOL", "TRY", "USER", "WORKER", "CALL", "STATE"]
    assert lines[1].split()[1:] == ["dawdle", "1", "ann", found["instance"], found["id"]]
    assert called.run("see", "calls", "--running", "--follow").returncode == 2


@pytest.mark.usefixtures("slow")
async def test_calls_are_followed_until_ctrl_c(called: Shell) -> None:
    """Requests that are there already, and then each new one on a line of its own."""
    program = called.start_anew("see", "calls", "--follow", "--output", "json", "--tool", "shout")
    assert program.stdout is not None
    assert [json.loads(program.stdout.readline())["tool"] for _ in range(2)] == ["shout", "shout"]
    assert called.run("call", "stumble").returncode == 1
    assert called.run("call", "shout", "text=new", "--user", "bo").returncode == 0
    assert json.loads(program.stdout.readline())["user"] == "bo"
    program.send_signal(signal.SIGINT)
    await eventually(lambda: program.poll() is not None, timeout=20)
    assert program.returncode == 130
    assert program.stderr is not None
    assert program.stderr.read() == ""


def test_top_prints_one_snapshot(called: Shell) -> None:
    """As tables and as one document."""
    text = called.run("see", "top", "--once", "--every", "0.2").stdout
    assert [title for title in ("Services", "Workers", "Tools", "Calls") if f"{title}\n" in text] == [
        "Services",
        "Workers",
        "Tools",
        "Calls",
    ]
    found = called.json("see", "top", "--once", "--every", "0.2")
    assert [(each["id"], each["live"], each["calls"]) for each in found["services"]] == [("loud", True, 3)]
    assert [each["answered"] for each in found["instances"]] == [True]
    assert {each["name"]: each["failures"] for each in found["tools"]} == {"dawdle": 0, "shout": 0, "stumble": 1}
    assert len(found["recent"]) == 3
    assert found["window"] >= 0.2
    assert found["problems"] == []


def test_top_refuses_json_without_once(shell: Shell) -> None:
    """It is a mistake of usage."""
    done = shell.run("see", "top", "--output", "json")
    assert done.returncode == 2
    assert "--once" in done.stderr
