"""Executors, events and confirmations of the synchronous bus."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from tests.servers import eventually
from toolbus import ConfigurationError, Settings, Worker, invocation, tool
from toolbus.bus.client.executor.observers import ToolEvent
from toolbus.bus.values.events import Finished, Text
from toolbus.sync import Confirmation, ToolBus
from toolbus.sync.loop import Loop

running = threading.Event()
ended = threading.Event()


@tool(service="sync-turns", effect="read")
async def repeat(text: str, times: int = 1):
    """Repeat a text."""
    for _ in range(times):
        yield text


@tool(service="sync-turns", effect="once", confirm=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount} for {invocation().user}"


@tool(service="sync-turns", effect="read")
async def hang() -> str:
    """Run until it is cancelled."""
    running.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()
    return ""


@pytest.fixture
def settings(server: str, namespace: str) -> Settings:
    """Provide the settings of a namespace."""
    return Settings.load({}, url=server, namespace=namespace)


@pytest.fixture
def bus(server: str, namespace: str) -> Iterator[ToolBus]:
    """Provide a synchronous bus with a worker in another loop."""
    running.clear()
    ended.clear()
    settings = Settings.load({}, url=server, namespace=namespace)
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(portal.call(lambda: Worker([repeat, pay, hang], settings=settings))),
        ToolBus(settings=settings) as made,
    ):
        made.wait_for_tool("pay")
        yield made


def test_an_executor_runs_turns(bus: ToolBus) -> None:
    """Requests, turns, single calls and narrower executors are those of the asynchronous executor."""
    executor = bus.executor(model="m", user="ada", tools=bus.tools.filter(names=["repeat"]))
    assert list(executor.tools) == ["repeat"]
    assert (executor.model, executor.user, executor.session) == ("m", "ada", "")
    body = executor.build_request([{"role": "user", "content": "?"}])
    assert [each["function"]["name"] for each in body["tools"]] == ["repeat"]
    calls = [{"id": "1", "name": "repeat", "arguments": {"text": "a", "times": "2"}}, {"id": "2", "name": "pay", "arguments": {}}]
    said, unknown = executor.process_tool_calls(calls)
    assert said["content"] == "aa"
    assert "there is no tool 'pay'" in unknown["content"]
    assert executor.execute("repeat", {"text": "b"}).output == "b"
    assert executor.find("repeat") is not None
    assert list(executor.narrowed(bus.tools.filter(names=["pay"])).tools) == ["pay"]
    with executor.stream_tool_calls(calls[:1]) as turn:
        assert [result.output for result in turn.results()] == ["aa"]


def test_a_turn_is_read_as_it_runs(bus: ToolBus) -> None:
    """Events of a turn come one by one, and its messages after them."""
    with bus.stream_tool_calls([{"id": "1", "name": "repeat", "arguments": {"text": "a", "times": 2}}]) as turn:
        kinds = [type(each.event) for each in turn]
        assert kinds.count(Text) == 2
        assert kinds[-1] is Finished
        assert turn.messages()[0]["content"] == "aa"
        with pytest.raises(ConfigurationError, match="once"), turn:
            pass


def test_leaving_a_turn_ends_its_calls(bus: ToolBus) -> None:
    """Calls that still run when a turn is left are cancelled."""
    with bus.stream_tool_calls([{"id": "1", "name": "hang"}]):
        assert running.wait(20)
    assert ended.wait(20)


def test_an_exception_within_a_turn_leaves_it(bus: ToolBus) -> None:
    """An exception of the reader ends the turn and is raised."""
    turn = bus.stream_tool_calls([{"id": "1", "name": "hang"}])

    def read() -> None:
        with turn:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    assert turn.results()[0].error is not None
    assert bus.call("repeat", {"text": "b"}).success


def test_a_confirmer_may_wait_for_a_person(bus: ToolBus) -> None:
    """A confirmer blocks a thread of its own: other calls go on while it thinks, and it may use the bus itself."""
    asked: list[Confirmation] = []
    decided = threading.Event()

    def ask(confirmation: Confirmation) -> bool:
        asked.append(confirmation)
        assert bus.call("repeat", {"text": "meanwhile"}).output == "meanwhile"
        return decided.wait(20) and confirmation.arguments["amount"] < 10

    executor = bus.executor(user="ada", confirmer=ask)
    with ThreadPoolExecutor(2) as pool:
        paying = [pool.submit(executor.execute, "pay", {"amount": amount}) for amount in (5, 50)]
        anyio.run(eventually, lambda: len(asked) == 2)
        assert bus.call("repeat", {"text": "a"}).output == "a"
        decided.set()
        allowed, denied = (each.result(20) for each in paying)
    assert allowed.output == "paid 5 for ada"
    assert denied.error is not None
    assert denied.error.type == "forbidden"


def test_a_confirmer_that_needs_an_event_loop_is_refused(bus: ToolBus) -> None:
    """A coroutine function can't run in a thread, and a thing that is no function is none here either."""

    async def ask(confirmation: Confirmation) -> bool:
        return True

    with pytest.raises(ConfigurationError, match="plain function"):
        bus.executor(confirmer=ask)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="confirmer"):
        bus.executor(confirmer=True)  # type: ignore[arg-type]


def test_open_confirmations_are_answered_from_another_thread(bus: ToolBus) -> None:
    """Without a confirmer a call waits until any thread allows it, by its id or by the object; watching shows it."""
    with ThreadPoolExecutor(2) as pool:
        for answer in (
            lambda found: bus.confirmations.allow(found.id, by="bob"),
            lambda found: bus.confirmations[found.id].allow(),
            lambda found: bus.confirmations.deny(found.id, "no"),
        ):
            watching = pool.submit(lambda: next(iter(bus.confirmations.watch())))
            paying = pool.submit(bus.execute, "pay", {"amount": 1}, user="ada")
            found = watching.result(30)
            assert [each.id for each in bus.confirmations.pending(user="ada")] == [found.id]
            assert bus.confirmations.get(found.id).tool == "pay"
            assert list(bus.confirmations) == [found.id]
            own = bus.confirmations[found.id]
            assert (own.tool, own.arguments, own.answered, str(own)) == ("pay", {"amount": 1}, False, str(own.request))
            answer(found)
            assert paying.result(30).success is ("deny" not in answer.__code__.co_names)
    assert len(bus.confirmations) == 0


def test_observers_and_watches_see_every_call(bus: ToolBus) -> None:
    """An observer is called with each event, a watch yields them, and both can end."""
    seen: list[ToolEvent] = []
    leave = bus.events.subscribe(seen.append)
    assert len(bus.events) == 1
    with bus.events.watch() as watch:
        bus.execute("repeat", {"text": "a"})
        events = iter(watch)
        first = next(events)
        while not isinstance(next(events).event, Finished):
            pass
        assert watch.dropped == 0
    assert seen[0] == first
    assert isinstance(seen[-1].event, Finished)
    leave()
    assert len(bus.events) == 0


def test_an_observer_that_uses_the_bus_is_told_so(bus: ToolBus, caplog: pytest.LogCaptureFixture) -> None:
    """An observer runs in the bus's own thread: waiting for the bus there is an error, and no deadlock."""
    errors: list[Exception] = []

    def observe(event: ToolEvent) -> None:
        for use in (lambda: bus.call("repeat", {"text": "a"}), bus.close, lambda: bus.tools):
            try:
                use()
            except ConfigurationError as error:
                errors.append(error)
        leave()

    leave = bus.events.subscribe(observe)
    assert bus.execute("repeat", {"text": "a"}).success
    assert len(errors) == 3
    assert all("thread" in str(error) for error in errors)


def test_closing_ends_watches_and_turns(bus: ToolBus) -> None:
    """Watches, changes, and turns that other threads hold end with the bus, though nothing else ends them."""
    held = threading.Event()
    closed = threading.Event()

    def hold() -> list[str]:
        with bus.stream_tool_calls([{"id": "1", "name": "hang"}]) as turn:
            held.set()
            [result] = turn.results()
            closed.wait(30)
        return [result.error.type if result.error else ""]

    with ThreadPoolExecutor(4) as pool, bus.events.watch() as watch:
        events, changes = pool.submit(list, watch), pool.submit(list, bus.tools.changes())
        requests, turn = pool.submit(list, bus.confirmations.watch()), pool.submit(hold)
        assert held.wait(20)
        assert running.wait(20)
        bus.close()
        closed.set()
        assert turn.result(30) == ["cancelled"]
        for ended in (events, changes, requests):
            assert isinstance(ended.result(30), list)


def test_what_begins_just_before_the_loop_stops_ends_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that asks for an event at the moment in which the bus closes does not keep the loop from ending."""
    begun, stopped = threading.Event(), threading.Event()

    async def endless() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    with start_blocking_portal() as portal:
        spawn = portal._spawn_task_from_thread

        def slow(*args: Any) -> None:
            begun.set()
            # The portal was asked whether it runs. Without the wait of close(), it has stopped when this thread goes on.
            stopped.wait(1.0)
            spawn(*args)

        loop = Loop(portal)
        monkeypatch.setattr(portal, "_spawn_task_from_thread", slow)
        reader = threading.Thread(target=lambda: list(loop.each(endless(), lasting=True)), daemon=True)
        reader.start()
        assert begun.wait(20)
        loop.close()
        monkeypatch.undo()
        portal.call(portal.stop)
        stopped.set()
        reader.join(20)
        assert not reader.is_alive()


def test_what_begins_while_the_bus_closes_ends_as_well() -> None:
    """A reader that was between two events asks for the next one after the others have been ended."""

    async def endless() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    found: list[list[int]] = []
    with start_blocking_portal() as portal:
        loop = Loop(portal)
        loop.close()
        reader = threading.Thread(target=lambda: found.append(list(loop.each(endless(), lasting=True))), daemon=True)
        reader.start()
        reader.join(20)
        portal.call(portal.stop, True)
    assert found == [[]]


def test_executors_and_observers_outlive_a_close(settings: Settings) -> None:
    """Executors made before the bus was opened work whenever it is open, and observers stay."""
    bus = ToolBus(settings=settings)
    executor, seen = bus.executor(user="ada"), []
    bus.events.subscribe(seen.append)
    for count in (1, 2):
        with pytest.raises(ConfigurationError, match="not open"):
            executor.execute("repeat", {"text": "a"})
        with bus:
            assert not executor.execute("repeat", {"text": "a"}).success
        assert len(seen) == count


def test_the_registry_and_the_counts_are_there(bus: ToolBus) -> None:
    """Services, refused tools, near names, tallies and sessions are those of the asynchronous bus."""
    assert list(bus.services) == ["sync-turns"]
    assert (bus.refused, bus.near("repeet"), bool(bus.agent)) == ([], ["repeat"], True)
    assert bus.tallies.spend("rate", 1, 60.0) == 0
    assert bus.tallies.spend("rate", 1, 60.0) > 0
    assert bus.tallies.usage() == bus.usage() == []
    assert bus.shared_confirmations.pending() == []
    assert bus.settings.namespace
    bus.end_session("ada", "s")
    with bus.session("s", user="ada") as view:
        assert list(view.tools) == ["hang", "pay", "repeat"]
        assert view.executor().session == "s"
