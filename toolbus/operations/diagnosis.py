"""Examine a deployment: its server, what is registered, and with calls of its own a worker, an agent, and the server between them."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Any, NamedTuple

import msgspec

from toolbus.bus.broker.admin import Admin, ServerHealth
from toolbus.bus.broker.registry.versions import OURS, NamespaceVersion, SpokenBy, speaks, spoken
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.client.tools.catalogue import catalogue_of
from toolbus.bus.support.display import one_line
from toolbus.bus.support.waiting import at_most
from toolbus.bus.values.envelope import VERSION
from toolbus.bus.values.results import BrokerError, ToolbusError, ToolError, ToolResult
from toolbus.bus.values.settings import Settings, environment_of
from toolbus.bus.values.urls import redact, without_credentials
from toolbus.bus.watch.faults import RUNBOOKS, Fault, faults_of, look, unreachable
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.service import ToolService
from toolbus.bus.worker.worker import Worker
from toolbus.operations.unusable import pending, refused, title
from toolbus.platform.backends.confinement import why_not
from toolbus.platform.records import RecordedTool
from toolbus.platform.store import Reader

_SLOW_MS = 5.0
# Round trips of which the median is the latency.
_TRIPS = 50
# Seconds for the attempt without a password.
_ATTEMPT = 5.0
_SERVICE = "the service {0!r}, which no worker has served yet: start one that serves it, or `toolbus operate items rm tool/{1}`"


class Finding(NamedTuple):
    """The result of one check; ``state`` is ok, warn or fail, and ``runbook`` the address of what to do, for a fault."""

    check: str
    state: str
    found: str
    runbook: str = ""


async def diagnose(settings: Settings, *, deep: bool = False) -> list[Finding]:
    """Check a deployment, faults first; ``deep`` also tries calls when nothing has failed."""
    findings = await _examine(settings)
    if deep and not any(finding.state == "fail" for finding in findings):
        findings += [each async for each in Trials(settings).run()]
    return findings


async def _examine(settings: Settings) -> list[Finding]:
    findings = [Finding("url", "ok", redact(settings.url))]
    try:
        async with Admin(settings) as admin:
            roles = await admin.roles()
            seen = await look(admin, settings, ask=True, trips=_TRIPS, roles=roles)
            snapshot = await admin.snapshot()
            catalogue = catalogue_of(snapshot, require_approval=settings.require_approval)
            protocol = _protocol(await admin.versions.read(), await admin.versions.workers())
    except BrokerError as error:
        return [_of(unreachable(error)), *findings]
    except ToolbusError as error:
        return [Finding("url", "fail", str(error))]
    records = Reader().snapshot(catalogue.documents.by_key)
    faults = [_of(fault) for fault in faults_of(seen)]
    findings += [
        *_of_server(seen.health),
        _role(roles),
        *await _nobody(settings),
        protocol,
        Finding("registry", "ok", f"{len(snapshot[0])} services in namespace {settings.namespace!r}"),
        *(
            Finding("tool" if tool.service else "preset", "fail", f"{title(tool)} can't be used: {one_line(tool.reason, 300)}")
            for tool in refused(catalogue)
        ),
        # Groups that can't be read are among what agents refuse.
        *(
            Finding("record", "fail", f"a recorded tool or its label can't be used: {one_line(each.reason, 300)}")
            for each in records.refused
            if not each.key.startswith("group/")
        ),
        *(Finding("tool", "warn", f"{tool.name} waits for {_SERVICE.format(tool.service, tool.name)}") for tool in pending(catalogue)),
        await asyncio.to_thread(_confinement, records.tools.values(), confine=settings.confine),
        _owner(settings),
    ]
    named = {fault.check for fault in faults}
    findings = [*faults, *(finding for finding in findings if finding.check not in named)]
    # What fails comes first; of one state, the causes do.
    return sorted(findings, key=lambda finding: ("fail", "warn", "ok").index(finding.state))


def _of(fault: Fault) -> Finding:
    return Finding(fault.check, fault.state, fault.found, f"{RUNBOOKS}#{fault.runbook}")


def _of_server(health: ServerHealth) -> list[Finding]:
    """Return what is to be known of a server without faults, and how it could be made safer."""
    kept = (
        "append-only file is on" if health.append_only else "append-only file is off: a restart forgets queued calls; set `appendonly yes`"
    )
    slow = health.latency_ms > _SLOW_MS
    return [
        Finding("server", "ok", str(health.server)),
        Finding("scripts", "ok", "all load"),
        Finding("memory", "ok", f"{health.used_memory / 1_000_000:.1f} MB used{_bound(health.max_memory)}"),
        Finding("memory policy", "ok", health.policy),
        Finding("persistence", "ok" if health.append_only else "warn", kept),
        _replicas(health),
        Finding("latency", "warn" if slow else "ok", f"{health.latency_ms:.2f} ms (median of {_TRIPS})"),
        Finding("clock", "ok", f"server is {round(health.skew, 1) + 0.0:+.1f} s from here"),
    ]


def _bound(most: int) -> str:
    return f" of {most / 1_000_000:.1f} MB" if most else ", and no `maxmemory` is set"


def _owner(settings: Settings) -> Finding:
    owner = settings.owner or "unset: owners are derived from distributions and modules; set TOOLBUS_OWNER in production"
    return Finding("owner", "ok" if settings.owner else "warn", owner)


def _confinement(tools: Iterable[RecordedTool], *, confine: bool) -> Finding:
    """Say how a host of this machine would run the programs that models wrote."""
    named = ", ".join(tool.tool_id for tool in tools if tool.by_model and any(source.type == "local" for source in tool.sources))
    programs = f"programs that models wrote ({one_line(named, 200)})" if named else "programs that models write"
    if not confine:
        return Finding("confinement", "warn", f"{programs} have all rights of a host here: TOOLBUS_CONFINE is off")
    if reason := why_not():
        said = f"{programs} are refused by a host here: this machine can't confine them ({reason})"
        return Finding("confinement", "warn" if named else "ok", said)
    return Finding("confinement", "ok", f"{programs} are confined by a host here")


def _protocol(namespace: NamespaceVersion, workers: list[SpokenBy]) -> Finding:
    """Say which versions of the protocol were seen, and what keeps the namespace from the newest."""
    seen = Counter(spoken(each.versions) for each in workers)
    found = "; ".join(
        [
            f"the namespace is of version {namespace.written}",
            f"this process speaks {spoken(OURS)}",
            *(f"{count} instance{'s speak' if count > 1 else ' speaks'} {versions}" for versions, count in sorted(seen.items())),
        ]
    )
    try:
        namespace.check()
    except BrokerError as error:
        return Finding("protocol", "fail", str(error))
    if namespace.raising:
        return Finding(
            "protocol", "warn", f"{found}; it is being raised to version {namespace.raising}: run `toolbus operate migrate` again"
        )
    if namespace.written < VERSION:
        behind = [each for each in workers if not speaks(each.versions, VERSION)]
        advice = f"upgrade {behind[0].service}/{behind[0].instance} and all like it" if behind else "`toolbus operate migrate` raises it"
        return Finding("protocol", "warn", f"{found}; {advice}")
    return Finding("protocol", "ok", found)


def _role(roles: list[str] | None) -> Finding:
    if roles is None:
        return Finding(
            "role", "warn", "this user may do everything on the server; `toolbus secure acl ROLE` prints the least rights of each role"
        )
    if not roles:
        return Finding("role", "warn", "this user has none of the roles of `toolbus secure acl` in this namespace")
    return Finding("role", "ok", " and ".join(roles))


async def _nobody(settings: Settings) -> list[Finding]:
    """Try once whether the server lets in users without a password; nothing is tried when this process is such a user."""
    anonymous = msgspec.structs.replace(settings, url=without_credentials(settings.url), password_file="")
    if anonymous == settings:
        return []
    check = "no password"
    try:
        async with asyncio.timeout(_ATTEMPT), Admin(anonymous) as admin:
            roles = await admin.roles()
    except ToolbusError:
        return [Finding(check, "ok", "the server refuses users without a password")]
    except TimeoutError:
        return [Finding(check, "warn", f"the server did not say within {_ATTEMPT:g} s whether it refuses users without a password")]
    if roles == []:
        return [Finding(check, "ok", "users without a password have no role in this namespace")]
    may = "may do everything" if roles is None else f"have the rights of {' and '.join(roles)}"
    advice = "make a user for administrators, then `ACL SETUSER default off` (docs/how-to/roles.md)"
    return [Finding(check, "warn", f"users without a password {may} on the server: {advice}")]


def _replicas(health: ServerHealth) -> Finding:
    if not health.replicas:
        return Finding("replicas", "ok", f"none connected{', and writes need some of them' if health.needs_replicas else ''}")
    if not health.needs_replicas:
        advice = "a master that was cut off or replaced takes writes that will be lost; set `min-replicas-to-write 1`"
        return Finding("replicas", "warn", f"{health.replicas} connected: {advice}")
    return Finding("replicas", "ok", f"{health.replicas} connected, and writes need some of them")


# -- trials ---------------------------------------------------------------------------------------

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


# A finding's state, and what was found.
_Found = tuple[str, str]


class Trials:
    """The trials of one deployment. They have a service of their own, which is gone at the end."""

    def __init__(self, settings: Settings) -> None:
        self._id = f"diagnosis-{secrets.token_hex(4)}"
        # Calls of the trials that are told would stand among those of the deployment, and look like losses.
        self._settings = Settings.load(base=settings, lease=_LEASE, owner="", recent="off")
        self._round_trip = 0.0

    async def run(self) -> AsyncIterator[Finding]:
        """Yield the result of each trial as it ends. One that fails keeps the others from nothing, but one without a worker ends them."""
        service = Diagnosis(self._id)
        try:
            yield await self._server()
            async with Worker(service, settings=self._settings), ToolBus(settings=self._settings) as bus:
                await bus.wait_for_tool(f"{self._id}-echo", timeout=_PATIENCE)
                yield await _tried("call", self._call(bus))
                yield await _tried("calls at once", self._calls(bus))
                yield await _tried("stream", self._stream(bus))
                yield await _tried("cancellation", self._cancel(bus, service))
            yield await _tried("lease", self._takeover())
            async with Admin(self._settings) as admin:
                await admin.forget(self._id)
        except ToolbusError as error:
            yield Finding("worker", "fail", str(error))

    async def _server(self) -> Finding:
        async with Admin(self._settings) as admin:
            self._round_trip = (await admin.health()).latency_ms
        return Finding("round trip", "ok", f"{self._round_trip:.2f} ms to the server (median of 50)")

    async def _call(self, bus: ToolBus) -> _Found:
        times = []
        for number in range(_CALLS):
            started = time.perf_counter()
            result = await bus.call(f"{self._id}-echo", {"n": number}, timeout=_PATIENCE)
            times.append((time.perf_counter() - started) * 1000)
            if result.output != str(number):
                return "fail", _wrong(result, str(number))
        middle, slow = statistics.median(times), sorted(times)[int(_CALLS * 0.99)]
        trips = middle / max(self._round_trip, 0.001)
        found = f"{middle:.2f} ms (median of {_CALLS}), 99 % within {slow:.2f} ms; {trips:.1f} round trips"
        return "warn" if trips > _MANY_ROUND_TRIPS and middle > 1 else "ok", found

    async def _calls(self, bus: ToolBus) -> _Found:
        started = time.perf_counter()
        results = await asyncio.gather(*(bus.call(f"{self._id}-echo", {"n": n}, timeout=_PATIENCE) for n in range(_AT_ONCE * 8)))
        seconds = time.perf_counter() - started
        wrong = [_wrong(result, str(number)) for number, result in enumerate(results) if result.output != str(number)]
        if wrong:
            return "fail", f"{len(wrong)} of {len(results)}: {wrong[0]}"
        return "ok", f"{len(results)} in {seconds * 1000:.0f} ms, {len(results) / seconds:,.0f} calls/s of one process"

    async def _stream(self, bus: ToolBus) -> _Found:
        started, first, text = time.perf_counter(), 0.0, ""
        async with bus.stream(f"{self._id}-count", {"n": _CHUNKS}, timeout=_PATIENCE) as call:
            async for piece in call:
                first = first or time.perf_counter() - started
                text += piece
        if text != "".join(f"{number} " for number in range(_CHUNKS)):
            return "fail", f"{len(text.split())} of {_CHUNKS} pieces arrived in order"
        return "ok", f"{_CHUNKS} pieces whole, the first after {first * 1000:.2f} ms"

    async def _cancel(self, bus: ToolBus, service: Diagnosis) -> _Found:
        async with bus.stream(f"{self._id}-wait", {}, timeout=_PATIENCE) as call:
            async for _ in call:
                break
            started = time.perf_counter()
        # Leaving the context cancels the call.
        async with asyncio.timeout(_PATIENCE):
            await service.cancelled.wait()
        return "ok", f"reached the handler after {(time.perf_counter() - started) * 1000:.2f} ms"

    async def _takeover(self) -> _Found:
        """Let a worker process die with a call, and another one answer."""
        environment = {**environment_of(Settings.load(base=self._settings, log_level="error")), SERVICE: self._id}
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
                # The dead worker has been swept out of the registry then, so that nothing of the trials stays in it.
                await at_most(_LEASE * 5, bus.tools.catalogue.wait(lambda: self._id not in bus.services))
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if result.output != "attempt 2":
            return "fail", _wrong(result, "attempt 2")
        return "ok", f"a killed worker's call was answered by another after {taken:.1f} s (lease {_LEASE:g} s)"


async def _tried(name: str, trial: Awaitable[_Found]) -> Finding:
    try:
        return Finding(name, *await trial)
    except ToolbusError as error:
        return Finding(name, "fail", str(error))
    except TimeoutError:
        return Finding(name, "fail", f"not within {_PATIENCE:g} s")


def _wrong(result: ToolResult, wanted: str) -> str:
    return str(result.error) if result.error is not None else f"{(result.output or '')[:100]!r} was answered in place of {wanted!r}"
