"""Run all checks of a worker or an agent against a server of their own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from toolbus.bus.broker.embedded import EmbeddedServer
from toolbus.bus.broker.opening import Probe
from toolbus.bus.broker.scripts import write_scripts
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance import lease_checks as _  # noqa: F401 - adds its checks to the table
from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.checks import Outcome, outcome_of
from toolbus.operations.conformance.program import Program
from toolbus.operations.conformance.scene import LEASE, SERVICE, AgentScene, WorkerScene
from toolbus.operations.conformance.worker_checks import WORKER

Told = Callable[[Outcome], None]


@contextlib.asynccontextmanager
async def _started(command: Sequence[str]) -> AsyncIterator[tuple[Settings, Probe, Program]]:
    with EmbeddedServer() as server, tempfile.TemporaryDirectory(prefix="toolbus-scripts-") as folder:
        write_scripts(Path(folder))
        settings = Settings.load({}, url=server.url, namespace="conformance", lease=LEASE)
        environment = {
            "TOOLBUS_URL": settings.url,
            "TOOLBUS_NAMESPACE": settings.namespace,
            "TOOLBUS_LEASE": f"{LEASE:g}",
            "TOOLBUS_GRACE": "1",
            "TOOLBUS_SERVICE": SERVICE,
            "TOOLBUS_SCRIPTS": folder,
        }
        program = Program(command, environment)
        try:
            async with Probe(settings) as probe:
                yield settings, probe, program
        finally:
            await program.close()


async def try_worker(command: Sequence[str], level: int, only: tuple[str, ...], told: Told) -> list[Outcome]:
    """Check a worker.

    Args:
        command: starts it; it serves the service ``conformance`` on the server of ``TOOLBUS_URL``.
        level: the highest level to check.
        only: names of checks; all for none.
        told: is told of each outcome as it comes.

    Raises:
        ConfigurationError: the command can't be started.
    """
    found: list[Outcome] = []
    async with _started(command) as (settings, probe, program):
        scene = WorkerScene(settings, probe, program)
        for check in WORKER.chosen(level, only):
            outcome = await outcome_of(check, scene)
            if not outcome.holds:
                # What one fault leaves behind must not look like others.
                await scene.begin_anew()
            found.append(outcome)
            told(outcome)
            if not found[0].holds and not only:
                # A worker that does not register keeps nothing else, and each check would wait for it.
                break
    return found


async def try_agent(command: Sequence[str], level: int, only: tuple[str, ...], told: Told) -> list[Outcome]:
    """Check an agent, see ``try_worker``; it reads calls from standard input and writes their events to standard output.

    Raises:
        ConfigurationError: the command can't be started.
    """
    found: list[Outcome] = []
    async with _started(command) as (settings, probe, program):
        for check in AGENT.chosen(level, only):
            async with AgentScene(settings, probe, program) as scene:
                outcome = await outcome_of(check, scene)
            found.append(outcome)
            told(outcome)
    return found
