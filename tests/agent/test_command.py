"""``toolbus agent`` as a process: a real server, a real worker, a scripted endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.agent.endpoint import Canned, calls, endpoint, event, says
from tests.forking import ForkServer
from toolbus import ToolBus, Worker, tool

pytestmark = pytest.mark.anyio


@tool
async def recite(lines: int):
    """Recite a poem."""
    for number in range(lines):
        yield f"line {number}\x1b[2J\n"


@tool(confirm=True, effect="once")
async def launch() -> str:
    """Launch it."""
    return "launched"


@tool
async def broken() -> str:
    """Always fail."""
    raise RuntimeError("out of order")


@asynccontextmanager
async def tools(url: str, namespace: str) -> AsyncIterator[None]:
    """A worker with the tools above, seen by a bus."""
    async with Worker([recite, launch, broken], url=url, namespace=namespace), ToolBus(url, namespace=namespace) as bus:
        await bus.wait_for_tool("recite")
        yield


PRESET = b"""
{"name": "poems", "tools": [{"id": "recite"}, {"id": "broken"}], "actions": [
  {"id": "declaim", "description": "Recite a poem aloud", "next": [{"to": "fail", "score": 0.4}], "call": ["recite"]},
  {"id": "fail", "description": "Go wrong", "call": ["broken"]}],
  "operators": [{"id": "reciter", "instruction": "Recite whatever is asked.", "actions": ["declaim"], "threshold": 0.3, "hops": 1}]}
"""


def environment(base_url: str, url: str, namespace: str, variables: dict[str, Any]) -> dict[str, str]:
    """The command's environment; capital names of ``variables`` are in it, but for empty ones."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    found |= {"OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": "sk-secret", "OPENAI_MODEL": "m", "NO_PROXY": "127.0.0.1"}
    found |= {"TOOLBUS_URL": url, "TOOLBUS_NAMESPACE": namespace, **{k: v for k, v in variables.items() if k.isupper()}}
    return {name: value for name, value in found.items() if value}


async def start(base_url: str, url: str, namespace: str, *words: str, **variables: Any) -> asyncio.subprocess.Process:
    """Start the command in a new interpreter."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "toolbus",
        "agent",
        *words,
        env=environment(base_url, url, namespace, variables),
        stdin=variables.get("stdin", asyncio.subprocess.DEVNULL),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(forks: ForkServer, base_url: str, url: str, namespace: str, *words: str, **variables: Any) -> tuple[int, str, str]:
    """Run the command to its end; its exit code, standard output and standard error."""
    chosen = environment(base_url, url, namespace, variables)
    done = await asyncio.to_thread(forks.run, "-m", "toolbus", "agent", *words, folder=Path.cwd(), environment=chosen)
    return done.returncode, done.stdout, done.stderr


async def ended(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """The exit code, standard output and standard error."""
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.usefixtures("slow")
async def test_a_question_is_answered(server: str, namespace: str, forks: ForkServer) -> None:
    """The model's words are on standard output alone, what tools say is on standard error, and nothing commands the terminal."""
    script = [calls(("recite", {"lines": 2}), words="Listen:"), says("That was", " it.\x07")]
    async with tools(server, namespace), endpoint(script) as model:
        code, out, err = await run(forks, model.url, server, namespace, "a poem?")
    assert (code, out) == (0, "Listen:\nThat was it.\\u0007\n"), err
    assert err.splitlines()[:3] == ['→ recite {"lines":2}', "  recite: line 0\\u001b[2J", "  recite: line 1\\u001b[2J"]
    assert err.splitlines()[3].startswith("✓ recite")


@pytest.mark.usefixtures("slow")
async def test_the_command_walks_the_published_graph(server: str, namespace: str, forks: ForkServer) -> None:
    """--walk finds the first action by the question, --action names it, --operator says all, and only what makes sense there is offered."""
    async with (
        tools(server, namespace),
        ToolBus(server, namespace=namespace) as bus,
        endpoint([says("a"), says("b"), says("c")]) as model,
    ):
        await bus.put("toolkit/poems", PRESET, "ann")
        for words in (("recite me a poem", "--walk"), ("?", "--action", "fail"), ("?", "--operator", "reciter")):
            code, _, err = await run(forks, model.url, server, namespace, *words)
            assert code == 0, err
        code, _, err = await run(forks, model.url, server, namespace, "zebra", "--walk")
        nobody, _, unknown = await run(forks, model.url, server, namespace, "?", "--operator", "nobody")
        await bus.delete("toolkit/poems")
    assert (code, err.count("\n"), nobody, unknown.count("\n")) == (1, 1, 1, 1)
    assert "toolbus toolkit show" in err
    assert "there are: reciter" in unknown
    assert [[each["function"]["name"] for each in body["tools"]] for body in model.bodies] == [["recite"], ["broken"], ["broken", "recite"]]
    assert "Recite whatever is asked." in model.bodies[2]["messages"][0]["content"]
    assert "declaim (at hand): Recite a poem aloud" in model.bodies[0]["messages"][0]["content"]


async def test_a_walk_is_recorded(server: str, namespace: str, forks: ForkServer, tmp_path: Path) -> None:
    """--record writes each call with its edge and the question; without a walk it is refused, since a call has no edge then."""
    log = tmp_path / "executions.jsonl"
    script = [calls(("recite", {"lines": 1})), calls(("broken", {})), says("done"), says("no call")]
    async with (
        tools(server, namespace),
        ToolBus(server, namespace=namespace) as bus,
        endpoint(script) as model,
    ):
        await bus.put("toolkit/poems", PRESET, "ann")
        words = ("--action", "declaim", "--threshold", "0.3", "--record", str(log))
        for question in ("a poem?", "nothing?"):
            code, _, err = await run(forks, model.url, server, namespace, question, *words)
            assert code == 0, err
        refused, _, told = await run(forks, model.url, server, namespace, "?", "--record", str(log))
        other, _, suffix = await run(forks, model.url, server, namespace, "?", "--walk", "--record", "log.txt")
        await bus.delete("toolkit/poems")
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(each["action"], each["target"], each["outcome"], each["query"]) for each in found] == [
        ("declaim", "recite", "success", "a poem?"),
        ("fail", "broken", "failure", "a poem?"),
    ]
    assert [each.get("next_shown") for each in found] == [{"fail": 1.0}, None]
    assert (refused, told.count("\n"), "--record needs --walk" in told) == (1, 1, True)
    assert (other, suffix.count("\n"), ".jsonl, .db" in suffix) == (1, 1, True)


@pytest.mark.usefixtures("slow")
async def test_json_is_for_programs(server: str, namespace: str, forks: ForkServer) -> None:
    """With --output json standard output is one document."""
    async with tools(server, namespace), endpoint([says("hi")]) as model:
        code, out, _ = await run(forks, model.url, server, namespace, "?", "--output", "json")
    assert (code, json.loads(out)) == (0, {"text": "hi", "reason": "answered", "turns": 1, "calls": 0, "failed": 0})


@pytest.mark.parametrize(
    ("variables", "words", "line"),
    [
        ({"OPENAI_API_KEY": ""}, (), "set OPENAI_API_KEY"),
        ({"OPENAI_MODEL": ""}, (), "pass --model or set OPENAI_MODEL"),
        ({}, ("--base-url", "nowhere"), "OPENAI_BASE_URL"),
    ],
)
async def test_what_is_not_set_is_said(
    variables: dict[str, str], words: tuple[str, ...], line: str, server: str, forks: ForkServer
) -> None:
    """Without a key, a model or a usable address the command ends at once with one line and exit code 2."""
    code, out, err = await run(forks, "http://127.0.0.1:1/v1", server, "n", "?", *words, **variables)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err


async def test_a_question_needs_words_and_a_selection_tools(server: str, forks: ForkServer) -> None:
    """An empty question is a mistake of usage; a selection that leaves no tool is named before the model is asked."""
    code, _, err = await run(forks, "http://127.0.0.1:1/v1", server, "n", " ")
    assert (code, "QUESTION is empty" in err) == (2, True)
    code, _, err = await run(forks, "http://127.0.0.1:1/v1", server, "n", "?", "--tool", "nowhere")
    assert (code, err) == (1, "toolbus: there is no tool with names nowhere; `toolbus tools` lists the available tools\n")


async def test_a_refused_key_is_one_line(server: str, forks: ForkServer) -> None:
    """An error of the endpoint is one line without the key, and exit code 1."""
    refused = Canned(b'{"error": {"message": "Incorrect key sk-secret"}}', status=401, kind="application/json")
    async with endpoint([refused]) as model:
        code, out, err = await run(forks, model.url, server, "n", "?")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "refused the key (401): Incorrect key …; check OPENAI_API_KEY" in err


async def test_the_bound_on_turns_is_said(server: str, namespace: str, forks: ForkServer) -> None:
    """A model that repeats a failing call is stopped, with exit code 1 and a line that counts."""
    async with tools(server, namespace), endpoint(lambda body: calls(("broken", {}))) as model:
        code, _, err = await run(forks, model.url, server, namespace, "?", "--turns", "3")
    assert code == 1
    assert err.splitlines()[-1] == "toolbus: stopped: no answer in 3 turns (2 calls, 2 failed); --turns allows more"


@pytest.mark.usefixtures("slow")
async def test_ctrl_c_ends_it_cleanly(server: str, namespace: str) -> None:
    """Ctrl-C in the middle of an answer ends the line and the process with 130, without a traceback."""
    silent = Canned(event({"content": "I think"}))
    silent.hang = True
    async with tools(server, namespace), endpoint([silent]) as model:
        process = await start(model.url, server, namespace, "?")
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readexactly(7) == b"I think"
        process.send_signal(signal.SIGINT)
        code, out, err = await ended(process)
    assert (code, out, err) == (130, "\n", "")


@pytest.mark.usefixtures("slow")
async def test_ctrl_c_cancels_the_tools(server: str, namespace: str) -> None:
    """Ctrl-C while a tool runs cancels its call, and ends the process with 130 without a traceback."""
    cancelled = asyncio.Event()

    @tool(service="endless")
    async def endless():
        """Never end."""
        try:
            yield "begun"
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    script = [calls(("endless", {}))]
    async with Worker([endless], url=server, namespace=namespace), endpoint(script) as model:
        async with ToolBus(server, namespace=namespace) as bus:
            await bus.wait_for_tool("endless")
        process = await start(model.url, server, namespace, "?")
        assert process.stderr is not None
        async with asyncio.timeout(60):
            await process.stderr.readuntil(b"begun")
        process.send_signal(signal.SIGINT)
        code, out, err = await ended(process)
        async with asyncio.timeout(20):
            await cancelled.wait()
    assert (code, out, err.strip()) == (130, "", "")


@pytest.mark.parametrize(("words", "told"), [((), "forbidden"), (("--yes",), "launched")])
async def test_permission_without_a_person(server: str, namespace: str, words: tuple[str, ...], told: str, forks: ForkServer) -> None:
    """When no person can be asked, a tool that wants permission runs only with --yes."""
    async with tools(server, namespace), endpoint([calls(("launch", {})), says("ok")]) as model:
        code, _, err = await run(forks, model.url, server, namespace, "?", *words)
        assert code == 0, err
        assert told in model.bodies[1]["messages"][-1]["content"]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("typed", "told"), [(b"y\n", "launched"), (b"no\n", "forbidden"), (b"\x04", "forbidden")])
async def test_a_person_is_asked(server: str, namespace: str, typed: bytes, told: str) -> None:
    """At a terminal the person reads what would run, and only a yes lets it."""
    ours, theirs = pty.openpty()
    try:
        async with tools(server, namespace), endpoint([calls(("launch", {})), says("ok")]) as model:
            process = await start(model.url, server, namespace, "?", stdin=theirs)
            assert process.stderr is not None
            async with asyncio.timeout(60):
                asked = await process.stderr.readuntil(b"[y/N] ")
            os.write(ours, typed)
            code, _, err = await ended(process)
            assert code == 0, err
            assert b"Allow launch?" in asked
            assert told in model.bodies[1]["messages"][-1]["content"]
    finally:
        os.close(ours)
        os.close(theirs)
