"""The program under test, and the server that it runs on."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.broker.transport.opening import Probe
from toolbus.bus.support.waiting import cancelled
from toolbus.bus.values.results import BrokerError, ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, NotChecked, Outcome, Requirement, Status, broken_if
from toolbus.operations.conformance.proxy import Proxy

SERVICE = "conformance"
BESIDE = f"{SERVICE}-beside"
"""A second service, which a worker under test may have."""

LEASE = 2.0
"""Seconds: ``TOOLBUS_LEASE`` of the program under test."""

STARTS = 20.0
"""Seconds for a program to start."""

MOST_WRITTEN = 64 * 1_048_576
"""Bytes that a program may write in one check, before it fills memory or disk."""

TOO_MUCH = f"it wrote more than {MOST_WRITTEN:,} bytes"

# Seconds for one check; each waits for conditions with bounds of its own.
MOST = 60.0
# Seconds for a process to end when it is told to.
_ENDS = 10.0
_MOST_SHOWN = 2_000
_MOST_FRAMES = 12
_MOST_WIDE = 200

C = TypeVar("C", bound="Scene")


class Program:
    """A command that is started once or several times, in process groups of their own.

    Args:
        command: the words of the command.
        environment: variables beside those of this process.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = {**os.environ, **environment}
        self._started: list[asyncio.subprocess.Process] = []
        # Those that are not meant to end.
        self._running: set[asyncio.subprocess.Process] = set()
        self._log = Path(tempfile.mkstemp(prefix="toolbus-conformance-", suffix=".log")[1])

    async def start(self, *, pipes: bool = False, **more: str) -> asyncio.subprocess.Process:
        """Start a process.

        Args:
            pipes: its standard input and output are read and written here; otherwise its output goes to a file.
            **more: further variables of its environment.

        Raises:
            ConfigurationError: the command can't be started.
        """
        with self._log.open("ab") as log:
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE if pipes else asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE if pipes else log,
                    stderr=log,
                    env={**self._environment, **more},
                    start_new_session=True,
                    limit=1 << 24,
                )
            except OSError as error:
                raise ConfigurationError(f"can't start {self._command[0]!r}: {error.strerror}") from None
        self._started.append(process)
        self._running.add(process)
        return process

    def check_alive(self) -> None:
        """Check that no process has ended by itself, or writes without an end.

        Raises:
            Broken: one has, or does.
        """
        self.check_written()
        if (code := self.exit_code()) is not None:
            raise Broken(f"the program ended with exit code {code}")

    def check_written(self) -> None:
        """Check that the processes have not written too much.

        Raises:
            Broken: they have.
        """
        broken_if(self._log.stat().st_size > MOST_WRITTEN, TOO_MUCH)

    def exit_code(self) -> int | None:
        """Return the exit code of a process that has ended by itself; None while all run."""
        return next((process.returncode for process in self._running if process.returncode is not None), None)

    def forget_output(self) -> None:
        """Forget what it has written until now."""
        self._log.write_bytes(b"")

    def output(self) -> str:
        """Return the end of what it has written."""
        with self._log.open("rb") as file:
            # A character has at most four bytes.
            file.seek(max(0, self._log.stat().st_size - 4 * _MOST_SHOWN - 4))
            text = file.read().decode("utf-8", "replace").strip("\0 \n")
        return f"…{text[-_MOST_SHOWN:]}" if len(text) > _MOST_SHOWN else text

    async def stop(self, process: asyncio.subprocess.Process) -> int:
        """Tell a process to end and return its exit code.

        Raises:
            Broken: it did not end; it is killed.
        """
        self._running.discard(process)
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        code = await self.ended(process, _ENDS)
        if code is None:
            await self.kill(process)
            raise Broken(f"it did not end within {_ENDS:g} s of SIGTERM")
        return code

    async def ended(self, process: asyncio.subprocess.Process, within: float) -> int | None:
        """Return the exit code of a process that ends by itself; None when it has not within some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                return await process.wait()
        return None

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        """End a process without a warning."""
        self._running.discard(process)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def close(self) -> None:
        """End all processes and remove the file of their output."""
        for process in self._started:
            await self.kill(process)
        self._log.unlink(missing_ok=True)


class Scene:
    """A program under test, and what the kit plays around it.

    Attributes:
        has_begun: whether the program has registered, or published a request.

    Args:
        settings: the server and namespace, which belong to the kit.
        probe: says anything to the server.
        program: the command that starts a process.
    """

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        self.settings = settings
        self.probe = probe
        self.program = program
        self.keys = probe.keys
        self.has_begun = False
        self.queue, self.fence = self.keys.queue(SERVICE), self.keys.fence(SERVICE)
        self.port = int(settings.url.rpartition(":")[2].partition("/")[0])

    async def prepare(self) -> None:
        """Have the program running.

        Raises:
            Broken: it does not start.
        """
        raise NotImplementedError

    async def finish(self, *, held: bool) -> None:
        """Leave nothing of a check behind that the next one could take for a fault."""
        raise NotImplementedError

    def forget_frames(self) -> None:
        """Forget the frames that were seen until now."""
        raise NotImplementedError

    def seen(self) -> tuple[str, ...]:
        """Return the last frames that were seen, as JSON that is short enough to read."""
        raise NotImplementedError

    def url_of(self, proxy: Proxy) -> str:
        """Return the URL by which a program comes to the server through a proxy."""
        return self.settings.url.replace(f":{self.port}", f":{proxy.port}")

    async def exists(self, key: str) -> bool:
        """Return whether the server has a key."""
        return bool(await self.probe.run("EXISTS", key))

    async def waits(self, entry: str) -> bool:
        """Return whether an entry is in the queue."""
        return bool(await self.probe.run("XRANGE", self.queue, entry, entry))


async def run_checks(
    kind: type[C],
    requirements: Sequence[Requirement[C]],
    command: Sequence[str],
    report: Callable[[Outcome], object],
    *,
    whole: bool = True,
) -> list[Outcome]:
    """Check what a program keeps, in two scenes beside each other, each with a server of its own, since checks wait most of the time.

    Args:
        kind: of program.
        requirements: in their order. One scene begins with the first, the other with the last of them.
        command: starts the program.
        report: called with the outcomes in the same order, each as soon as it and those before it have come.
        whole: whether they are all of a level. Then a program that does not even begin in the first one is checked no further, since each
            check would wait for it.

    Raises:
        ConfigurationError: the command can't be started.
    """
    waiting = deque(requirements)
    found: dict[str, Outcome] = {}
    told: list[Outcome] = []

    async def check(scene: C, required: Requirement[C], blocked: str = "") -> Outcome:
        outcome = found[required.id] = await _outcome_of(required, scene, blocked or required.unchecked)
        while len(told) < len(requirements) and (following := requirements[len(told)].id) in found:
            told.append(found[following])
            report(told[-1])
        return outcome

    async def check_on(scene: C, blocked: str) -> None:
        while waiting:
            await check(scene, waiting.popleft(), blocked)

    async def check_from_the_end() -> None:
        async with _scene_of(kind, command, folder) as beside:
            while waiting:
                await check(beside, waiting.pop())

    with tempfile.TemporaryDirectory(prefix="toolbus-scripts-") as folder:
        scripts.write_scripts(Path(folder))
        async with _scene_of(kind, command, folder) as scene:
            first = await check(scene, waiting.popleft())
            blocked = f"{first.id} is broken" if whole and first.status == "broken" and not scene.has_begun else ""
            tasks = [asyncio.create_task(check_on(scene, blocked))]
            if len(waiting) > 1 and not blocked:
                tasks.append(asyncio.create_task(check_from_the_end()))
            try:
                await asyncio.gather(*tasks)
            finally:
                await cancelled(*tasks)
    return told


@contextlib.asynccontextmanager
async def _scene_of(kind: type[C], command: Sequence[str], folder: str) -> AsyncIterator[C]:
    """Serve a scene with a server of its own, and end the program with it.

    Args:
        kind: of program.
        command: starts the program.
        folder: with the scripts.
    """
    with EmbeddedServer() as server:
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
                yield kind(settings, probe, program)
        finally:
            await program.close()


async def _outcome_of(required: Requirement[C], scene: C, blocked: str) -> Outcome:
    """Check one requirement, unless something keeps that from being done."""
    outcome = functools.partial(Outcome, required.id, required.level, required.name, required.meaning)
    if required.run is None or blocked:
        return outcome("not checked", blocked)
    status: Status = "holds"
    problem, begun = "", time.monotonic()
    scene.program.forget_output()
    scene.forget_frames()
    exit_code: int | None = None
    try:
        async with asyncio.timeout(MOST):
            await scene.prepare()
            await required.run(scene)
    except Broken as broken:
        status, problem = "broken", str(broken)
    except NotChecked as reason:
        status, problem = "not checked", str(reason)
    except TimeoutError:
        status, problem = "broken", f"the check was not over after {MOST:g} s"
    except BrokerError as error:
        status, problem = "broken", f"the server refused a command: {error}"
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        # A program under test may send anything.
        status, problem = "broken", f"what it sent has another form than docs/protocol.md says: {error!r}"
    finally:
        exit_code = scene.program.exit_code()
        await scene.finish(held=status != "broken")
    frames, output = (scene.seen(), scene.program.output()) if status == "broken" else ((), "")
    return outcome(status, _short(problem, _MOST_SHOWN), frames, output, exit_code, time.monotonic() - begun)


def _short(text: str, most: int) -> str:
    """Return a text that is short enough to read, and that UTF-8 can express: halves of surrogate pairs are written out."""
    whole = text[:most].encode("utf-8", "backslashreplace").decode()
    return whole if len(text) <= most else f"{whole}… ({len(text):,} characters)"


def fields_of(answer: Any) -> dict[bytes, bytes]:
    """Return the fields of an answer, which is a map in RESP3, and a list of names and values in RESP2."""
    return answer if isinstance(answer, dict) else dict(zip(answer[::2], answer[1::2], strict=True))


def shown(documents: Sequence[object]) -> tuple[str, ...]:
    """Return the last documents as JSON that is short enough to read."""
    return tuple(_short(json.dumps(each, ensure_ascii=False), _MOST_WIDE) for each in documents[-_MOST_FRAMES:])
