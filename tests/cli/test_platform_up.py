"""``toolbus platform up``, and tool_agent's program in front of it: one command, one tree of processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.agent.endpoint import Canned, endpoint, says
from tests.cli.shell import Shell
from tests.host.programs import PROGRAM
from tests.servers import eventually
from toolbus.compat.tool_agent import words_of

pytestmark = pytest.mark.anyio


def below(pid: int) -> set[int]:
    """Return the processes below a process."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found |= {child, *below(child)}
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process; empty for one that has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def gone(pids: set[int]) -> bool:
    """Return whether all of these processes have ended."""
    return not any(command_of(pid) for pid in pids)


class Platform:
    """A running platform."""

    def __init__(self, process: asyncio.subprocess.Process, ready: str, said: list[str]) -> None:
        self.process = process
        self.ready = ready
        self.said = said
        found = re.search(r"http://[\d.:]+", ready)
        assert found is not None, said
        self.url = found[0]

    def child(self, *words: str) -> int:
        """Return the process whose command line has these words."""
        return next((pid for pid in below(self.process.pid) if all(f" {word} " in command_of(pid) for word in words)), 0)


@asynccontextmanager
async def up(shell: Shell, *command: str, **environment: str) -> AsyncIterator[Platform]:
    """A platform that is ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *command, cwd=shell.folder, env={**shell.environment, **environment}, start_new_session=True,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said: list[str] = []
    processes: set[int] = set()
    assert process.stdout is not None
    try:
        async with asyncio.timeout(90):
            while not (said and said[-1].startswith("ready at ")):
                line = (await process.stdout.readline()).decode()
                assert line, said
                said.append(line)
        reading = asyncio.create_task(process.stdout.read())
        yield Platform(process, said[-1], said)
    finally:
        processes = below(process.pid)
        if process.returncode is None:
            process.kill()
        await process.wait()
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    await reading


def model_of(url: str) -> dict[str, str]:
    """Return the variables that name a model."""
    return {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m", "OPENAI_BASE_URL": url, "NO_PROXY": "127.0.0.1"}


def echo(body: dict[str, Any]) -> Canned:
    """Answer with the user's last message."""
    return says("you said ", next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user"))


@pytest.mark.usefixtures("slow")
async def test_one_command_serves_the_four_interfaces(shell: Shell) -> None:
    """Health, tools, calls and chat answer over HTTP; a part that is killed is started again; Ctrl-C ends everything."""
    async with endpoint(echo) as model, up(shell, "toolbus", "platform", "up", "--http-port", "0", **model_of(model.url)) as platform:
        assert "toolbus platform chat" in platform.ready
        async with httpx.AsyncClient(base_url=platform.url, timeout=60) as client:
            assert (await client.get("/health")).status_code == 200
            assert {"chat", "list_tools", "submit_task"} <= {each["tool_id"] for each in (await client.get("/tools")).json()["tools"]}
            found = (await client.post("/run_tool", json={"tool_id": "list_tools", "params": {"keyword": "submit"}})).json()
            assert [each["tool_id"] for each in found["data"]["tools"]] == ["submit_task"]
            said = (await client.post("/chat", json={"message": "hello", "chat_id": "room"})).json()
            assert said == {"response": "you said hello", "chat_id": "room"}
            events = await client.post("/chat", json={"message": "more", "chat_id": "room"}, headers={"Accept": "text/event-stream"})
            assert "you said " in events.text
            assert '"chat_id":"room"' in events.text.replace(" ", "")
            first = platform.child("worker", "service-agent")
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: platform.child("worker", "service-agent") not in {0, first}, 60)

            async def answered() -> bool:
                found = await client.post("/chat", json={"message": "again", "chat_id": "room"}, headers={"Idempotency-Key": "again"})
                return found.status_code == 200 and found.json()["response"] == "you said again"

            await eventually(answered, 60)
            assert [each["content"] for each in model.bodies[-1]["messages"] if each["role"] == "user"] == ["hello", "more", "again"]
        processes = below(platform.process.pid)
        assert len(processes) >= 3
        platform.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(platform.process.wait(), 60) == 0
        assert gone(processes)


@pytest.mark.usefixtures("slow")
async def test_a_host_that_is_killed_is_replaced_long_before_its_lease_ends(shell: Shell) -> None:
    """Its tools answer again, also the one that a single host may serve, though the dead host's lease runs on for minutes."""
    tools = ("plain", "alone")
    for tool in tools:
        (shell.folder / tool).mkdir()
        (shell.folder / tool / "main.py").write_text(PROGRAM)
    registry = {"plain": {}, "alone": {"x-toolbus": {"running": {"single": True}}}}
    command = [sys.executable, "-S", "main.py", "--port", "{port}"]
    sources = {tool: [{"type": "local", "host_dir": tool, "x-toolbus": {"command": command}}] for tool in tools}
    (shell.folder / "registry.json").write_text(json.dumps(registry))
    (shell.folder / "sources.json").write_text(json.dumps(sources))
    words = ("toolbus", "platform", "up", "--http-port", "0", "--import", ".")
    async with up(shell, *words, TOOLBUS_LEASE="600") as platform, httpx.AsyncClient(base_url=platform.url, timeout=60) as client:

        async def answers() -> bool:
            found = [await client.post("/run_tool", json={"tool_id": tool, "params": {}}) for tool in tools]
            return all(each.status_code == 200 and each.json()["success"] for each in found)

        await eventually(answers, 60)
        first = platform.child("toolbus", "platform", "host")
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: platform.child("toolbus", "platform", "host") not in {0, first}, 30)
        await eventually(answers, 60)


@pytest.mark.usefixtures("slow")
async def test_without_a_model_the_rest_runs_and_nothing_outlives_it(shell: Shell) -> None:
    """A part that is left out is named; after SIGKILL of the command no process of it is left, nor its own server."""
    shell.environment.pop("TOOLBUS_URL")
    for name in ("OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL"):
        shell.environment.pop(name, None)
    (shell.folder / "registry.json").write_text(json.dumps([{"tool_id": "../bad"}]))
    words = ("toolbus", "platform", "up", "--server-port", "0", "--http-port", "0", "--import", ".", "--data", "kept")
    async with up(shell, *words, TOOLBUS_IM_SERVER="ws://127.0.0.1:9") as platform:
        text = "".join(platform.said)
        assert re.search(r"started a server on 127\.0\.0\.1:\d+; it keeps its data in kept", text)
        assert "no agents: set OPENAI_API_KEY" in text
        assert "no messenger: TOOLBUS_IM_CONTACT is not set" in text
        assert "sources.json: ../bad: there is no source of it" in text
        async with httpx.AsyncClient(base_url=platform.url, timeout=60) as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.post("/chat", json={"message": "hello"})).status_code == 503
        processes = below(platform.process.pid)
        assert len(processes) >= 2
        platform.process.kill()
        await eventually(lambda: gone(processes), 60)
    assert (shell.folder / "kept").is_dir()


def test_a_port_in_use_is_told(shell: Shell) -> None:
    """The command ends with one line that says what to do."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as place:
        done = shell.run("platform", "up", "--http-port", str(place.getsockname()[1]))
    assert done.returncode == 1
    assert "--http-port" in done.stderr
    assert done.stderr.count("\n") == 1


def test_one_place_of_the_server_is_named(shell: Shell) -> None:
    """An address and a port together are wrong usage."""
    done = shell.run("--url", "redis://127.0.0.1:1", "platform", "up", "--server-port", "0")
    assert done.returncode == 2
    assert "--url or --server-port" in done.stderr


@pytest.mark.usefixtures("slow")
def test_a_part_that_refuses_to_serve_ends_all(shell: Shell) -> None:
    """A wrong setting of one part is the message of the command, and nothing is left."""
    shell.environment |= {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m", "TOOLBUS_CHAT_MEMORY": "few"}
    done = shell.run("platform", "up", "--http-port", "0")
    assert done.returncode == 1
    assert "TOOLBUS_CHAT_" in done.stderr


def test_the_program_of_tool_agent(tmp_path: Path) -> None:
    """It is the same command with its files; whoever reaches its port can't have code run that nobody approved."""
    assert words_of([], tmp_path) == ["platform", "up", "--http-port", "8001"]
    (tmp_path / "sources.json").write_text("[]")
    assert words_of(["--port", "9"], tmp_path)[-3:] == ["9", "--import", str(tmp_path)]
    assert words_of(["other", "--data", "d"], tmp_path)[-4:] == ["--import", "other", "--data", "d"]
    helped = subprocess.run(
        [sys.executable, "-m", "toolbus.compat.tool_agent", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "registry.json" in helped.stdout
