"""A worker and two gateways, as processes, and requests written by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

import httpx

from tests.forking import ForkServer
from tests.listening import Listening
from tests.servers import put_down

MODERN = "2026-07-28"
OLDER = ("2025-11-25", "2025-06-18")
ALL = (MODERN, *OLDER)
TASKS = "io.modelcontextprotocol/tasks"
_PROTOCOL = "io.modelcontextprotocol"

TOOLS = """
import asyncio
from pathlib import Path
from toolbus import Blob, Progress, ToolError, invocation, tool

HERE = Path(__file__).parent

@tool(effect="read")
async def echo(text: str) -> str:
    "Give a text back."
    return text

@tool(effect="read", tenants=["alice"])
async def secret_of_alice() -> str:
    "Only for Alice."
    return "hers"

@tool("météo.paris", effect="idempotent")
async def weather() -> str:
    "Have a name that MCP does not allow."
    return "rain"

@tool(effect="once")
async def pay(amount: int) -> dict:
    "Have an effect."
    return {"paid": amount}

@tool(effect="read")
async def count(to: int):
    "Say text and progress."
    for number in range(to):
        yield f"{number} "
        yield Progress(number + 1, to, f"at {number}")

@tool(output_schema={"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]})
async def add(a: int, b: int) -> dict:
    "Promise a form, and not keep it for large numbers."
    return {"sum": a + b} if a < 100 else {"total": a + b}

@tool(output_schema={"type": "array", "items": {"type": "integer"}})
async def numbers() -> list:
    "Return what older revisions do not know."
    return [1, 2]

@tool(effect="read")
async def media():
    "Return all kinds of content."
    yield Blob("image/png", b"png")
    yield Blob("audio/wav", b"wav")
    yield Blob("text/csv", b"a,b")
    yield Blob("application/pdf", b"%PDF")

@tool
async def broken() -> str:
    "Fail."
    raise ToolError("it broke", code="E1", retryable=True)

@tool(timeout=60)
async def wait(name: str) -> str:
    "Wait until cancelled, and leave a file that says so."
    (HERE / f"{name}.began").touch()
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        (HERE / f"{name}.cancelled").touch()
        raise
    return ""

@tool(confirm=True)
async def delete(path: str) -> str:
    "Need a permission."
    return f"deleted {path}"

@tool
async def ask(question: str) -> str:
    "Ask while it runs."
    await invocation().confirm(question)
    return f"allowed {question}"

@tool(task="always", timeout=60)
async def job(name: str, parts: int):
    "Say some parts, each when its file is there."
    for part in range(parts):
        while not (HERE / f"{name}.{part}").exists():
            await asyncio.sleep(0.01)
        yield f"part {part}. "
        yield Progress(part + 1, parts)

@tool(task="always", effect="once", timeout=60)
async def once_job(name: str):
    "Have an effect, and take long."
    with (HERE / f"{name}.runs").open("a") as runs:
        runs.write("x")
    yield "begun "
    while not (HERE / f"{name}.go").exists():
        await asyncio.sleep(0.01)
    yield "done"

@tool(task="always", timeout=60)
async def asking_job(question: str) -> str:
    "Ask as a task."
    await invocation().confirm(question)
    return f"allowed {question}"

@tool(task=50, timeout=60)
async def soon() -> str:
    "Take less than the time after which it would be a task."
    return "done"

@tool(task=0.2, timeout=60)
async def lengthy(name: str) -> str:
    "Become a task, since the file is there only then."
    while not (HERE / f"{name}.go").exists():
        await asyncio.sleep(0.01)
    return "done"

@tool(task="always")
async def broken_job() -> str:
    "Fail as a task."
    raise ToolError("the job broke")
"""

GATEWAY = """
import asyncio, socket, sys, uvicorn
from toolbus import ToolBus
from toolbus.edges.gateway.app import application
from toolbus.edges.gateway.gateway import Gateway
from toolbus.edges.gateway.options import Everyone, Principal
from toolbus.edges.gateway.bodies import Problem

class ByHeader(Everyone):
    async def principal(self, connection):
        user = connection.headers.get("x-user", "")
        if user == "nobody":
            raise Problem(401, "unauthorized", "who are you?")
        return Principal(user or "local", user)

async def main():
    async with ToolBus() as bus:
        listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(application(Gateway(bus, ByHeader())), log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])

asyncio.run(main())
"""


class Site:
    """One namespace with the processes that serve it."""

    def __init__(self, forks: ForkServer, folder: Path, url: str, namespace: str = "") -> None:
        self._forks = forks
        self.folder = folder
        self.namespace = namespace or f"t-{secrets.token_hex(6)}"
        self.environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TOOLBUS_URL": url,
            "TOOLBUS_NAMESPACE": self.namespace,
            "TOOLBUS_LEASE": "2",
        }
        self._running: list[Any] = []
        (folder / "tools.py").write_text(TOOLS)
        (folder / "gateway.py").write_text(GATEWAY)

    def worker(self, *targets: str) -> Any:
        """Start a worker of some files."""
        return self._start("-m", "toolbus", "worker", *(targets or ("tools.py",)))

    def gateway(self, port: int = 0) -> tuple[Any, str]:
        """Start a gateway; return its process and the URL of its MCP server."""
        process = self._start("gateway.py", str(port))
        return process, f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"

    def close(self) -> None:
        """End every process."""
        for process in self._running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(timeout=5)
            except (subprocess.TimeoutExpired, TypeError):
                put_down(process)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()

    def _start(self, *words: str) -> Any:
        process = self._forks.start(
            *words, folder=self.folder, environment=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, session=True
        )
        self._running.append(process)
        return process


class Proxy:
    """A proxy that gives each request to the next gateway, and to another one when a connection ends without an answer."""

    def __init__(self, *urls: str) -> None:
        self._ports = [int(url.removesuffix("/mcp").rpartition(":")[2]) for url in urls]
        self._listening = Listening(self._serve)
        self.url = ""

    async def __aenter__(self) -> Self:
        await self._listening.start()
        self.url = f"http://127.0.0.1:{self._listening.port}/mcp"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._listening.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            lines = [line for line in head.split(b"\r\n")[:-2] if not line.lower().startswith(b"connection:")]
            length = next((int(line.partition(b":")[2]) for line in lines if line.lower().startswith(b"content-length:")), 0)
            request = b"\r\n".join([*lines, b"connection: close", b"", await reader.readexactly(length)])
            leaving = asyncio.ensure_future(reader.read())
            self._ports.append(self._ports.pop(0))
            for port in [*self._ports]:
                if await self._pass(request, port, leaving, writer):
                    break
            leaving.cancel()

    async def _pass(self, request: bytes, port: int, leaving: asyncio.Future[bytes], writer: asyncio.StreamWriter) -> bool:
        """Pass a request on; False when nothing was answered."""
        answered = False
        try:
            reader, gateway = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        try:
            gateway.write(request)
            while True:
                part = asyncio.ensure_future(reader.read(65_536))
                await asyncio.wait((part, leaving), return_when=asyncio.FIRST_COMPLETED)
                if not part.done():
                    part.cancel()
                    return True
                if not part.result():
                    return answered
                answered = True
                writer.write(part.result())
                await writer.drain()
        except OSError:
            return answered
        finally:
            gateway.close()


class Raw:
    """Sends requests of the latest revision, written by hand."""

    def __init__(self, url: str, user: str = "", *, tasks: bool = True, elicits: bool = False) -> None:
        self.url = url
        self.capabilities: dict[str, Any] = {"extensions": {TASKS: {}}} if tasks else {}
        if elicits:
            self.capabilities["elicitation"] = {"form": {}}
        self._user = {"X-User": user} if user else {}
        self.http = httpx.AsyncClient(timeout=40)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()

    def request(self, method: str, params: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
        """Return the headers and the body of a request."""
        meta = {f"{_PROTOCOL}/protocolVersion": MODERN, f"{_PROTOCOL}/clientCapabilities": self.capabilities, **params.get("_meta", {})}
        headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **self._user}
        headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
        name = params.get("taskId") or params.get("name")
        if isinstance(name, str) and name.isascii() and name.isprintable():
            headers["Mcp-Name"] = name
        return headers, {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": meta}}

    async def send(self, method: str, **params: Any) -> list[dict[str, Any]]:
        """Send a request; return every message of the answer."""
        headers, body = self.request(method, params)
        answer = await self.http.post(self.url, headers=headers, json=body)
        return messages(answer)

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request; return its result, or its error."""
        last = (await self.send(method, **params))[-1]
        return last["result"] if "result" in last else last["error"]

    async def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the result, or the error."""
        return await self.ask("tools/call", name=name, arguments=arguments)


def messages(answer: httpx.Response) -> list[dict[str, Any]]:
    """Return the messages of an answer, in JSON or as a stream."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    return [answer.json()]


def text_of(result: dict[str, Any]) -> str:
    """Return the text of a result."""
    return "".join(each["text"] for each in result["content"] if each["type"] == "text")
