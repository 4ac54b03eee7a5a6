"""Services of users whose own code fails, or takes long, before they serve."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.shell import Shell
from tests.servers import eventually_sync

SERVICE = """import asyncio, os, sys
from toolbus import ToolService, provide, tool

class Mine(ToolService):
    id = "mine"
    {}

    @tool(effect="read")
    def one(self) -> str:
        "Answer."
        return "1"
"""
STARTUP = "async def startup(self): "
TOOLS = "tools = property(lambda self: {})"
MADE = "the service 'Mine' (mine.Mine, {folder}/mine.py:4) can't be made: "
STARTED = "the service 'mine' (mine.Mine, {folder}/mine.py:4) can't be started: "
ASKED = "the service 'Mine' (mine.Mine, {folder}/mine.py:4) can't be asked for its tools: "
AT = " - at {folder}/mine.py:6"

MISTAKES = {
    "def __init__(self): self.key = os.environ['NO_SUCH_KEY']": f"{MADE}KeyError: 'NO_SUCH_KEY'{AT}",
    "def __init__(self, url): pass": f"{MADE}TypeError: Mine.__init__() missing 1 required positional argument: 'url'",
    "def __init__(self): sys.exit(0)": f"{MADE}SystemExit: 0{AT}",
    f"{STARTUP}raise RuntimeError('no\\ndatabase')": f"{STARTED}RuntimeError: no database{AT}",
    f"{STARTUP}raise ExceptionGroup('some', [OSError('no disk')])": f"{STARTED}OSError: no disk",
    f"{STARTUP}sys.exit(0)": f"{STARTED}SystemExit: 0{AT}",
    "def startup(self): sys.exit(0)": f"{STARTED}SystemExit: 0{AT}",
    f"{STARTUP}raise asyncio.CancelledError": f"{STARTED}CancelledError{AT}",
    TOOLS.format("1 / 0"): f"{ASKED}ZeroDivisionError: division by zero{AT}",
    TOOLS.format("sys.exit(0)"): f"{ASKED}SystemExit: 0{AT}",
}


def write(shell: Shell, code: str) -> None:
    """Write a file with a service that has this code."""
    (shell.folder / "mine.py").write_text(SERVICE.format(code))


@pytest.mark.parametrize("code", MISTAKES)
def test_a_service_that_raises_before_it_serves_is_told_in_one_line(shell: Shell, code: str) -> None:
    """Its worker ends with exit code 1, and says which service it is, what was done with it, and where it raised."""
    write(shell, code)
    done = shell.run("worker", "mine.py")
    assert (done.returncode, done.stderr) == (1, f"toolbus: {MISTAKES[code].format(folder=shell.folder)}\n")


@pytest.mark.parametrize("words", [("worker", "mine.py", "--processes", "2"), ("dev", "mine.py")], ids=["processes", "dev"])
@pytest.mark.parametrize("mistake", ["raise RuntimeError('no database')", "sys.exit(0)"])
def test_a_service_that_fails_in_a_child_is_told_once_by_its_parent(shell: Shell, words: tuple[str, ...], mistake: str) -> None:
    """The one line of several processes, or of a tree of them, is that of a single one."""
    write(shell, f"{STARTUP}{mistake}")
    done = shell.run(*words)
    told = [line for line in done.stderr.splitlines() if "can't be started" in line]
    assert (done.returncode, len(told)) == (1, 1), done.stderr
    assert told[0].startswith("toolbus: the service 'mine' (mine.Mine, ")
    assert "Traceback" not in done.stderr


def test_a_service_that_fails_is_waited_for_under_reload(shell: Shell) -> None:
    """Its mistake is one line, and the changed file is served."""
    write(shell, f"{STARTUP}sys.exit(0)")
    worker = shell.start_anew("worker", "mine.py", "--reload")
    assert worker.stderr is not None
    for line in worker.stderr:
        if not line.startswith("{"):
            break
    assert "can't be started: SystemExit: 0" in line
    write(shell, f"{STARTUP}pass")
    assert shell.run("call", "one", "--wait", "20").stdout == "1\n"


@pytest.mark.parametrize(("error", "said"), [("raise OSError('no disk')", "OSError: no disk"), ("sys.exit(0)", "SystemExit: 0")])
def test_what_is_provided_and_fails_is_told_in_one_line(shell: Shell, error: str, said: str) -> None:
    """A factory that raises, or would end the process, ends the worker with exit code 1."""
    write(shell, "pass")
    with (shell.folder / "mine.py").open("a") as file:
        file.write(
            f"class Store: ...\ndef store(): {error}\nprovide(Store, store)\n@tool(service='stored')\ndef get(store: Store): 'Get.'\n"
        )
    done = shell.run("worker", "mine.py")
    told = f"toolbus: the service Store can't be made by mine.store: {said} - at {shell.folder}/mine.py:13\n"
    assert (done.returncode, done.stderr) == (1, told)


SLOW = """import asyncio, pathlib, time
from toolbus import ToolService, tool

class First(ToolService):
    @tool(effect="read")
    def one(self) -> str:
        "Answer."
        return "1"

    async def cleanup(self):
        pathlib.Path("cleaned").touch()

class Second(First):
    async def startup(self):
        with open("begun", "a") as file:
            file.write("x")
        {}

    async def cleanup(self):
        pathlib.Path("never").touch()

    @tool(effect="read")
    def two(self) -> str:
        "Answer."
        return "2"

first, second = First(), Second()
"""
WAITS = {"a coroutine": "await asyncio.sleep(300)", "a thread": "await asyncio.to_thread(time.sleep, 300)"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    ("words", "processes"), [((), 1), (("--processes", "2"), 2), (("--reload",), 1)], ids=["one process", "two processes", "reload"]
)
@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_a_signal_ends_a_slow_start(shell: Shell, waits: str, words: tuple[str, ...], processes: int, number: signal.Signals) -> None:
    """Nothing is served or registered, what had started is cleaned up, and the exit code is 0."""
    (shell.folder / "slow.py").write_text(SLOW.format(waits))
    worker = shell.start_anew("worker", "slow.py", *words)
    begun = shell.folder / "begun"
    eventually_sync(lambda: begun.exists() and begun.read_text() == "x" * processes)
    worker.send_signal(number)
    errors = worker.communicate(timeout=20)[1].splitlines()
    assert worker.returncode == 0, errors
    assert {json.loads(line)["event"] for line in errors} & {"worker.serving", "worker.killed", "supervisor.killing"} == set()
    assert "Traceback" not in "".join(errors)
    assert ((shell.folder / "cleaned").exists(), (shell.folder / "never").exists()) == (True, False)
    assert shell.json("see", "services") == []


def test_a_class_of_tool_objects_that_exits_is_told_in_one_line(shell: Shell) -> None:
    """A toolkit's class whose ``__init__`` would end the process is refused like one that raises."""
    (shell.folder / "kit.py").write_text(
        "import sys\nfrom toolbus.toolkit import Tool\n"
        "class Kit(Tool):\n    def __init__(self): sys.exit(0)\n    async def run(self): 'Run.'\n"
    )
    done = shell.run("worker", "kit.py")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "Kit can't be made without arguments (0)" in done.stderr
