"""Start a project as it will be served, confined like every command of its task or in its container, and call it with examples."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.containers import ContainerCli
from toolbus.platform.backends.docker import make_runner
from toolbus.platform.backends.runner import CannotStart
from toolbus.platform.coding.workspace.programs import Program
from toolbus.platform.coding.workspace.workspace import Workspace
from toolbus.platform.records import Example, RecordedTool, ToolSource

_PORTS = (20_000, 29_999)
# Seconds that the program has to answer at its port, and then for each call.
_READY = 60.0
_CALL = 120.0
_MARGIN = 10.0
_LAST = 0.5
_MOST_ANSWER = 20_000
_MOST_KEPT = 2_000
_MOST_SHOWN = 1_500
_MOST_LINES = 100
_MARK = "toolbus-answer "
# It runs beside the program, since nothing else reaches the network of a workspace.
_CLIENT = f"""
import json, sys, time, urllib.error, urllib.request
url, method, body, ready, within = sys.argv[1:]
def told(**said):
    print({_MARK!r} + json.dumps(said), flush=True)
    sys.exit()
def answered(status, answer):
    kind = answer.headers.get("content-type", "")
    told(status=status, kind=kind, text=answer.read({_MOST_ANSWER}).decode("utf-8", "replace"))
until = time.monotonic() + float(ready)
opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
while True:
    request = urllib.request.Request(url, body.encode(), {{"content-type": "application/json"}}, method=method)
    try:
        with opener.open(request, timeout=float(within)) as answer:
            answered(answer.status, answer)
    except urllib.error.HTTPError as error:
        answered(error.code, error)
    except urllib.error.URLError as error:
        if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > until:
            told(status=0, kind="", text=str(error.reason))
    except OSError as error:
        told(status=0, kind="", text=str(error))
    time.sleep(0.05)
"""


class _Said(msgspec.Struct):
    """Hold what the client tells of an answer; status 0 when there is none."""

    status: int
    kind: str
    text: str


async def tried(
    workspace: Workspace, project: str, path: str, examples: Sequence[Mapping[str, Any]], *, network: bool = False
) -> list[Example]:
    """Start a project and call it with each of these arguments; return them with its answers.

    Args:
        workspace: of the task.
        project: its folder there.
        path: of the endpoint.
        examples: arguments.
        network: whether it reaches the network that the workspace may have; otherwise none, as when it is served.

    Raises:
        ToolError: it does not start, or an answer is no success; the text has what it printed.
    """
    port = random.randint(*_PORTS)  # noqa: S311 - it has to differ from that of its last run, which may linger
    program = await workspace.start(["python", "main.py", "--port", str(port)], folder=project, network=network)
    try:
        found = []
        for arguments in examples:
            said = await _called(workspace, program, project, f"http://127.0.0.1:{port}{path}", arguments, network=network)
            if not 200 <= said.status < 300:
                raise _failed(
                    program, f"the call with {_short(arguments)} was answered with status {said.status}: {said.text[:_MOST_SHOWN]}"
                )
            if not said.text.strip():
                raise _failed(program, f"the call with {_short(arguments)} was answered with nothing")
            if "json" in said.kind and not _is_json(said.text):
                raise _failed(program, f"the call with {_short(arguments)} was answered as JSON that is none: {said.text[:_MOST_SHOWN]}")
            found.append(Example(params=dict(arguments), output=said.text[:_MOST_KEPT]))
        return found
    finally:
        await program.end()


async def tried_container(tool: RecordedTool, source: ToolSource, examples: Sequence[Mapping[str, Any]]) -> list[Example]:
    """Build and start a tool's container as a host does, and call it with each of these arguments; return them with its answers.

    Args:
        tool: its record.
        source: its container; the image is removed afterwards.
        examples: arguments.

    Raises:
        ToolError: it can't be built, does not start, or an answer is no success; the text has what it printed.
    """
    printed = deque[str](maxlen=_MOST_LINES)
    runner = await make_runner(f"trial-{tool.made_by}")
    try:
        instance = await runner.start(tool, source, printed.append)
        try:
            found = []
            for arguments in examples:
                heard = _Heard()
                async with asyncio.timeout(_CALL):
                    result = await instance.call(dict(arguments), heard)
                text = heard.said + (result.output or ("" if result.data is None else msgspec.json.encode(result.data).decode()))
                if not text.strip():
                    raise ToolError(f"the call with {_short(arguments)} was answered with nothing")
                found.append(Example(params=dict(arguments), output=text[:_MOST_KEPT]))
            return found
        finally:
            await instance.stop(_MARGIN)
    except (CannotStart, ToolError, TimeoutError) as error:
        why = f"it did not answer within {_CALL:g} s" if isinstance(error, TimeoutError) else str(error)
        raise _refused(why, "\n".join(printed)[-_MOST_SHOWN:]) from None
    finally:
        with contextlib.suppress(CannotStart):
            await ContainerCli.found().run("rmi", "--force", source.image)
        await runner.aclose()


class _Heard:
    """Keep what a program streams."""

    def __init__(self) -> None:
        self.said = ""

    async def text(self, piece: str) -> None:
        self.said = (self.said + piece)[:_MOST_ANSWER]

    async def blob(self, media_type: str, data: bytes) -> None:
        await self.text(f"[{media_type}, {len(data):,} bytes]")

    async def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Ignore it: the answer counts."""


async def _called(workspace: Workspace, program: Program, project: str, url: str, arguments: Mapping[str, Any], *, network: bool) -> _Said:
    words = ["python", "-I", "-c", _CLIENT, url, "POST", msgspec.json.encode(arguments).decode(), str(_READY), str(_CALL)]
    client = await workspace.start(words, folder=project, seconds=_READY + _CALL + _MARGIN, network=network)
    ends = [asyncio.ensure_future(each.finished()) for each in (client, program)]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not ends[0].done():
            # Nobody will answer any more; an answer that is on its way arrives at once.
            await asyncio.wait(ends[:1], timeout=_LAST)
            await client.end()
        finished = await ends[0]
    finally:
        for each in ends:
            each.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        await client.end()
    line = next((line for line in finished.output.splitlines() if line.startswith(_MARK)), "")
    try:
        said = msgspec.json.decode(line.removeprefix(_MARK), type=_Said)
    except msgspec.DecodeError:
        if not program.running:
            raise _failed(program, "it ended before it answered") from None
        why = finished.reason or finished.output[-_MOST_SHOWN:] or "no answer"
        raise _failed(program, f"it was not answered in time ({why})") from None
    if not said.status:
        ended = "" if program.running else "; it has ended"
        raise _failed(program, f"it does not answer at its port{ended} ({said.text})")
    return said


def _failed(program: Program, why: str) -> ToolError:
    return _refused(why, program.unread.take().strip()[-_MOST_SHOWN:])


def _refused(why: str, printed: str) -> ToolError:
    told = f"; it printed:\n{printed}" if printed else "; it printed nothing"
    return ToolError(f"the tool is not registered: {why}{told}", code="trial_failed")


def _is_json(text: str) -> bool:
    if len(text) >= _MOST_KEPT:
        return True
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _short(arguments: Mapping[str, Any]) -> str:
    text = msgspec.json.encode(arguments).decode()
    return text if len(text) < 200 else f"{text[:200]}…"
