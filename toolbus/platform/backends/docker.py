"""Run containers: an image, or one that is built from a folder, whose program answers over HTTP."""

from __future__ import annotations

import re
import secrets
import socket
from functools import cached_property

from toolbus.platform.backends import containers, marks
from toolbus.platform.backends.instances import NotReady, ProgramInstance, Readiness, calls_of, held, until_ready
from toolbus.platform.backends.runner import CannotStart, Line, Runner, impossible
from toolbus.platform.records import RecordedTool, ToolSource

_NO_BRIDGE = (
    "its container has no network, so that nobody can call it: the daemon of this host has no bridge (`docker network ls` lists none);"
    ' start the daemon with one, or give the source the network "host"'
)
# The command line and the daemon are slower than the kernel to tell that a program has died.
_TOLD_WITHIN = 1.0


class DockerRunner(Runner):
    """Starts containers.

    Args:
        host: id of the host that they belong to.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._ports = marks.Ports()
        self._kept: set[str] = set()

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> ProgramInstance:
        """Start a container, and return when its program is ready."""
        cli, images = self._tools
        image = containers.image_of(source, tool.tool_id)
        name = f"toolbus-{re.sub(r'[^A-Za-z0-9_.-]', '-', tool.tool_id)[:60]}-{secrets.token_hex(6)}"
        async with held() as release:
            free = self._ports.take()
            release.callback(self._ports.give_back, free)
            ports = containers.ports_of(source, free)
            words, variables = containers.create_words(source, image, name, ports, containers.labels_of(self._host, tool.tool_id), cli)
            _check_free(ports)
            await images.have(image, source.host_dir, line)
            readiness = Readiness(source, ports.outside, shown=ports.inside)
            container = containers.Container(cli, name, readiness.seeing(line))
            self._kept.add(name)
            # One that can't be removed now is removed by ``clean``.
            release.callback(self._kept.discard, name)
            release.push_async_callback(container.stop, 0.0)
            await cli.run(*words, more=variables)
            await container.start()
            calls = calls_of(tool, source, ports.outside, container, _TOLD_WITHIN)
            release.push_async_callback(calls.aclose)
            try:
                await until_ready("its container", container, readiness, calls, source.ready_within)
            except NotReady:
                if ports.published and await container.is_cut_off():
                    raise impossible(_NO_BRIDGE) from None
                raise
            if container.is_ended:
                raise CannotStart(f"its container ended at once: {container.ending}")
            await container.state()
        return ProgramInstance(container, calls, readiness, release)

    async def clean(self) -> list[str]:
        """Remove the containers of dead hosts."""
        try:
            cli, _ = self._tools
            return await containers.remove_left(cli, self._host, self._kept)
        except CannotStart:
            # Where no daemon answers, no container runs.
            return []

    @cached_property
    def _tools(self) -> tuple[containers.ContainerCli, containers.Images]:
        cli = containers.ContainerCli.found()
        return cli, containers.Images(cli)


def _check_free(ports: containers.Ports) -> None:
    """Make sure that nobody has a port that was not chosen by us.

    Raises:
        CannotStart: somebody has.
    """
    taken = [int(each.split(":")[1]) for each in ports.published if not each.endswith("/udp")] or [ports.outside]
    for port in taken:
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((marks.LOOPBACK, port))
            except OSError as error:
                raise CannotStart(f"port {port} can't be had ({error.strerror}): end what uses it, or change the source's ports") from None
