"""The synchronous bus, over a real server."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from tests.servers import eventually
from toolbus import ConfigurationError, Settings, ToolError, ToolResult, Worker, tool
from toolbus.bus.values.events import Finished, Text
from toolbus.sync import ToolBus


@tool(service="sync-tests", effect="read")
async def repeat(text: str, times: int = 1):
    """Repeat a text."""
    for _ in range(times):
        yield text


@tool(service="sync-tests", effect="read")
async def fail() -> str:
    """Fail."""
    raise ToolError("no", code="refused")


@tool(service="sync-tests", effect="read")
async def hang() -> str:
    """Hang."""
    await anyio.sleep(60)
    return ""


@pytest.fixture
def bus(server: str, namespace: str) -> Iterator[ToolBus]:
    """Provide a synchronous bus with a worker in another loop."""
    settings = Settings.load({}, url=server, namespace=namespace)
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(lambda: Worker(repeat, settings=settings))),
        ToolBus(settings=settings) as made,
    ):
        yield made


def test_calls_streams_and_events(bus: ToolBus) -> None:
    """Results, text as it comes, and events are those of the asynchronous bus."""
    assert bus.call("repeat", {"text": "a", "times": 3}).output == "aaa"
    with bus.stream("repeat", {"text": "b", "times": 2}) as call:
        assert list(call) == ["b", "b"]
        assert call.result().meta.id == call.id
    with bus.stream("repeat", {"text": "c"}) as call:
        kinds = [type(event) for event in call.events()]
    assert (kinds[-2:], call.done) == ([Text, Finished], True)
    with pytest.raises(ToolError, match="no"), bus.stream("fail") as call:
        list(call)


def test_threads_share_one_bus(bus: ToolBus) -> None:
    """Calls from several threads at once each get their own answer."""
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: bus.call("repeat", {"text": str(number)}).output, range(100)))
    assert results == [str(number) for number in range(100)]


def test_cancelling_from_another_thread_ends_the_wait(bus: ToolBus) -> None:
    """cancel() ends a call that another thread waits for."""
    with bus.stream("hang") as call:
        thread = threading.Timer(0.1, call.cancel)
        thread.start()
        result = call.result()
        thread.join()
    assert result.error is not None
    assert result.error.type == "cancelled"


def test_tools_binding_and_the_lower_tier(bus: ToolBus) -> None:
    """tools, bind, wait_for_tool, put and delete are there under the same names."""
    assert list(bus.tools) == ["fail", "hang", "repeat"]
    assert bus.bind(user="alice").call("repeat", {"text": "x"}).success
    with pytest.raises(TimeoutError, match="nobody"):
        bus.wait_for_tool("nobody", timeout=0.05)
    assert bus.delete("tool/nothing") is False
    assert bus.service("nowhere").call("al", {}, {}).error is not None
    assert bus.statistics()["in_flight"] == 0


def test_a_closed_bus_says_so() -> None:
    """Before open() and after close() every use is a clear error; closing twice is not."""
    bus = ToolBus("memory://")
    with pytest.raises(ConfigurationError, match="not open"):
        bus.call("x")
    bus.open()
    view = bus.bind(user="a")
    bus.close()
    bus.close()
    with pytest.raises(ConfigurationError, match="not open"):
        view.call("x")


def test_views_are_of_the_bus_that_is_open(server: str, namespace: str) -> None:
    """Views made before it was opened, or before it was opened again, work while it is open, and say so while it is not."""
    settings = Settings.load({}, url=server, namespace=namespace)
    bus = ToolBus(settings=settings)
    views = [bus.bind(user="a"), bus.bind(user="b").bind(session="s")]
    lower = bus.service("sync-tests")
    uses = [lambda: lower.call("a", {}, {"text": "a"}), *(lambda view=view: view.call("repeat", {"text": "a"}) for view in views)]
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(lambda: Worker(repeat, settings=settings))),
    ):
        for _ in range(2):
            for use in uses:
                with pytest.raises(ConfigurationError, match="not open"):
                    use()
            with bus:
                bus.wait_for_tool("repeat")
                for view in views:
                    assert view.call("repeat", {"text": "a"}).output == "a"
                assert isinstance(lower.call("a", {}, {"text": "a"}), ToolResult)
    with pytest.raises(ConfigurationError, match="nonsense"):
        bus.bind(nonsense=1)  # type: ignore[call-arg]


def test_an_open_bus_is_opened_once(bus: ToolBus) -> None:
    """Opening an open bus, from several threads at once, changes nothing."""
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(bus.open) for _ in range(8)]:
            done.result()
    assert bus.call("repeat", {"text": "a"}).success


def test_closing_ends_what_other_threads_wait_for(bus: ToolBus) -> None:
    """Calls and waits in other threads end when the bus is closed, and using a call of it afterwards is a clear error."""
    with ThreadPoolExecutor(3) as pool, bus.stream("hang") as call:
        calling = pool.submit(bus.call, "hang")
        waiting = pool.submit(bus.wait_for_tool, "nobody", 60.0)
        queued = pool.submit(bus.call, "nobody", wait=60.0)
        anyio.run(eventually, lambda: bus.statistics()["in_flight"] == 2)
        bus.close()
        for ended in (calling, queued):
            error = ended.result(10).error
            assert error is not None
            assert error.type == "cancelled"
        with pytest.raises(ConfigurationError, match="not open"):
            waiting.result(10)
    assert call.done
    with pytest.raises(ConfigurationError, match="not open"):
        call.result()
    with pytest.raises(ConfigurationError, match="not open"):
        list(call)


def test_an_interrupted_wait_cancels_its_call(bus: ToolBus) -> None:
    """Ctrl-C while a result is waited for raises here and ends the call there."""
    threading.Timer(0.2, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        bus.call("hang")
    anyio.run(eventually, lambda: bus.statistics()["in_flight"] == 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_use_after_fork_is_a_clear_error(bus: ToolBus) -> None:
    """A forked child has no thread of the bus: it is told so instead of waiting for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            bus.call("repeat", {"text": "a"})
        except ConfigurationError as error:
            code = 0 if "fork" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bus.call("repeat", {"text": "a"}).success


def test_the_lower_tier_streams(bus: ToolBus) -> None:
    """service(id).stream is there, and an unknown service is a failure like any other."""
    with pytest.raises(ToolError, match="nowhere"), bus.service("nowhere").stream("al", {}, {}) as call:
        list(call)


def test_a_models_turn(bus: ToolBus) -> None:
    """Definitions and a turn of tool calls are those of the asynchronous bus."""
    names = [each["function"]["name"] for each in bus.tools.filter(names=["fail", "repeat"]).definitions("openai", strict=True)]
    assert names == ["fail", "repeat"]
    said, failed = bus.bind(user="u").process_tool_calls(
        [{"id": "1", "name": "repeat", "arguments": {"text": "a", "times": "2"}}, {"id": "2", "name": "fail"}]
    )
    assert said == {"role": "tool", "tool_call_id": "1", "name": "repeat", "content": "aa"}
    assert failed["content"].startswith("Error (tool_error): no")
