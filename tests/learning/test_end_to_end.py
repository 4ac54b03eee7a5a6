"""Learning as users run it: agents record, ``learning run`` publishes, running agents see it, and ``rollback`` takes it back."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.endpoint import Canned, calls, endpoint, says
from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.servers import eventually
from toolbus import ToolBus, Worker, tool
from toolbus.agent import Agent, ChatEndpoint
from toolbus.toolkit import Walk
from toolbus.toolkit.learning import Recorder, Revisions, open_store

pytestmark = pytest.mark.anyio

# The dump is the wrong edge: it stands only in the chain, with the score 1.0, and never works.
PRESET = """
name: orders
tools:
  - {id: dump, bus: grep_dump}
  - {id: sql, bus: run_sql}
  - {id: page, bus: write_page}
groups:
  - {id: writing, tools: [page]}
actions:
  - {id: count, name: Count orders, call: [{to: sql, score: 0.6}], next: [{to: tell, score: 0.7}]}
  - {id: tell, call: [{to: writing, score: 0.8}]}
chains:
  - [count, dump, tell]
"""


@tool(effect="read")
async def grep_dump(query: str) -> str:
    """Search the nightly dump."""
    raise ValueError(f"there was no dump of {query} tonight")


@tool(effect="read")
async def run_sql(query: str) -> int:
    """Ask the database."""
    return len(query)


@tool(effect="read")
async def write_page(text: str) -> str:
    """Write a page."""
    return text.upper()


def model(body: dict[str, Any]) -> Canned:
    """Try the dump where it is offered, then the database, then write a page."""
    offered = {each["function"]["name"] for each in body.get("tools", ())}
    since = max(index for index, message in enumerate(body["messages"]) if message["role"] == "user")
    done = [message["name"] for message in body["messages"][since:] if message["role"] == "tool"]
    for name, arguments in (("grep_dump", {"query": "orders"}), ("run_sql", {"query": "orders"}), ("write_page", {"text": "42"})):
        if name in offered and name not in done:
            return calls((name, arguments))
    return says("There were 42.")


@asynccontextmanager
async def served(url: str, namespace: str) -> AsyncIterator[ToolBus]:
    """A bus whose tools are there."""
    async with Worker([grep_dump, run_sql, write_page], url=url, namespace=namespace), ToolBus(url, namespace=namespace) as bus:
        await bus.wait_for_tool("run_sql")
        yield bus


async def record(bus: ToolBus, log: Path, questions: int) -> None:
    """Ask so many questions, each of a new agent, all at once."""
    async with endpoint(model) as server, ChatEndpoint(server.url, "key") as chat:
        with open_store(log) as store, Recorder(store, bus.events) as recorder:

            async def ask(number: int) -> None:
                agent = Agent(chat, bus.executor(model="m"), walk=Walk(bus.tools, ["Count orders"], recorder=recorder))
                answer = await agent.ask(f"How many orders were there in week {number}?")
                assert (answer.reason, answer.calls) == ("answered", 3)

            await asyncio.gather(*map(ask, range(questions)))


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, server: str, namespace: str) -> Shell:
    """A shell whose folder has the preset, which is published."""
    (tmp_path / "orders.yaml").write_text(PRESET)
    shell = Shell(forks, tmp_path, server, namespace)
    done = shell.run("toolkit", "load", "orders.yaml")
    assert done.returncode == 0, done.stderr
    return shell


@pytest.mark.usefixtures("slow")
async def test_a_wrong_edge_is_learned_published_and_taken_back(shell: Shell, server: str, namespace: str) -> None:
    """Fifty recorded questions make a running agent lose the tool that never works, without a restart, and a rollback brings it back."""
    log = shell.folder / "executions.jsonl"

    async def toolbus(*words: str) -> str:
        done = await asyncio.to_thread(shell.run, "toolkit", "learning", *words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    async with served(server, namespace) as bus:
        running = Walk(bus.tools, ["count"])
        await eventually(lambda: set(running.view) == {"grep_dump", "run_sql", "write_page"})
        await record(bus, log, 50)
        records = [json.loads(line) for line in log.read_text().splitlines()]
        assert {(each["action"], each["tool"], each["target"], each["outcome"]) for each in records} == {
            ("count", "grep_dump", "dump", "failure"),
            ("count", "run_sql", "sql", "success"),
            ("tell", "write_page", "writing", "success"),
        }
        assert (len(records), len({each["episode"] for each in records})) == (150, 50)

        dry = await toolbus("run", "orders.yaml", "--log", str(log), "--dry-run")
        assert "nothing is written" in dry
        assert not (shell.folder / "revisions").exists()

        told = await toolbus("run", "orders.yaml", "--log", str(log), "--report", "report.md")
        assert "Taken: the log supports other scores" in told
        assert "learned from 150 executions of 50 episodes" in told
        await eventually(lambda: set(running.view) == {"run_sql", "write_page"})
        assert "dump" not in running.view.prompt()
        report = (shell.folder / "report.md").read_text()
        assert report.startswith("# Learning: orders\n")
        assert "0 of 50 calls succeeded" in report
        assert "(report.svg)" in report
        assert b"count \xe2\x86\x92 dump" in (shell.folder / "report.svg").read_bytes()

        again = await toolbus("run", "orders.yaml", "--log", str(log))
        assert "Nothing to change" in again
        assert "is published already" in again

        back = await toolbus("rollback", "--revisions", "revisions")
        assert "published toolkit/orders" in back
        await eventually(lambda: set(running.view) == {"grep_dump", "run_sql", "write_page"})
        assert "Held: " in await toolbus("run", "orders.yaml", "--log", str(log))
        assert "grep_dump" in running.view

        assert "is published with revision 0003-" in await toolbus("run", "orders.yaml", "--log", str(log), "--resume")
        await eventually(lambda: "grep_dump" not in running.view)
        assert len(Revisions(shell.folder / "revisions").ids()) == 3


async def filled(shell: Shell, bus: ToolBus) -> Path:
    """A log with enough questions to learn from."""
    await record(bus, shell.folder / "log.jsonl", 25)
    return shell.folder / "log.jsonl"


def revision_of(shell: Shell) -> str:
    """The revision that the published preset has."""
    document = shell.run("operate", "items", "get", "toolkit/orders").stdout
    return str(json.loads(document).get("revision", ""))


@pytest.mark.usefixtures("slow")
async def test_what_a_killed_run_left_is_published_by_the_next(shell: Shell, server: str, namespace: str) -> None:
    """A run or rollback that was killed before it published leaves a folder that the next run publishes, whatever else it does."""
    async with served(server, namespace) as bus:
        log = await filled(shell, bus)
    words = ("toolkit", "learning", "run", "orders.yaml", "--log", str(log))
    revisions = Revisions(shell.folder / "revisions")
    # A killed run has kept its revision; --no-publish stops at the same place.
    assert shell.run(*words, "--no-publish").returncode == 0
    learned = revisions.ids()[-1]
    assert revision_of(shell) == ""
    assert f"is published with revision {learned}" in shell.run(*words).stdout
    assert shell.run("toolkit", "learning", "rollback", "--no-publish").returncode == 0
    assert revision_of(shell) == learned
    told = shell.run(*words).stdout
    assert "Held: " in told
    assert f"is published with revision {revisions.ids()[0]}" in told
    assert revision_of(shell) == revisions.ids()[0]


@pytest.mark.usefixtures("slow")
async def test_a_second_run_at_the_same_time_is_refused(shell: Shell, server: str, namespace: str) -> None:
    """It ends with one line and changes nothing, and so does a rollback; the folder is free again afterwards."""
    async with served(server, namespace) as bus:
        log = await filled(shell, bus)
    words = ("toolkit", "learning", "run", "orders.yaml", "--log", str(log))
    assert shell.run(*words, "--no-publish").returncode == 0
    with Revisions(shell.folder / "revisions").alone():
        for refused in (shell.run(*words), shell.run("toolkit", "learning", "rollback"), shell.run("toolkit", "learning", "rollback", "1")):
            assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
            assert "another process works in" in refused.stderr
    assert revision_of(shell) == ""
    assert shell.run(*words).returncode == 0


@pytest.mark.usefixtures("slow")
async def test_a_schedule_goes_on_after_mistakes(shell: Shell, server: str, namespace: str) -> None:
    """With --every, a log that is not there yet is told, and learned from when it is; Ctrl-C ends it with 130."""
    program = shell.start("toolkit", "learning", "run", "orders.yaml", "--log", "log.jsonl", "--every", "0.2")
    async with served(server, namespace) as bus:
        running = Walk(bus.tools, ["count"])
        await record(bus, shell.folder / "later.jsonl", 25)
        assert "grep_dump" in running.view
        (shell.folder / "later.jsonl").rename(shell.folder / "log.jsonl")
        await eventually(lambda: "grep_dump" not in running.view, timeout=60.0)
    program.send_signal(signal.SIGINT)
    out, err = await asyncio.to_thread(program.communicate, timeout=60)
    assert program.returncode == 130
    assert "there is no log of executions at log.jsonl" in err
    assert "Traceback" not in err
    assert "Taken: " in out


@pytest.mark.usefixtures("slow")
async def test_another_owners_graph_is_not_replaced(shell: Shell, server: str, namespace: str) -> None:
    """Nobody publishes over another owner's name: the refusal is told, and agents keep their graph."""
    async with served(server, namespace) as bus:
        log = await filled(shell, bus)
    shell.environment["TOOLBUS_OWNER"] = "mallory"
    refused = shell.run("toolkit", "learning", "run", "orders.yaml", "--log", str(log))
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert "operator" in refused.stderr
    assert revision_of(shell) == ""


@pytest.mark.usefixtures("slow")
async def test_a_log_of_names_is_matched_with_groups_of_the_moment(shell: Shell, server: str, namespace: str) -> None:
    """A recorder without a walk knows names of actions and of the bus; a group's tools are those that its service has now."""
    async with served(server, namespace) as bus:
        service = bus.tools["run_sql"].service
        (shell.folder / "orders.yaml").write_text(
            f"name: orders\ngroups: [{{id: g, service: {service}}}]\nactions: [{{id: a, name: Count, call: [{{to: g, score: 0.2}}]}}]\n"
        )
        with open_store(shell.folder / "log.jsonl") as store, Recorder(store, bus.events) as recorder:
            executor = bus.executor()
            for number in range(25):
                with recorder.episode(str(number)).action("count"):
                    await executor.execute("run_sql" if number % 5 else "grep_dump", {"query": "q"})
        found = shell.json("toolkit", "learning", "run", "orders.yaml", "--log", "log.jsonl", "--dry-run")
    assert (found["executions"], found["episodes"], found["notes"]) == (25, 25, [])
    offline = shell.run("toolkit", "learning", "run", "orders.yaml", "--log", "log.jsonl", "--no-publish")
    assert (offline.returncode, "none of the 25 executions is of an edge" in offline.stderr) == (1, True)
