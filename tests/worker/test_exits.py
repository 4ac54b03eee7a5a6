"""Exceptions that end programs and tasks, raised by tools: they are contained, and the worker serves on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.contract import Place
from tests.forking import ForkServer
from tests.servers import eventually
from toolbus import Session, Settings, ToolBus, ToolResult, ToolService, Worker, tool
from toolbus.bus.middleware import Next, ToolCall
from toolbus.bus.worker.process import event_loop as loops
from toolbus.compat.trustgraph import DynamicToolService

pytestmark = pytest.mark.anyio


class Odd(BaseException):
    """No Exception."""


class Mute(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class MuteExit(Exception):
    """Exits when it is asked for its text."""

    def __str__(self) -> str:
        raise SystemExit(3)


KINDS = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": StopIteration,
    "Odd": Odd,
    "Mute": Mute,
    "MuteExit": MuteExit,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [SystemExit(1)]),
}


def ending(kind: str) -> Any:
    """Raise what a test asks for; "" raises nothing."""
    if kind:
        made: Any = KINDS[kind]
        raise made()
    return "well"


@tool(service="exits", effect="read")
async def at_once(kind: str) -> str:
    """Raise before anything was awaited."""
    return ending(kind)


@tool(service="exits", effect="read")
async def later(kind: str) -> str:
    """Raise in a later step."""
    await asyncio.sleep(0)
    return ending(kind)


@tool(service="exits", effect="read")
def in_thread(kind: str) -> str:
    """Raise in a thread."""
    return ending(kind)


@tool(service="exits", effect="read")
async def streaming(kind: str) -> AsyncIterator[str]:
    """Raise behind a piece of text."""
    yield "so "
    yield ending(kind)


@tool(service="exits", effect="read")
def streaming_in_thread(kind: str) -> Iterator[str]:
    """Raise behind a piece of text, in a thread."""
    yield "so "
    yield ending(kind)


@tool(service="exits", effect="read")
async def while_closing(kind: str) -> AsyncIterator[str]:
    """Raise while another failure passes."""
    try:
        yield "well"
        if kind:
            raise ValueError
    finally:
        ending(kind)


HANDLERS = [at_once, later, in_thread, streaming, streaming_in_thread, while_closing]


class Facade(DynamicToolService):
    async def invoke(self, user, config, arguments):
        return ending(arguments["kind"])


class StreamingFacade(DynamicToolService):
    async def invoke(self, user, config, arguments):
        yield "so "
        yield ending(arguments["kind"])


async def passed_on(call: ToolCall, next: Next) -> ToolResult:
    return await next(call)


async def exiting(call: ToolCall, next: Next) -> ToolResult:
    ending(str(call.arguments["kind"]))
    return await next(call)


def contained(result: ToolResult) -> None:
    """Check that a failure says what it was, and that it was the tool's."""
    assert result.error is not None
    assert (result.error.type, bool(result.error.code), bool(result.error.message)) == ("tool_error", True, True)


@pytest.mark.few(5)
@pytest.mark.parametrize("middleware", [(), (passed_on,), (exiting,)], ids=["bare", "within-middleware", "from-middleware"])
@pytest.mark.parametrize("handler", HANDLERS, ids=lambda each: each.__name__)
async def test_whatever_a_handler_raises_is_its_answer(handler: Any, middleware: Any) -> None:
    """Each kind of handler may raise each kind of exception: the call is a tool_error at once, and the next one is answered."""
    async with Worker(HANDLERS, url="memory://", middleware=middleware) as worker, ToolBus("memory://") as bus:
        await bus.wait_for_tool(handler.__name__)
        for kind in KINDS:
            contained(await bus.call(handler.__name__, {"kind": kind}, timeout=20))
            assert "well" in (await bus.call(handler.__name__, {"kind": ""}, timeout=20)).observation
        assert worker.healthy
        assert worker.statistics()["running"] == 0


@pytest.mark.parametrize("facade", [Facade, StreamingFacade])
async def test_whatever_a_service_of_the_facade_raises_is_its_answer(place: Place, facade: type[DynamicToolService]) -> None:
    """Services of the TrustGraph facade, which run in tasks of their own, are contained like any other."""
    kinds = '"arguments": [{"name": "kind", "type": "string", "description": "k"}]'
    document = f'{{"type": "tool-service", "name": "facade", "description": "d", "service": "s", {kinds}}}'.encode()
    queues = b'{"id": "s", "request-queue": "non-persistent://tg/request/e", "response-queue": "non-persistent://tg/response/e"}'
    async with place.serving(facade(topic="e").as_service(), role="operator") as bus:
        await bus.put("tool-service/s", queues)
        await bus.put("tool/facade", document)
        await bus.wait_for_tool("facade")
        for kind in KINDS:
            contained(await bus.call("facade", {"kind": kind}, timeout=20))
        assert "well" in (await bus.call("facade", {"kind": ""}, timeout=20)).observation


class Cleaning(ToolService):
    """Raises when it cleans up."""

    effect = "read"

    def __init__(self, kind: str, id: str) -> None:
        self.id = id  # type: ignore[misc]
        self.tools = ({"name": id, "description": "d", "arguments": []},)  # type: ignore[misc]
        self.kind = kind
        self.cleaned: list[str] = []

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        return "well"

    async def cleanup(self, session: Session | None = None) -> None:
        self.cleaned.append("" if session is None else session.id)
        ending(self.kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_clean_up_ends_neither_the_worker_nor_other_clean_ups(kind: str) -> None:
    """An exception of cleanup() after a session or at the worker's end is logged; the others clean up, and the drain returns."""
    services = [Cleaning(kind, "one"), Cleaning(kind, "two"), Cleaning("", "three")]
    async with ToolBus("memory://") as bus, Worker(services, url="memory://") as worker:
        for service in services:
            await bus.wait_for_tool(str(service.id))
            assert (await bus.call(str(service.id), {}, user="u", session="s")).success
        await bus.end_session("u", "s")
        await eventually(lambda: all(service.cleaned == ["s"] for service in services))
        assert worker.healthy
    assert all(service.cleaned == ["s", ""] for service in services)


STRAYS = '''
import asyncio

from toolbus import tool

KINDS = {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}


async def ending(kind):
    raise KINDS[kind]


@tool(effect="read")
async def stray_task(kind: str) -> str:
    """Leave a task behind."""
    task = asyncio.create_task(ending(kind))
    await asyncio.wait([task])
    return "well"


@tool(effect="read")
async def awaited_task(kind: str) -> str:
    """Await a task."""
    return await asyncio.create_task(ending(kind))


@tool(effect="read")
async def group(kind: str) -> str:
    """Run a task group."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ending(kind))
    return "well"


@tool(effect="read")
async def callback(kind: str) -> str:
    """Leave a callback behind."""
    def end():
        raise KINDS[kind]
    asyncio.get_running_loop().call_soon(end)
    await asyncio.sleep(0.01)
    return "well"
'''


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt"])
async def test_tasks_of_handlers_end_no_worker_of_the_command_line(
    kind: str, forks: ForkServer, tmp_path: Path, server: str, namespace: str
) -> None:
    """Tasks, task groups and callbacks that handlers start may raise SystemExit: the process serves on, and SIGTERM ends it with 0."""
    shell = Shell(forks, tmp_path, server, namespace)
    (tmp_path / "strays.py").write_text(STRAYS)
    worker = shell.start("worker", "strays.py")
    try:
        async with ToolBus(settings=Settings(url=server, namespace=namespace)) as bus:
            await bus.wait_for_tool("callback", 30)
            for _ in range(2):
                for name in ("stray_task", "callback"):
                    assert (await bus.call(name, {"kind": kind}, timeout=20)).output == "well"
                for name in ("awaited_task", "group"):
                    contained(await bus.call(name, {"kind": kind}, timeout=20))
        assert worker.poll() is None
        worker.send_signal(signal.SIGTERM)
        _, logged = await asyncio.to_thread(worker.communicate, timeout=30)
        assert worker.returncode == 0
        assert logged.count('"event":"worker.exit_refused"') == 8
    finally:
        shell.close()


def bases() -> list[type[asyncio.AbstractEventLoop]]:
    """The loops that a worker may run on here."""
    uvloop = pytest.importorskip("uvloop")
    return [asyncio.SelectorEventLoop, uvloop.Loop]


@pytest.mark.parametrize("base", bases(), ids=lambda base: base.__module__.partition(".")[0])
def test_a_lasting_loop_ends_with_its_main_task(base: Any) -> None:
    """Its own program may exit, also by Ctrl-C, while what other tasks and callbacks raise leaves the rest in order."""

    async def exits(code: int) -> None:
        raise SystemExit(code)

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def among_others() -> list[int]:
        done: list[int] = []
        tasks = [asyncio.create_task(exits(number)) for number in range(5)]
        for number in range(5):
            asyncio.get_running_loop().call_soon(done.append, number)
        await asyncio.sleep(0.01)
        assert all(isinstance(task.exception(), SystemExit) for task in tasks)
        return done

    assert loops.run_loop(among_others, base) == [0, 1, 2, 3, 4]
    with pytest.raises(SystemExit, match="7"):
        loops.run_loop(lambda: exits(7), base)
    with pytest.raises(KeyboardInterrupt):
        loops.run_loop(interrupted, base)

    left: list[asyncio.Task[None]] = []

    async def with_interrupted_task() -> None:
        left.append(asyncio.create_task(interrupted()))
        await asyncio.sleep(10)

    # Nobody but the keyboard is known to raise it here.
    with pytest.raises(KeyboardInterrupt):
        loops.run_loop(with_interrupted_task, base)
    assert isinstance(left[0].exception(), KeyboardInterrupt)
