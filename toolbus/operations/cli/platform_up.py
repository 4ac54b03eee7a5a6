"""``platform up``: everything of the platform in one process tree."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

import click

from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.process.lifeline import Told
from toolbus.bus.worker.process.supervisor import Supervisor
from toolbus.operations.cli.command import Folder, Grace, Lifeline, Port, Probes, command, option, setting
from toolbus.operations.cli.common import GATEWAY_PORT, environment_of, needs_gateway, serving_settings, settings_with_server
from toolbus.operations.cli.output import Failure, complain, fail, say
from toolbus.operations.cli.serve import serve_command
from toolbus.operations.cli.serving import announced, end_with, refusals, retire

if TYPE_CHECKING:
    from toolbus.bus.broker.embedded import EmbeddedServer

_DEFAULT_PORT = 6379


def at_port(settings: Settings, port: int | None) -> Settings:
    """Return settings whose server is at a port of this machine; at a free one for 0, as they are for None."""
    if port is None:
        return settings
    from toolbus.bus.broker.embedded import free_port

    port = port or free_port()
    return Settings.load({}, base=settings, url=f"redis://127.0.0.1:{port}")


def find_server(settings: Settings, stack: contextlib.ExitStack, data: Path | None = None) -> EmbeddedServer | None:
    """Use the server that the URL names, or start one there and return it.

    Args:
        settings: of the command.
        stack: ends the server.
        data: the folder in which a server that is started here keeps its data; None keeps it in memory only.
    """
    from toolbus.bus.broker.embedded import EmbeddedServer
    from toolbus.bus.values.urls import redact

    if not settings.url.startswith(("redis://", "rediss://")):
        say(f"using the server of {redact(settings.url)}")
        return None
    address = urlsplit(settings.url)
    host, port = address.hostname or "127.0.0.1", address.port or _DEFAULT_PORT
    if _answers(host, port):
        unused = "" if data is None else "; it keeps its own data, and --data is for a server that is started here"
        say(f"using the server at {host}:{port}{unused}")
    elif host not in {"127.0.0.1", "localhost", "::1"}:
        fail(f"no server answers at {host}:{port}, and a server can only be started on this machine; unset TOOLBUS_URL or leave --url out")
    elif address.scheme == "rediss":
        fail(f"no server answers at {host}:{port}, and a server started here has no TLS; write redis:// instead of rediss://")
    else:
        server = stack.enter_context(EmbeddedServer(port, data_dir=data, appendonly=data is not None))
        say(f"started a server on 127.0.0.1:{port}; it keeps its data in {'memory only' if data is None else data}")
        return server
    return None


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


class Part(NamedTuple):
    """One command of the tree.

    Attributes:
        name: for people.
        words: the command and its arguments, after ``toolbus``.
        descriptors: files that it inherits.
    """

    name: str
    words: tuple[str, ...]
    descriptors: tuple[int, ...] = ()


class Ended(Exception):
    """A part of the tree can't serve; the text says which one and why."""


class Tree:
    """Keeps each part alive: one that has served and dies is started again, after a pause that grows.

    A part that refuses to serve from the start ends all, since the same start would be refused again.

    Args:
        environment: of every part.
        grace: seconds that a part may take to finish its work.
        retire: gives what a dead part held to others, by the ids that it has told.
    """

    def __init__(self, environment: Mapping[str, str], *, grace: float, retire: Callable[[Told], Awaitable[object]]) -> None:
        self._environment = environment
        self._grace = grace
        self._retire = retire
        self._running: list[tuple[Part, Supervisor, asyncio.Task[int]]] = []
        self._complaints: dict[str, str] = {}
        self._failed = asyncio.Event()

    async def start(self, parts: Sequence[Part]) -> None:
        """Start parts, and return when all of them serve.

        Raises:
            Ended: one can't.
        """
        serving = [self._begin(part) for part in parts]
        failing = asyncio.create_task(self._failed.wait())
        try:
            for each in serving:
                await asyncio.wait({asyncio.ensure_future(each.wait()), failing}, return_when=asyncio.FIRST_COMPLETED)
                self._check()
        finally:
            failing.cancel()

    async def until_failed(self) -> None:
        """Wait until a part can't serve any more.

        Raises:
            Ended: says why.
        """
        await self._failed.wait()
        self._check()

    async def stop(self) -> None:
        """End the parts, the latest first; each ends before the next one is told."""
        while self._running:
            _, supervisor, task = self._running.pop()
            supervisor.stop()
            await task

    def _begin(self, part: Part) -> asyncio.Event:
        serving = asyncio.Event()
        supervisor = Supervisor(
            [sys.executable, "-m", "toolbus", *part.words],
            self._environment,
            processes=1,
            grace=self._grace,
            retire=self._retire,
            complain=lambda text: self._complain(part, text, is_known=serving.is_set()),
            on_serving=serving.set,
            descriptors=part.descriptors,
        )
        task = asyncio.create_task(supervisor.supervise(), name=part.name)
        task.add_done_callback(lambda _: self._failed.set())
        self._running.append((part, supervisor, task))
        return serving

    def _complain(self, part: Part, text: str, *, is_known: bool) -> None:
        self._complaints[part.name] = text
        if is_known:
            complain(f"the {part.name} can't start again, and is tried further: {text}")

    def _check(self) -> None:
        for part, _, task in self._running:
            if task.done():
                raise Ended(self._complaints.get(part.name) or f"the {part.name} has ended; its output says why")


_POLL = 0.2
_IM = "TOOLBUS_IM_"


@command("up")
def up_command(
    http_port: Annotated[
        int, option("Port of the gateway; 0 for a free one.", type=Port, default=GATEWAY_PORT, envvar="TOOLBUS_GATEWAY_PORT")
    ],
    server_port: Annotated[
        int | None,
        option(
            f"Port of this machine at which a server is started, or found, in place of --url; 0 for a free one. [default: {_DEFAULT_PORT}]",
            type=Port,
        ),
    ],
    folder: Annotated[Path | None, option("Record the tools of this folder's files first.", "--import", type=Folder)],
    data: Annotated[Path | None, option("Folder in which a server that is started here keeps its data.", type=Folder)],
    labels: Annotated[tuple[str, ...], option("A label of the host (may be repeated).", "--label")],
    allowed: Annotated[tuple[str, ...], option("Let APIs be at this host although it is not public.", "--allow-host", metavar="HOST")],
    auto_approve: Annotated[bool, option("Serve tools that the coding agent writes without a person's approval.")],
) -> None:
    """Start the platform: gateway, host, service agent, coding agent, messenger.

    They use the server of --url (TOOLBUS_URL), or one that is started here. The two agents need an endpoint of a model (OPENAI_API_KEY,
    OPENAI_MODEL, OPENAI_BASE_URL); without one the rest runs. The messenger is connected when TOOLBUS_IM_SERVER and TOOLBUS_IM_CONTACT
    are set. A part that dies is started again. Ctrl-C ends everything, in order.

    \b
    Examples:
      toolbus platform up
      toolbus platform up --import tools/ --data ~/toolbus-data --label gpu
    """
    context = click.get_current_context()
    given = context.find_root().obj or {}
    if server_port is not None and given.get("url"):
        raise click.UsageError("give --url or --server-port, not both")
    settings = at_port(settings_with_server(), server_port)
    if server_port is not None:
        context.find_root().obj = {**given, "url": settings.url}
    with contextlib.ExitStack() as stack:
        place = gateway_place(stack, http_port)
        server = find_server(settings, stack, data)
        if folder is not None:
            _import(folder)
        environment = environment_of(settings)
        if auto_approve:
            environment["TOOLBUS_CODING_AUTO_APPROVE"] = "true"
        # Folders in the files are relative to where the command runs, or to the files.
        folders = () if folder is None else (Path.cwd(), folder)
        of_host, _ = host_command.words({**context.params, "folders": folders})
        parts = list(_parts(place, environment, of_host))
        try:
            asyncio.run(_run(settings, server, place, environment, parts))
        except Ended as error:
            fail(str(error))


def _import(folder: Path) -> None:
    """Record the tools of a folder's files; what is wrong with them is told, and the rest is there."""
    from toolbus.operations.cli.platform import import_command

    try:
        click.get_current_context().invoke(import_command, folder=folder, output="text")
    except Failure as error:
        error.show()


def gateway_place(stack: contextlib.ExitStack, port: int) -> socket.socket:
    """Return where the gateway listens; fail when it can't listen there, or its packages are missing."""
    try:
        from toolbus.edges.gateway.serving import listen
    except ImportError as error:
        fail(needs_gateway(error))
    try:
        return stack.enter_context(listen("127.0.0.1", port))
    except ConfigurationError as error:
        fail(f"{str(error).partition(';')[0]}; choose another port with --http-port")


def _parts(place: socket.socket, environment: Mapping[str, str], of_host: list[str]) -> Iterator[Part]:
    """Yield what is to run, in the order in which it starts; what is left out is said."""
    yield Part("host", ("platform", "host", *of_host))
    if wrong := _no_model(environment):
        say(f"no agents: {wrong}", err=True)
    else:
        yield Part("coding agent", ("worker", "coding-agent"))
        yield Part("service agent", ("worker", "service-agent"))
    of_gateway, _ = serve_command.words({"listening": place.fileno()})
    yield Part("gateway", ("serve", *of_gateway), (place.fileno(),))
    given = {name: environment.get(f"{_IM}{name}", "") for name in ("SERVER", "CONTACT")}
    missing = [f"{_IM}{name}" for name, value in given.items() if not value]
    if not missing:
        yield Part("messenger", ("platform", "im"))
    elif len(missing) < len(given):
        say(f"no messenger: {missing[0]} is not set", err=True)


def _no_model(environment: Mapping[str, str]) -> str:
    """Return why no model can be asked; empty when one can."""
    if importlib.util.find_spec("httpx") is None:
        return "they need httpx: pip install 'toolbus[platform]'"
    from toolbus.agent.endpoint import missing

    return missing(environment).replace("pass --model or ", "")


async def _run(
    settings: Settings, server: EmbeddedServer | None, place: socket.socket, environment: Mapping[str, str], parts: list[Part]
) -> None:
    tree = Tree(environment, grace=settings.grace, retire=lambda told: retire(settings, told))
    async with _stopped() as stopped:
        working = asyncio.create_task(_serve(tree, parts, place, server))
        waiting = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                await working
        finally:
            waiting.cancel()
            working.cancel()
            if stopped.is_set():
                # Nobody reads this after a hang-up.
                with contextlib.suppress(OSError):
                    say("\nstopping")
            await tree.stop()
            await asyncio.gather(working, waiting, return_exceptions=True)


async def _serve(tree: Tree, parts: list[Part], place: socket.socket, server: EmbeddedServer | None) -> None:
    await tree.start(parts)
    address = "http://{}:{}".format(*place.getsockname())
    names = ", ".join(part.name for part in parts)
    agents = any(part.name == "service agent" for part in parts)
    following = "`toolbus platform chat`" if agents else "`toolbus platform import DIR`"
    say(f"ready at {address}/ ({names}); next: {following}, or `curl {address}/tools`; Ctrl-C ends everything")
    failing = asyncio.create_task(tree.until_failed())
    try:
        while not failing.done():
            if server is not None and not server.running:
                raise Ended("the server that this command had started has ended; start `toolbus platform up` again")
            await asyncio.wait({failing}, timeout=_POLL)
        await failing
    finally:
        failing.cancel()


@contextlib.asynccontextmanager
async def _stopped() -> AsyncIterator[asyncio.Event]:
    """Return an event that SIGINT, SIGTERM and a hang-up set."""
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    # Under nohup a hang-up is to be ignored.
    hang_up = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    numbers = (signal.SIGINT, signal.SIGTERM, *hang_up)
    for number in numbers:
        loop.add_signal_handler(number, event.set)
    try:
        yield event
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


# Calls wait here, at no cost, until a program has started; those of one tool must not keep others from running.
_CONCURRENCY = 1_000


@command("host")
def host_command(
    labels: Annotated[tuple[str, ...], option("Also run sources that name this label (may be repeated).", "--label", metavar="LABEL")],
    name: Annotated[str, option("Begins the id of the host, instead of the machine's name.", default="")],
    folders: Annotated[
        tuple[Path, ...],
        option(
            "Look for relative folders of sources here (may be repeated; the working directory).",
            "--folder",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
        ),
    ],
    concurrency: Annotated[int | None, option(f"Calls that run or wait here at once ({_CONCURRENCY:,}).", type=click.IntRange(1))],
    grace: Grace,
    lease: Annotated[float | None, setting("lease", "Seconds after which another host takes over from a dead one")],
    allowed: Annotated[tuple[str, ...], option("Let APIs be at this host although it is not public.", "--allow-host", metavar="HOST")],
    probes: Probes,
    lifeline: Lifeline,
) -> None:
    """Serve the recorded tools that this machine may run.

    Programs and containers are started when a tool is first called, watched, and stopped when nobody calls it. Tools come and go as
    records do (`toolbus platform`). A source that names hosts runs at those with one of its labels, any other source at every host.

    SIGTERM and Ctrl-C take the host's tools out of the registry, let running calls finish, stop the programs, and exit with 0.

    \b
    Examples:
      toolbus platform host
      toolbus platform host --label gpu --label eu
      toolbus platform host --name workshop --allow-host localhost:8080
    """
    from toolbus.bus.worker.process.event_loop import run_loop

    settings = serving_settings("host", concurrency=concurrency or _CONCURRENCY, grace=grace, lease=lease)

    async def serve() -> None:
        from toolbus.bus.worker.process.probes import ProbedWorker
        from toolbus.platform.host.host import Host

        host = Host(settings, labels=labels, name=name, allowed=allowed, folders=folders)
        end_with(lifeline, settings)
        async with announced(lambda: ProbedWorker(host.worker), probes, lifeline, quiet=lifeline is not None) as (serving, stopping):
            await host.run(lambda: serving(instance=host.worker.instance, host=host.id), stopping)

    with refusals(lifeline):
        run_loop(serve)
    sys.exit(0)
