"""Run containers: an image, or one that is built from a folder, whose program answers over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolbus.bus.values.results import ToolResult
from toolbus.platform.backends import program
from toolbus.platform.backends.containers import (
    CliFailed,
    ContainerCli,
    Images,
    Ports,
    create_words,
    image_of,
    labels_of,
    ports_of,
    remove_left,
)
from toolbus.platform.backends.http.calls import Endpoint, HttpCalls
from toolbus.platform.backends.marks import LOOPBACK
from toolbus.platform.backends.marks import Ports as FreePorts
from toolbus.platform.backends.runner import CannotStart, Line, Output
from toolbus.platform.records import RecordedTool, ToolSource

_IN_USE = ("port is already allocated", "address already in use")
_NO_BRIDGE = (
    "its container has no network, so that nobody can call it: the daemon of this host has no bridge (`docker network ls` lists none);"
    ' start the daemon with one, or give the source the network "host"'
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
_CONNECT = 2.0
_HEALTHY_WITHIN = 5.0
# The command line and the daemon are slower than the kernel to tell that a program has died.
_TOLD_WITHIN = 1.0
# Times that a container is followed again when the daemon has let go of it.
_MOST_FOLLOWS = 20


class Container:
    """One container; ``started`` makes it run.

    Args:
        cli: by which it is controlled.
        name: of the container.
        line: takes in each line of its output.
    """

    def __init__(self, cli: ContainerCli, name: str, line: Line) -> None:
        self.cli = cli
        self.name = name
        self.pid = 0
        self.ending = ""
        self._line = line
        self._output: program.Program | None = None
        self._life: asyncio.Task[None] | None = None
        self._wanted: list[tuple[str, asyncio.Event]] = []

    async def start(self) -> None:
        """Start it, and follow its output.

        Raises:
            CannotStart: the system can't start any program.
        """
        # Attached from the start on, so that no line is lost.
        words = [self.cli.path, "start", "--attach", self.name]
        self._output = await program.start(words, Path("/"), self.cli.environment(), self._take)
        self._life = asyncio.create_task(self._follow(self._output), name="toolbus-container")

    async def ended(self) -> None:
        """Wait until it has ended."""
        if self._life is not None:
            await asyncio.wait((self._life,))

    @property
    def last_words(self) -> str:
        """The last lines that it has written, in one."""
        return self._output.last_words if self._output else ""

    @property
    def is_ended(self) -> bool:
        """True once it has ended."""
        return self._life is None or self._life.done()

    async def state(self) -> dict[str, Any]:
        """Return its state as the daemon tells it; empty when it is gone.

        Raises:
            CliFailed: the daemon does not answer.
        """
        found = await self.cli.inspect(self.name)
        state: dict[str, Any] = found[0].get("State") or {} if found else {}
        self.pid = int(state.get("Pid") or 0) if state.get("Running") else self.pid
        return state

    async def is_cut_off(self) -> bool:
        """Return whether it runs in no network, so that nobody can reach its ports."""
        try:
            found = await self.cli.inspect(self.name)
        except CliFailed:
            return False
        networks: dict[str, Any] = (found[0].get("NetworkSettings") or {}).get("Networks") or {} if found else {}
        return bool(networks) and not any((each or {}).get("NetworkID") for each in networks.values())

    async def wrote(self, text: str) -> None:
        """Wait until it writes a line with this text."""
        event = asyncio.Event()
        self._wanted.append((text, event))
        await event.wait()

    async def remove(self, within: float) -> None:
        """End it: ask first, kill it after ``within`` seconds; then remove it, and stop following it.

        Raises:
            CliFailed: the daemon does not answer.
        """
        if within > 0 and not self.is_ended:
            with contextlib.suppress(CliFailed):
                await self.cli.run("kill", "--signal", "TERM", self.name)
            if self._life is not None:
                await asyncio.wait((self._life,), timeout=within)
        try:
            await self.cli.run("rm", "--force", "--volumes", self.name)
        except CliFailed as error:
            if "no such container" not in error.said.lower():
                raise
        finally:
            if self._output is not None:
                await self._output.kill()
            if self._life is not None:
                self._life.cancel()
                await asyncio.wait((self._life,))

    def _take(self, text: str) -> None:
        for wanted, event in self._wanted:
            if wanted in text:
                event.set()
        self._line(text)

    async def _follow(self, output: program.Program) -> None:
        for _ in range(_MOST_FOLLOWS):
            await output.ended()
            try:
                state = await self.state()
            except CliFailed as error:
                self.ending = str(error)
                return
            if not state.get("Running"):
                self.ending = _ending(state, output)
                return
            # The daemon was restarted, and the container has survived that.
            words = [self.cli.path, "attach", "--no-stdin", "--sig-proxy=false", self.name]
            self._output = output = await program.start(words, Path("/"), self.cli.environment(), self._take)
        self.ending = "its output can't be followed any more"


class DockerInstance:
    """One running container."""

    def __init__(self, runner: DockerRunner, container: Container, source: ToolSource, ports: Ports, free: int, calls: HttpCalls) -> None:
        self._runner = runner
        self._container = container
        self._source = source
        self._free = free
        self._calls = calls
        self.pid = container.pid
        self.port = ports.outside

    async def call(self, arguments: dict[str, Any], output: Output, *, user: str = "", deadline: float = 0.0) -> ToolResult:
        """Run one call."""
        return await self._calls.call(arguments, output, user=user, deadline=deadline)

    async def health(self, *, answered: bool = False) -> str:
        """Return why it is not well."""
        if self._container.is_ended:
            return self._container.ending or "it has ended"
        if answered:
            return await self._calls.answers(_HEALTHY_WITHIN)
        kind, _, path = self._source.ready.partition(":")
        if kind == "path":
            return await self._calls.get(path, _HEALTHY_WITHIN)
        return "" if await _connects(self.port) else f"nothing listens on its port {self.port}"

    async def unfinished(self) -> int:
        """Return how many calls it goes on with although their connections were closed."""
        return await self._calls.unfinished()

    async def ended(self) -> str:
        """Wait until it has ended by itself."""
        await self._container.ended()
        return self._container.ending or "it has ended"

    async def stop(self, within: float) -> None:
        """End and remove it."""
        await self._calls.aclose()
        await self._runner.remove(self._container, self._free, within)


class DockerRunner:
    """Starts containers.

    Args:
        host: id of the host that they belong to.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._ports = FreePorts()
        self._cli: ContainerCli | None = None
        self._images: Images | None = None
        self._kept: set[str] = set()

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> DockerInstance:
        """Start a container, and return when its program is ready."""
        cli, images = self._tools()
        image = image_of(source, tool.tool_id)
        free = self._ports.take()
        name = f"toolbus-{re.sub(r'[^A-Za-z0-9_.-]', '-', tool.tool_id)[:60]}-{secrets.token_hex(6)}"
        container = Container(cli, name, line)
        try:
            ports = ports_of(source, free)
            labels = labels_of(self._host, tool.tool_id)
            words, variables = create_words(source, image, name, ports, labels, cli)
            _check_free(ports)
            await images.have(image, source.host_dir, line)
            self._kept.add(name)
            return await self._start(container, words, variables, tool, source, ports, free)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.remove(container, free, 0.0)))
            raise

    async def clean(self) -> list[str]:
        """Remove the containers of dead hosts."""
        try:
            cli, _ = self._tools()
            return await remove_left(cli, self._host, self._kept)
        except CannotStart:
            # Where no daemon answers, no container runs.
            return []

    async def aclose(self) -> None:
        """Close nothing: containers share nothing."""

    async def remove(self, container: Container, free: int, within: float) -> None:
        """Remove a container; one that can't be removed now is removed by ``clean``."""
        try:
            if container.name in self._kept:
                with contextlib.suppress(CliFailed):
                    await container.remove(within)
        finally:
            self._kept.discard(container.name)
            self._ports.give_back(free)

    def _tools(self) -> tuple[ContainerCli, Images]:
        if self._cli is None or self._images is None:
            self._cli = ContainerCli.found()
            self._images = Images(self._cli)
        return self._cli, self._images

    async def _start(
        self,
        container: Container,
        words: list[str],
        variables: Mapping[str, str],
        tool: RecordedTool,
        source: ToolSource,
        ports: Ports,
        free: int,
    ) -> DockerInstance:
        await container.cli.run(*words, more=variables)
        await container.start()
        endpoint = Endpoint(
            base=f"http://{LOOPBACK}:{ports.outside}",
            method=source.http_method.upper(),
            path=source.endpoint_path,
            shown=tool.tool_id,
            streams=tool.meta.stream_support,
            once=tool.running.effect == "once",
            tells_user=True,
        )
        calls = HttpCalls(endpoint, ended=container.ended, told_within=_TOLD_WITHIN)
        try:
            await _ready(container, source, ports, calls)
            await container.state()
        except BaseException:
            await calls.aclose()
            raise
        return DockerInstance(self, container, source, ports, free, calls)


async def _ready(container: Container, source: ToolSource, ports: Ports, calls: HttpCalls) -> None:
    """Wait until a container's program is ready.

    Raises:
        CannotStart: it ended before, or is not ready in time.
    """
    waiting = asyncio.create_task(_answers(container, source, ports, calls))
    ending = asyncio.create_task(container.ended())
    try:
        async with asyncio.timeout(source.ready_within):
            await asyncio.wait((waiting, ending), return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        if ports.published and await container.is_cut_off():
            raise CannotStart(_NO_BRIDGE, permanent=True) from None
        where = f"port {ports.inside}" if source.ready == "port" else source.ready
        said = f"; it last wrote: {container.last_words}" if container.last_words else "; it wrote nothing"
        raise CannotStart(f"its container was not ready within {source.ready_within:g} s ({where}){said}") from None
    finally:
        for task in (waiting, ending):
            task.cancel()
        await asyncio.gather(waiting, ending, return_exceptions=True)
    if container.is_ended:
        raise CannotStart(f"its container ended at once: {container.ending}")


async def _answers(container: Container, source: ToolSource, ports: Ports, calls: HttpCalls) -> None:
    kind, _, what = source.ready.partition(":")
    if kind == "log":
        await container.wrote(what)
        return
    pause = _FIRST_PAUSE
    while not await _connects(ports.outside) or (kind == "path" and await calls.get(what, _CONNECT)):
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)


async def _connects(port: int) -> bool:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_CONNECT):
            _, writer = await asyncio.open_connection(LOOPBACK, port)
        writer.close()
        return True
    return False


def _check_free(ports: Ports) -> None:
    """Make sure that nobody has a port that was not chosen by us.

    Raises:
        CannotStart: somebody has.
    """
    taken = [int(each.split(":")[1]) for each in ports.published if not each.endswith("/udp")] or [ports.outside]
    for port in taken:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((LOOPBACK, port))
            except OSError as error:
                raise CannotStart(f"port {port} can't be had ({error.strerror}): end what uses it, or change the source's ports") from None


def _ending(state: Mapping[str, Any], output: program.Program) -> str:
    """Return why a container has ended, in one line."""
    said = output.last_words
    if state.get("OOMKilled"):
        how = "it was killed because it used more memory than it may"
    elif not state:
        how = "it was removed"
    elif error := str(state.get("Error") or ""):
        taken = any(each in (error + said).lower() for each in _IN_USE)
        how = "its port is in use: end what uses it, or change the source's ports" if taken else f"it can't be started: {error[:300]}"
    else:
        how = f"it ended with exit code {state.get('ExitCode', 0)}"
    return f"{how}: {said}" if said and not state.get("Error") else how


async def make_runner(host: str) -> DockerRunner:
    """Return the runner of a host."""
    return DockerRunner(host)
