"""Isolated tools in real worker processes: what is refused at the start, where tools may be defined, and how everything ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.contract import Place
from tests.servers import eventually
from tests.worker import isolated, isolated_threaded
from tests.worker.conftest import Start
from tests.worker.test_isolation import alive, children
from toolbus import ConfigurationError, ToolBus, ToolService, Worker, tool
from toolbus.testing import InvocationEnvironment

pytestmark = pytest.mark.anyio

SPINNER = '''
import os
from pathlib import Path
from toolbus import tool

@tool(effect="read", isolation="process")
def spin(pid_file: str) -> str:
    """Spin."""
    part = Path(pid_file + ".part")
    part.write_text(str(os.getpid()))
    part.rename(pid_file)
    while True:
        pass

@tool(effect="read", isolation="process")
def pid() -> int:
    """The process it runs in."""
    return os.getpid()
'''

MAIN = """
import asyncio
import sys

from toolbus import Worker

async def main():
    await Worker([spin, pid], url=sys.argv[1], namespace=sys.argv[2]).run()

if __name__ == "__main__":
    asyncio.run(main())
"""


def command(url: str, namespace: str, *words: str) -> list[str]:
    """A ``toolbus worker`` on a test's namespace."""
    return ["-m", "toolbus", "--url", url, "--namespace", namespace, "worker", *words]


@pytest.mark.usefixtures("slow")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_nothing_survives_its_worker(start: Start, tmp_path: Path, server: str, namespace: str, how: signal.Signals) -> None:
    """When a worker is killed, or is told to stop and its grace ends, a spinning child, idle ones and the fork server are gone."""
    (tmp_path / "spinner.py").write_text(SPINNER)
    worker = start(*command(server, namespace, "spinner.py", "--grace", "0.2", "--lease", "2"))
    pid_file = tmp_path / "pid"
    async with ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("spin", timeout=20)
        async with bus.stream("spin", {"pid_file": str(pid_file)}):
            await eventually(pid_file.exists, timeout=10)
            (fork_server,) = children(worker.pid)
            family = [fork_server, *children(fork_server)]
            assert int(pid_file.read_text()) in family
            worker.send_signal(how)
            await eventually(lambda: worker.poll() is not None, timeout=10)
            await eventually(lambda: not any(map(alive, family)))
    if how is signal.SIGTERM:
        assert worker.returncode == 0


@pytest.mark.usefixtures("slow")
async def test_a_drain_waits_for_isolated_calls(start: Start, tmp_path: Path, server: str, namespace: str) -> None:
    """SIGTERM, also to every process of the worker, lets a running child finish within the grace."""
    (tmp_path / "slow.py").write_text(
        "import os, time\nfrom pathlib import Path\nfrom toolbus import tool\n\n"
        '@tool(effect="read", isolation="process")\ndef slow(started: str) -> str:\n'
        '    """Take a second."""\n    Path(started).touch()\n    time.sleep(1)\n    return "finished"\n'
    )
    worker = start(*command(server, namespace, "slow.py"))
    async with ToolBus(server, namespace=namespace) as bus:
        await bus.wait_for_tool("slow", timeout=20)
        calling = asyncio.create_task(bus.call("slow", {"started": str(tmp_path / "started")}))
        await eventually((tmp_path / "started").exists)
        (fork_server,) = children(worker.pid)
        for pid in [worker.pid, fork_server, *children(fork_server)]:
            os.kill(pid, signal.SIGTERM)
        assert (await calling).output == "finished"
    await eventually(lambda: worker.poll() is not None, timeout=10)
    assert worker.returncode == 0


@pytest.mark.usefixtures("slow")
async def test_tools_of_a_script_are_found_again(start: Start, tmp_path: Path, server: str, namespace: str) -> None:
    """A program that defines isolated tools and runs its worker itself works, if it guards its start."""
    (tmp_path / "program.py").write_text(SPINNER + MAIN)
    worker = start("program.py", server, namespace)
    async with ToolBus(server, namespace=namespace) as bus:
        result = await bus.call("pid", wait=20.0)
    assert result.error is None
    assert result.data not in {worker.pid, None}
    worker.terminate()
    assert worker.wait(15) == 0


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MAIN.replace('if __name__ == "__main__":\n    ', ""), "if __name__ == '__main__'"),
        ('import sys\nif __name__ != "__main__":\n    raise ValueError("not here")\n' + MAIN, "ValueError: not here"),
        (
            "from toolbus.bus.worker import function\nif __name__ != '__main__':\n    function._by_service.clear()\n" + MAIN,
            "defines no tool",
        ),
    ],
)
async def test_what_can_not_be_imported_again_is_refused(
    start: Start, tmp_path: Path, server: str, namespace: str, text: str, words: str
) -> None:
    """A program whose tools another process can't import ends at once, and says why."""
    (tmp_path / "program.py").write_text(SPINNER + text)
    worker = start("program.py", server, namespace)
    _, told = worker.communicate(timeout=30)
    assert worker.returncode == 1
    assert words in told.splitlines()[-1]


@pytest.mark.usefixtures("slow")
async def test_a_module_with_threads_gets_fresh_interpreters(namespace: str) -> None:
    """When an import started threads, children are not forks, so that what the tools need is there."""
    async with Place("memory://", namespace).serving(isolated_threaded, isolated) as bus:
        first = await bus.call("iso_uses_thread")
        assert (first.error, isinstance(first.data, int)) == (None, True)
        died = await bus.call("iso_fail", {"how": "segfault"})
        assert died.error is not None
        assert "SIGSEGV" in died.error.message
        assert (await bus.call("iso_uses_thread")).error is None


def test_wrong_definitions_are_refused() -> None:
    """Methods, unknown isolations, and memory limits without isolation or below nothing are told where they stand."""
    with pytest.raises(ConfigurationError, match="is a method"):

        class _Service(ToolService):
            @tool(isolation="process")
            def method(self) -> None: ...

    for options, words in (
        ({"isolation": "thread"}, "there is 'process', or none"),
        ({"memory_limit": 5}, "needs isolation='process'"),
        ({"isolation": "process", "memory_limit": -1}, "memory_limit must be a number of bytes"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            tool("wrong", **options)(lambda: None)  # type: ignore[call-overload]


def test_a_local_function_is_refused_at_the_start() -> None:
    """A function that another process can't find is refused before anything is served, and the message says what to do."""

    @tool(service="local", isolation="process", replace=True)
    def local() -> None: ...

    with pytest.raises(ConfigurationError, match="at the top of a module"):
        Worker(local, url="memory://")


@pytest.mark.usefixtures("slow")
async def test_a_handler_under_test_runs_isolated() -> None:
    """The testing environment runs isolated tools in children, and ends them with itself."""
    async with InvocationEnvironment(user="al", timeout=10) as environment:
        pid = (await environment.call(isolated.iso_pid)).data
        assert isinstance(pid, int)
        outcome = await environment.run(isolated.iso_stream, {"n": 1})
        assert (outcome.text, len(outcome.progress)) == ('0 {"a":1}', 1)
        assert alive(pid)
    await eventually(lambda: not alive(pid))
