"""Measure gateways side by side: the same two tools through each, started as its documentation says, in rounds in which they take turns.

Clients write requests by hand, so that the gateways are the slowest part. Rates are also given for a second of processor time that all
processes of a contestant took together, its tools and its stores with it: what a whole core does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.mcp_server import OLDER, hello, post
from benchmarks.peers import PeerSpec, environment, install
from benchmarks.processes import Child, child
from benchmarks.servers import free_port, redis_server

NAP = 0.05
OPERATIONS: dict[str, dict[str, Any]] = {"echo": {"text": "x" * 200}, "nap": {"seconds": NAP}}
READY_SECONDS = 90.0
ANSWER_SECONDS = 60.0

_FASTMCP = PeerSpec("fastmcp", "fastmcp_app", "none", "peer", "", ("fastmcp==4.2.3",))
# The newest that runs on every Python that toolbus runs on.
_FORGE = PeerSpec("context-forge", "", "none", "peer", "", ("mcp-contextforge-gateway==1.0.7.post20260921",))
_FASTAPI = PeerSpec("fastapi", "", "none", "peer", "", ("fastapi==0.165.0", "uvicorn==0.54.0", "httptools==0.9.0", "uvloop==0.23.0"))
_TOOLBUS = PeerSpec("toolbus", "", "redis", "self", "")


@dataclass(frozen=True)
class Place:
    """The address of a contestant.

    Attributes:
        port: on the loopback interface.
        path: of MCP requests; with ``{tool}`` for a plain ``POST`` whose body has the arguments.
        headers: further lines of each request's head.
        prefix: what stands before the names of tools.
        children: its processes.
    """

    port: int
    path: str = "/mcp"
    headers: str = ""
    prefix: str = ""
    children: list[Child] = field(default_factory=list)

    @property
    def is_mcp(self) -> bool:
        """Return whether it speaks MCP."""
        return "{tool}" not in self.path

    def cpu(self) -> float:
        """Return the processor seconds of all its processes so far."""
        return sum(each.cpu() for each in self.children)

    def megabytes(self) -> float:
        """Return the memory of all its processes, in which what they share counts once."""
        return sum(each.memory() for each in self.children) / 1e6


Starter = Callable[[contextlib.ExitStack, Path], Place]


@dataclass(frozen=True)
class Contestant:
    """One way to reach the tools.

    Attributes:
        spec: its environment and version.
        start: starts its processes, which end with the stack.
        configuration: for the report.
    """

    name: str
    spec: PeerSpec
    start: Starter
    configuration: str


@dataclass(frozen=True)
class Window:
    """One window of load on one contestant; times are in ms."""

    contestant: str
    operation: str
    round: int
    rate: float
    per_core: float
    p50: float
    p99: float
    megabytes: float
    failed: int
    first_error: str


def _begin(stack: contextlib.ExitStack, name: str, command: Sequence[str], variables: dict[str, str] | None = None) -> Child:
    env = {**environment("shipped"), **(variables or {})}
    return stack.enter_context(child(name, list(command), env=env))


def _beside(spec: PeerSpec, program: str) -> str:
    return str(spec.python.with_name(program))


def _fastmcp(stack: contextlib.ExitStack, folder: Path) -> Place:
    return _run_fastmcp(stack, "benchmarks/adapters/fastmcp_app.py")


def _fastmcp_proxy(stack: contextlib.ExitStack, folder: Path) -> Place:
    tools = _fastmcp(stack, folder)
    _wait(tools)
    proxy = _run_fastmcp(stack, f"http://127.0.0.1:{tools.port}/mcp")
    return replace(proxy, children=[*proxy.children, *tools.children])


def _run_fastmcp(stack: contextlib.ExitStack, what: str) -> Place:
    port = free_port()
    words = [_beside(_FASTMCP, "fastmcp"), "run", what, "--transport", "http", "--port", str(port), "--no-banner"]
    return Place(port, children=[_begin(stack, "fastmcp", words)])


def _context_forge(stack: contextlib.ExitStack, folder: Path) -> Place:
    tools = _fastmcp(stack, folder)
    _wait(tools)
    port, secret = free_port(), "".join(random.choices("abcdefghijkmnpqrstuvwxyz23456789", k=48))
    variables = {
        "JWT_SECRET_KEY": secret,
        "AUTH_ENCRYPTION_SECRET": secret[::-1],
        "PLATFORM_ADMIN_EMAIL": "admin@example.com",
        "PLATFORM_ADMIN_PASSWORD": f"Aa1!{secret}",
        "BASIC_AUTH_PASSWORD": f"Bb2!{secret}",
        "DATABASE_URL": f"sqlite:///{folder}/mcp.db",
        # Else it takes no tools of this machine, and a hundred calls a minute.
        "SSRF_ALLOW_LOCALHOST": "true",
        "RATE_LIMITING_ENABLED": "false",
        "TOOL_RATE_LIMIT": "1000000",
    }
    gateway = _begin(stack, "context-forge", [_beside(_FORGE, "mcpgateway"), "--host", "127.0.0.1", "--port", str(port)], variables)
    words = ["-m", "mcpgateway.utils.create_jwt_token", "--username", "admin@example.com", "--exp", "60", "--secret", secret]
    made = _begin(stack, "context-forge's token", [str(_FORGE.python), *words], variables)
    token = ""
    while token.count(".") != 2:
        token = made.line(READY_SECONDS)
    _answers(f"http://127.0.0.1:{port}/health")
    ask = _Api(f"http://127.0.0.1:{port}", token)
    ask("/gateways", {"name": "bench", "url": f"http://127.0.0.1:{tools.port}/mcp", "transport": "STREAMABLEHTTP"})
    server = {"name": "bench", "description": "both tools", "associated_tools": [tool["id"] for tool in ask("/tools")]}
    path = f"/servers/{ask('/servers', {'server': server})['id']}/mcp"
    return Place(port, path, f"Authorization: Bearer {token}\r\n", "bench-", [gateway, *tools.children])


def _toolbus(stack: contextlib.ExitStack, folder: Path) -> Place:
    return _serve_toolbus(stack, folder, "/mcp")


def _toolbus_invoke(stack: contextlib.ExitStack, folder: Path) -> Place:
    return _serve_toolbus(stack, folder, "/v1/tools/{tool}/invoke")


def _serve_toolbus(stack: contextlib.ExitStack, folder: Path, path: str) -> Place:
    server = stack.enter_context(redis_server())
    variables, port, tokens = {"TOOLBUS_URL": server.url}, free_port(), str(folder / "tokens.json")
    toolbus = [sys.executable, "-P", "-m", "toolbus"]
    made = _begin(stack, "toolbus's token", [*toolbus, "secure", "tokens", "add", "bench", "--file", tokens], variables)
    token = made.line(READY_SECONDS)
    made.wait(READY_SECONDS)
    worker = _begin(stack, "toolbus worker", [*toolbus, "worker", "benchmarks.adapters.toolbus_tools"], variables)
    gateway = _begin(stack, "toolbus serve", [*toolbus, "serve", "--port", str(port), "--tokens", tokens], variables)
    return Place(port, path, f"Authorization: Bearer {token}\r\n", children=[gateway, worker, server.child])


def _fastapi(stack: contextlib.ExitStack, folder: Path) -> Place:
    port = free_port()
    words = [_beside(_FASTAPI, "uvicorn"), "benchmarks.adapters.fastapi_app:app", "--host", "127.0.0.1", "--port", str(port)]
    return Place(port, "/{tool}", children=[_begin(stack, "uvicorn", words)])


CONTESTANTS = {
    each.name: each
    for each in (
        Contestant(
            "toolbus", _TOOLBUS, _toolbus, '`toolbus serve --tokens`, one `toolbus worker` whose tools have `effect="read"`, one Valkey'
        ),
        Contestant(
            "context-forge",
            _FORGE,
            _context_forge,
            "`mcpgateway` with SQLite and a bearer token, a virtual server over one FastMCP server; no limit of rates",
        ),
        Contestant("fastmcp", _FASTMCP, _fastmcp, "`fastmcp run FILE --transport http`: the tools in the server's process, no tokens"),
        Contestant("fastmcp-proxy", _FASTMCP, _fastmcp_proxy, "`fastmcp run URL` before that server"),
        Contestant("toolbus-invoke", _TOOLBUS, _toolbus_invoke, "the same gateway by `POST /v1/tools/{name}/invoke`"),
        Contestant("fastapi", _FASTAPI, _fastapi, "`uvicorn` with a route for each tool, in the server's process"),
    )
}


def measure(names: Sequence[str], *, connections: int, rounds: int, seconds: float, seed: int) -> list[Window]:
    """Return a window of each operation for each contestant and round.

    Raises:
        InstallError: the environment of one can't be made.
        ChildError: one did not start.
    """
    contestants = [CONTESTANTS[name] for name in names]
    for each in contestants:
        install(each.spec)
    chance, found = random.Random(seed), []
    with contextlib.ExitStack() as stack:
        places: dict[str, Place] = {}
        for each in contestants:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toolbus-bench-")))
            places[each.name] = each.start(stack, folder)
        for place in places.values():
            _wait(place)
        for number in range(rounds):
            turns = [(name, operation) for name in names for operation in OPERATIONS]
            chance.shuffle(turns)
            for name, operation in turns:
                found.append(asyncio.run(_window(name, operation, number, places[name], connections, seconds)))
                print(f"round {number + 1}/{rounds}  {operation:<5} {name:<15} {found[-1].rate:,.0f} calls/s", flush=True)
    return found


async def _window(name: str, operation: str, number: int, place: Place, connections: int, seconds: float) -> Window:
    load = _Load(place, operation)
    async with asyncio.timeout(seconds + ANSWER_SECONDS):
        await load.begin(connections)
        if number == 0:
            # The first requests load what serves them.
            await load.run(seconds / 4)
            load.times.clear()
        used, began = place.cpu(), time.perf_counter()
        await load.run(seconds)
        took, used = time.perf_counter() - began, place.cpu() - used
    load.end()
    times, errors = sorted(load.times) or [float("nan")], load.errors
    return Window(
        contestant=name,
        operation=operation,
        round=number,
        rate=len(load.times) / took,
        per_core=len(load.times) / used,
        p50=times[len(times) // 2] * 1000,
        p99=times[int(len(times) * 0.99)] * 1000,
        megabytes=place.megabytes(),
        failed=len(errors),
        first_error=errors[0] if errors else "",
    )


class _Load:
    """Calls of one operation in closed loops, each on a connection, and if it speaks MCP in a session, of its own."""

    def __init__(self, place: Place, operation: str) -> None:
        self._place, self._operation = place, operation
        self._clients: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, str]] = []
        self.times: list[float] = []
        self.errors: list[str] = []

    async def begin(self, connections: int) -> None:
        """Connect, and begin sessions."""
        self._clients += await asyncio.gather(*(self._connect() for _ in range(connections)))

    async def run(self, seconds: float) -> None:
        """Call for so many seconds; a call that has begun is waited for."""
        until = time.perf_counter() + seconds
        await asyncio.gather(*(self._calls(client, until) for client in self._clients))

    def end(self) -> None:
        """Disconnect."""
        for _, writer, _ in self._clients:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        place = self._place
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        session = await hello(reader, writer, OLDER, place.path, place.headers) if place.is_mcp else ""
        return reader, writer, place.headers + session

    async def _calls(self, client: tuple[asyncio.StreamReader, asyncio.StreamWriter, str], until: float) -> None:
        reader, writer, more = client
        place, message = self._place, OPERATIONS[self._operation]
        expected = str(message.get("text", "slept")).encode()
        path = place.path.replace("{tool}", self._operation)
        if place.is_mcp:
            params = {"name": place.prefix + self._operation, "arguments": message}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        ended = 0.0
        try:
            while ended < until:
                began = time.perf_counter()
                _, body = await post(reader, writer, message, more, path)
                ended = time.perf_counter()
                assert expected in body, body[:200]
                assert b'"isError":true' not in body, body[:200]
                self.times.append(ended - began)
        except (AssertionError, EOFError, OSError) as error:
            self.errors.append(f"{type(error).__name__}: {error}")


class _Api:
    """Asks an HTTP API with a bearer token."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def __call__(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self._url + path, data, self._headers), timeout=30) as answer:
            return json.load(answer)


def _answers(url: str) -> None:
    _until(lambda: urllib.request.urlopen(url, timeout=5).close())


def _wait(place: Place) -> None:
    """Wait until both tools answer."""

    async def both() -> None:
        for operation in OPERATIONS:
            load = _Load(place, operation)
            await load.begin(1)
            await load.run(0.0)
            load.end()
            if load.errors:
                raise OSError(f"{operation} is answered with {load.errors[0]}")

    _until(lambda: asyncio.run(both()))


def _until(step: Callable[[], object]) -> None:
    limit = time.monotonic() + READY_SECONDS
    while True:
        try:
            step()
        except (OSError, AssertionError, EOFError):
            if time.monotonic() > limit:
                raise
            time.sleep(0.2)
        else:
            return


def table(windows: Sequence[Window]) -> list[str]:
    """Return the medians over the rounds as a table in Markdown, the contestants' configurations after it."""
    head = ("tool", "contestant", "calls/s", "calls/s of a whole core", "p50, ms", "p99, ms", "memory, MB")
    rows = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * 5]
    for operation in OPERATIONS:
        for name in dict.fromkeys(each.contestant for each in windows):
            own = [each for each in windows if (each.contestant, each.operation) == (name, operation)]
            rate, core, p50, p99, size = (
                statistics.median(getattr(each, column) for each in own) for column in ("rate", "per_core", "p50", "p99", "megabytes")
            )
            rows.append(f"| {operation} | {name} | {rate:,.0f} | {core:,.0f} | {p50:,.1f} | {p99:,.1f} | {size:,.0f} |")
    names = dict.fromkeys(each.contestant for each in windows)
    return [*rows, "", *(f"- {name} ({CONTESTANTS[name].spec.version}): {CONTESTANTS[name].configuration}" for name in names)]


def as_json(windows: Sequence[Window]) -> str:
    """Return every window as JSON."""
    return json.dumps([asdict(each) for each in windows], indent=1) + "\n"
