"""Try a deployment with calls of its own: a worker, an agent, and the server between them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from toolbus.bus.broker.admin import Admin
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.values.results import ToolbusError, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.service import ToolService
from toolbus.bus.worker.worker import Worker

SERVICE = "TOOLBUS_DIAGNOSIS_SERVICE"
"""The variable that tells a worker process the service's id."""

KINDS = ("echo", "count", "wait", "die")


class Diagnosis(ToolService):
    """Tools that answer at once, stream, wait, or kill their first worker.

    Args:
        id: the service's id, which begins the names of its tools; each run has one of its own.
    """

    effect = "idempotent"

    def __init__(self, id: str) -> None:
        parameters = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0}}}
        documents = tuple({"name": f"{id}-{kind}", "description": f"Try {kind}.", "parameters": parameters} for kind in KINDS)
        # Class variables of services that are written down.
        self.__dict__.update(id=id, description="tries this deployment, and is gone in a moment", tools=documents)
        self.owner_label = id
        self.cancelled = asyncio.Event()

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[str]:
        """Run one of the tools.

        Raises:
            ToolError: it has no such tool.
        """
        call = invocation()
        match call.tool.removeprefix(f"{self.id}-"):
            case "echo":
                yield str(arguments.get("n", 0))
            case "count":
                for number in range(arguments.get("n", 0)):
                    yield f"{number} "
            case "wait":
                try:
                    yield "waiting"
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            case "die":
                if call.attempt == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield f"attempt {call.attempt}"
            case other:
                raise ToolError(f"there is no {other!r}", type="not_found")


def __getattr__(name: str) -> Diagnosis:
    """Return the service for a worker process, which is started with ``toolbus.operations.diagnosis:service``."""
    if name == "service":
        return Diagnosis(os.environ[SERVICE])
    raise AttributeError(name)


_CALLS, _AT_ONCE, _CHUNKS = 200, 64, 500
_PATIENCE = 30.0
# A dead worker's calls are taken over when its lease has ended, so a short one makes the trial short.
_LEASE = 2.0
# A call is a round trip to publish it and one to answer it, each with a wake-up on the way.
_MANY_ROUND_TRIPS = 20.0


class Trial(msgspec.Struct, frozen=True):
    """The result of one trial; ``state`` is ok, warn or fail."""

    name: str
    state: str
    found: str


class Trials:
    """The trials of one deployment. They have a service of their own, which is gone at the end."""

    def __init__(self, settings: Settings) -> None:
        self._id = f"diagnosis-{secrets.token_hex(4)}"
        self._settings = Settings.load(base=settings, lease=_LEASE, owner="", recent="off")
        self._round_trip = 0.0

    async def run(self) -> AsyncIterator[Trial]:
        """Yield the result of each trial as it ends. One that fails keeps the others from nothing, but one without a worker ends them."""
        service = Diagnosis(self._id)
        try:
            yield await self._server()
            async with Worker(service, settings=self._settings), ToolBus(settings=self._settings) as bus:
                await bus.wait_for_tool(f"{self._id}-echo", timeout=_PATIENCE)
                trials: tuple[tuple[str, Callable[[], Awaitable[Trial]]], ...] = (
                    ("call", lambda: self._call(bus)),
                    ("calls at once", lambda: self._calls(bus)),
                    ("stream", lambda: self._stream(bus)),
                    ("cancellation", lambda: self._cancel(bus, service)),
                )
                for name, trial in trials:
                    yield await _tried(name, trial)
            yield await _tried("lease", self._takeover)
        except ToolbusError as error:
            yield Trial("worker", "fail", str(error))

    async def _server(self) -> Trial:
        async with Admin(self._settings) as admin:
            self._round_trip = (await admin.health()).latency_ms
        return Trial("round trip", "ok", f"{self._round_trip:.2f} ms to the server (median of 50)")

    async def _call(self, bus: ToolBus) -> Trial:
        times = []
        for number in range(_CALLS):
            started = time.perf_counter()
            result = await bus.call(f"{self._id}-echo", {"n": number}, timeout=_PATIENCE)
            times.append((time.perf_counter() - started) * 1000)
            if result.output != str(number):
                return Trial("call", "fail", _wrong(result, str(number)))
        middle, slow = statistics.median(times), sorted(times)[int(_CALLS * 0.99)]
        trips = middle / max(self._round_trip, 0.001)
        found = f"{middle:.2f} ms (median of {_CALLS}), 99 % within {slow:.2f} ms; {trips:.1f} round trips"
        return Trial("call", "warn" if trips > _MANY_ROUND_TRIPS and middle > 1 else "ok", found)

    async def _calls(self, bus: ToolBus) -> Trial:
        started = time.perf_counter()
        results = await asyncio.gather(*(bus.call(f"{self._id}-echo", {"n": n}, timeout=_PATIENCE) for n in range(_AT_ONCE * 8)))
        seconds = time.perf_counter() - started
        wrong = [_wrong(result, str(number)) for number, result in enumerate(results) if result.output != str(number)]
        if wrong:
            return Trial("calls at once", "fail", f"{len(wrong)} of {len(results)}: {wrong[0]}")
        return Trial(
            "calls at once", "ok", f"{len(results)} in {seconds * 1000:.0f} ms, {len(results) / seconds:,.0f} calls/s of one process"
        )

    async def _stream(self, bus: ToolBus) -> Trial:
        started, first, text = time.perf_counter(), 0.0, ""
        async with bus.stream(f"{self._id}-count", {"n": _CHUNKS}, timeout=_PATIENCE) as call:
            async for piece in call:
                first = first or time.perf_counter() - started
                text += piece
        if text != "".join(f"{number} " for number in range(_CHUNKS)):
            return Trial("stream", "fail", f"{len(text.split())} of {_CHUNKS} pieces arrived in order")
        return Trial("stream", "ok", f"{_CHUNKS} pieces whole, the first after {first * 1000:.2f} ms")

    async def _cancel(self, bus: ToolBus, service: Diagnosis) -> Trial:
        async with bus.stream(f"{self._id}-wait", {}, timeout=_PATIENCE) as call:
            async for _ in call:
                break
            started = time.perf_counter()
        # Leaving the context cancels the call.
        async with asyncio.timeout(_PATIENCE):
            await service.cancelled.wait()
        return Trial("cancellation", "ok", f"reached the handler after {(time.perf_counter() - started) * 1000:.2f} ms")

    async def _takeover(self) -> Trial:
        """Let a worker process die with a call, and another one answer."""
        environment = {
            **os.environ,
            SERVICE: self._id,
            "TOOLBUS_URL": self._settings.url,
            "TOOLBUS_NAMESPACE": self._settings.namespace,
            "TOOLBUS_LEASE": str(_LEASE),
            "TOOLBUS_OWNER": "",
            # The calls of the trials would stand among those of the deployment, and look like losses.
            "TOOLBUS_RECENT": "off",
            "TOOLBUS_LOG_LEVEL": "error",
        }
        words = ("-m", "toolbus", "worker", "toolbus.operations.diagnosis:service")
        process = await asyncio.create_subprocess_exec(sys.executable, *words, env=environment)
        try:
            async with ToolBus(settings=self._settings) as bus:
                await bus.wait_for_tool(f"{self._id}-die", timeout=_PATIENCE)
                answer = asyncio.ensure_future(bus.call(f"{self._id}-die", {}, timeout=_PATIENCE))
                async with asyncio.timeout(_PATIENCE):
                    await process.wait()
                died = time.perf_counter()
                async with Worker(Diagnosis(self._id), settings=self._settings):
                    result = await answer
                taken = time.perf_counter() - died
                await self._gone(bus)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if result.output != "attempt 2":
            return Trial("lease", "fail", _wrong(result, "attempt 2"))
        return Trial("lease", "ok", f"a killed worker's call was answered by another after {taken:.1f} s (lease {_LEASE:g} s)")

    async def _gone(self, bus: ToolBus) -> None:
        """Wait until the dead worker has been swept out of the registry, so that nothing of the trials stays in it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LEASE * 5):
                await bus.tools.catalogue.wait(lambda: self._id not in bus.services)


async def _tried(name: str, trial: Callable[[], Awaitable[Trial]]) -> Trial:
    try:
        return await trial()
    except ToolbusError as error:
        return Trial(name, "fail", str(error))
    except TimeoutError:
        return Trial(name, "fail", f"not within {_PATIENCE:g} s")


def _wrong(result: ToolResult, wanted: str) -> str:
    return str(result.error) if result.error is not None else f"{(result.output or '')[:100]!r} was answered in place of {wanted!r}"
