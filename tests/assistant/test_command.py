"""``toolbus worker service-agent`` and ``toolbus platform chat`` as processes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.endpoint import Canned, Endpoint, calls, endpoint, says
from tests.assistant.talking import hanging
from tests.cli.shell import Shell
from tests.forking import ForkServer
from tests.servers import eventually
from toolbus import ToolBus

pytestmark = pytest.mark.anyio


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, server: str, namespace: str) -> Iterator[Shell]:
    """Return a shell in an empty folder, with the test's namespace."""
    made = Shell(forks, tmp_path, server, namespace)
    yield made
    made.close()


def configure(shell: Shell, model: Endpoint) -> None:
    """Name the model in the shell's environment."""
    shell.environment |= {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": model.url, "OPENAI_MODEL": "m", "NO_PROXY": "127.0.0.1"}


def last(body: dict[str, Any]) -> str:
    """Return the user's last message in a request."""
    return next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user")


def echo(body: dict[str, Any]) -> Canned:
    """Answer with the user's last message."""
    return says("you said ", last(body))


async def test_chat_on_a_command_line(shell: Shell, server: str, namespace: str) -> None:
    """One message, JSON, a message from standard input, lines from a pipe: each goes on with its chat."""
    async with endpoint(echo) as model, ToolBus(server, namespace=namespace) as bus:
        configure(shell, model)
        worker = await asyncio.to_thread(shell.start, "worker", "service-agent")
        await bus.wait_for_tool("chat", 60)
        one = await asyncio.to_thread(shell.run, "platform", "chat", "one", "--chat-id", "c")
        assert (one.returncode, one.stdout) == (0, "you said one\n"), one.stderr
        found = await asyncio.to_thread(shell.json, "platform", "chat", "two", "--chat-id", "c")
        assert found == {"response": "you said two", "chat_id": "c"}
        given = await asyncio.to_thread(lambda: shell.run("platform", "chat", "-", "--chat-id", "c", given="three\n"))
        assert given.stdout == "you said three\n"
        lines = await asyncio.to_thread(lambda: shell.run("platform", "chat", "--chat-id", "c", given="four\n\nfive\n"))
        assert (lines.returncode, lines.stdout) == (0, "you said four\nyou said five\n"), lines.stderr
        assert [each["content"].strip() for each in model.bodies[-1]["messages"] if each["role"] == "user"] == [
            "one",
            "two",
            "three",
            "four",
            "five",
        ]
        wrong = await asyncio.to_thread(shell.run, "platform", "chat", "--output", "json")
        assert (wrong.returncode, "give MESSAGE" in wrong.stderr) == (2, True)
        assert (await asyncio.to_thread(shell.run, "platform", "chat", " ")).returncode == 2
        worker.terminate()
        assert await asyncio.to_thread(worker.wait) == 0


async def test_without_a_service_agent_the_command_says_how_to_start_one(shell: Shell) -> None:
    """Nobody serves the tool: one line, exit code 1."""
    done = await asyncio.to_thread(shell.run, "platform", "chat", "hello")
    assert done.returncode == 1
    assert "toolbus worker service-agent" in done.stderr
    assert done.stderr.count("\n") == 1


async def test_a_worker_without_a_model_says_so(shell: Shell) -> None:
    """Without an endpoint's key the worker ends with one line that says what to set."""
    for name in ("OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL"):
        shell.environment.pop(name, None)
    done = await asyncio.to_thread(shell.run, "worker", "service-agent")
    assert done.returncode == 1
    assert "set OPENAI_API_KEY" in done.stderr


async def test_ctrl_c_stops_an_answer_and_then_the_command(shell: Shell, server: str, namespace: str) -> None:
    """On a terminal Ctrl-C stops the answer alone, the next line is answered, and Ctrl-D ends the command."""
    async with (
        endpoint(lambda body: hanging("never ends") if last(body) == "hang" else echo(body)) as model,
        ToolBus(server, namespace=namespace) as bus,
    ):
        configure(shell, model)
        await asyncio.to_thread(shell.start, "worker", "service-agent")
        await bus.wait_for_tool("chat", 60)
        above, below = pty.openpty()
        seen = bytearray()
        loop = asyncio.get_running_loop()
        loop.add_reader(above, lambda: seen.extend(os.read(above, 65_536)))
        process = await asyncio.create_subprocess_exec(
            os.sys.executable, "-m", "toolbus", "platform", "chat", "--chat-id", "c",
            stdin=below, stdout=below, stderr=below, env=shell.environment, start_new_session=True,
        )  # fmt: skip
        try:
            await eventually(lambda: b"> " in seen, 30)
            os.write(above, b"hang\n")
            await eventually(lambda: b"never ends" in seen, 30)
            process.send_signal(signal.SIGINT)
            await eventually(lambda: b"stopped" in seen, 30)
            await eventually(lambda: seen.rstrip(b" ").endswith(b">"), 30)
            os.write(above, b"again\n")
            await eventually(lambda: b"you said again" in seen.replace(b"\x1b[0m", b""), 30)
            # The end of input counts at the prompt.
            await eventually(lambda: seen.rstrip(b" ").endswith(b">"), 30)
            os.write(above, b"\x04")
            assert await asyncio.wait_for(process.wait(), 30) == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            loop.remove_reader(above)
            os.close(above)
            os.close(below)
        assert b"Traceback" not in seen


@pytest.mark.usefixtures("slow")
async def test_a_turn_survives_the_death_of_its_worker(shell: Shell, server: str, namespace: str) -> None:
    """After SIGKILL in the middle of a turn another worker goes on: one answer, and nothing that was answered is asked again."""
    held = True

    def script(body: dict[str, Any]) -> Canned:
        if body["messages"][-1]["role"] == "user":
            return calls(("list_tools", {}))
        return hanging("half of ") if held else says("the whole answer")

    async with endpoint(script) as model, ToolBus(server, namespace=namespace) as bus:
        configure(shell, model)
        first = await asyncio.to_thread(shell.start, "worker", "service-agent", "--lease", "1")
        await bus.wait_for_tool("chat", 60)
        asked = asyncio.ensure_future(bus.call("chat", {"message": "go", "chat_id": "c"}, session="c", timeout=120))
        await eventually(lambda: len(model.bodies) == 2, 60)
        first.kill()
        held = False
        await asyncio.to_thread(shell.start, "worker", "service-agent", "--lease", "1")
        result = await asked
    assert result.data == {"response": "the whole answer", "chat_id": "c"}
    assert [json.dumps(body["messages"][1:]) for body in model.bodies[1:]] == [json.dumps(model.bodies[1]["messages"][1:])] * 2
