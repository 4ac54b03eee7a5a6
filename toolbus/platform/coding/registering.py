"""``Registrar``: record what tasks made, once it was started as it will be served, and answered; copies of its code for hosts."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import secrets
import shutil
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus.bus.client.bus import ToolBus
from toolbus.bus.outbound import decoded
from toolbus.bus.schema.arguments import Validator
from toolbus.bus.support.safe_text import text_of
from toolbus.bus.support.waiting import at_most, either
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import Blob, ConfigurationError, DescriptorError, Progress, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.values.urls import redact
from toolbus.platform.backends.containers import ContainerCli
from toolbus.platform.backends.docker import DockerRunner
from toolbus.platform.backends.runner import CannotStart
from toolbus.platform.checks import check_recorded
from toolbus.platform.coding.files import Folder, invalid
from toolbus.platform.coding.jobs import Job
from toolbus.platform.coding.options import Deployment
from toolbus.platform.coding.workspace import Program, Workspace
from toolbus.platform.documents import MOST_BYTES, check_locked, digest_of, digest_of_folder, files_of
from toolbus.platform.records import PENDING_KEY, RECORD_KEY, Example, RecordedTool, Running, ToolMeta, ToolSource
from toolbus.platform.review import CONFINED_MEMORY
from toolbus.platform.store import Conflict, Records, Snapshot

STAGING = ".new"
"""Folder below that of the tools where copies stand until they have their names."""

LAST = ("pyproject.toml", "Dockerfile")
"""Files of a project that are brought last, so that one of them tells that all are there."""

# Digits of a digest that name a folder.
_DIGITS = 16


class Copy:
    """The code of a project, copied to a folder of its own beside the tools until ``place`` gives it its name.

    Args:
        files: of the workspace.
        project: its folder there.
        tools: folder of all tools.
        locked: whether the project must name all that it depends on; a container's image holds that itself.

    Attributes:
        digest: of the code.
        folder: that it stands in until ``place``.

    Raises:
        ToolError: the project has something that is no code, too much of it, or depends on code that can change.
    """

    def __init__(self, files: Folder, project: str, tools: Path, *, locked: bool = True) -> None:
        self._tools = tools
        self.folder = tools / STAGING / secrets.token_hex(8)
        try:
            self.folder.mkdir(parents=True)
            self._copy(files, project)
            self.digest = digest_of_folder(self.folder)
            if locked:
                check_locked(self.folder)
        except OSError as error:
            self.discard()
            message = f"the folder of tools {str(tools)!r} can't be written at the coding agent: {error.strerror}"
            raise ToolError(message, type="unavailable", code="no_tools_folder") from None
        except ConfigurationError as error:
            self.discard()
            raise invalid(str(error).replace(str(self.folder), project), "bad_project") from None
        except BaseException:
            self.discard()
            raise

    def place(self, tool_id: str) -> Path:
        """Give it its name among the forms of a tool, and return the folder."""
        place = self._tools / tool_id / self.digest[:_DIGITS]
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.folder.rename(place)
        except OSError:
            # It is there already, or what is there has been changed.
            if not place.is_dir() or digest_of_folder(place) == self.digest:
                return place
            shutil.rmtree(place)
            self.folder.rename(place)
        return place

    def discard(self) -> None:
        """Remove it, unless it has its name."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _copy(self, files: Folder, project: str) -> None:
        left = MOST_BYTES
        for name in files_of(files.folder(project)):
            data, size = files.read(f"{project}/{name}", left + 1)
            left -= size
            if left < 0:
                raise ConfigurationError(f"the project has more than {MOST_BYTES:,} bytes")
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if Path(files.path, project, name).stat(follow_symlinks=False).st_mode & 0o100 else 0o644)
        # Hosts that are the superuser run it as another user.
        for each in (self.folder, *filter(Path.is_dir, self.folder.rglob("*"))):
            each.chmod(0o755)


def bring_code(folder: str, files: Folder, project: str) -> int:
    """Copy the code of a tool into a workspace; return the number of its files.

    Raises:
        ConfigurationError: the folder can't be read as code.
        ToolError: the workspace has no room.
        OSError: a file can't be read.
    """
    names = files_of(folder)
    for name in sorted(names, key=LAST.__contains__):
        files.write(f"{project}/{name}", Path(folder, name).read_bytes())
    return len(names)


NOTES = ".forms"
"""Folder below that of the tools: for each deployment, a file for each form that it has made."""

# Programs of a former revision may run, and records that were exported may come back, for so many seconds.
_KEPT = 14 * 86_400.0
_NAMED, _UNNAMED = "", "unnamed"


class Forms:
    """The forms that one namespace of one server has made; what others made in the same folder is never touched.

    Args:
        tools: folder of the tools, with a folder ``<tool>/<digest>`` for each form.
        settings: name the server and the namespace.
    """

    def __init__(self, tools: Path, settings: Settings) -> None:
        self._tools = tools
        whose = f"{redact(settings.url)} {settings.namespace}".encode()
        self._notes = tools / NOTES / hashlib.blake2b(whose, digest_size=8).hexdigest()

    def note(self, form: Path) -> None:
        """Note that a form is this deployment's; one without a note is kept for good."""
        note = self._notes / form.relative_to(self._tools)
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(_NAMED)

    def clean(self, found: Snapshot) -> None:
        """Remove forms that no record, approved or pending, has named for two weeks."""
        records = msgspec.json.encode([*found.tools.values(), *found.pending.values()])
        # One that can't be read may name any form of its tool.
        unknown = {each.key.partition("/")[2] for each in found.refused}
        for note in list(self._notes.glob("*/*")):
            tool, digest = note.parent.name, note.name
            # Another process may clean at the same time.
            with contextlib.suppress(OSError):
                if tool in unknown or digest.encode() in records:
                    note.write_text(_NAMED)
                elif note.read_text() != _UNNAMED:
                    note.write_text(_UNNAMED)
                elif time.time() - note.stat().st_mtime > _KEPT:
                    note.unlink()
                    # The same code may be another deployment's, too.
                    if not any((self._tools / NOTES).glob(f"*/{tool}/{digest}")):
                        shutil.rmtree(self._tools / tool / digest, ignore_errors=True)


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
            whole = len(said.text) < _MOST_KEPT
            if "json" in said.kind and whole and decoded(said.text) is None and said.text.strip() != "null":
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
    runner = DockerRunner(f"trial-{tool.made_by}")
    try:
        instance = await runner.start(tool, source, printed.append)
        try:
            found = []
            for arguments in examples:
                streamed = ""

                async def take(item: str | Blob | Progress) -> None:
                    nonlocal streamed
                    if not isinstance(item, Progress):
                        piece = item if isinstance(item, str) else f"[{item.media_type}, {len(item.data):,} bytes]"
                        streamed = (streamed + piece)[:_MOST_ANSWER]

                async with asyncio.timeout(_CALL):
                    result = await instance.call(dict(arguments), take)
                text = streamed + (result.output or ("" if result.data is None else msgspec.json.encode(result.data).decode()))
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


async def _called(workspace: Workspace, program: Program, project: str, url: str, arguments: Mapping[str, Any], *, network: bool) -> _Said:
    words = ["python", "-I", "-c", _CLIENT, url, "POST", msgspec.json.encode(arguments).decode(), str(_READY), str(_CALL)]
    client = await workspace.start(words, folder=project, seconds=_READY + _CALL + _MARGIN, network=network)
    try:
        await either(client.finished(), program.finished())
        # When the program has ended, nobody will answer any more; an answer that is on its way arrives at once.
        await at_most(_LAST, client.finished())
    finally:
        await client.end()
    finished = await client.finished()
    line = next((line for line in finished.output.splitlines() if line.startswith(_MARK)), "")
    try:
        said = msgspec.json.decode(line.removeprefix(_MARK), type=_Said)
    except DECODE_ERRORS:
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


def _short(arguments: Mapping[str, Any]) -> str:
    text = msgspec.json.encode(arguments).decode()
    return text if len(text) < 200 else f"{text[:200]}…"


_MOST_EXAMPLES = 10
# A rate of calls is shown to models as a class; see toolbus.effects.
Effect = Literal["", "read", "idempotent", "once"]
Hook = Callable[[RecordedTool], Awaitable[object]]


async def registered(records: Records, task: str) -> dict[str, Any] | None:
    """Return the tool that a task has recorded, as its result; None when there is none."""
    found = await records.all()
    for state, tools in (("approved", found.tools), ("pending", found.pending)):
        for tool in tools.values():
            if tool.made_by == task:
                return {"tool_id": tool.tool_id, "revision": tool.revision, "state": state, "digest": digest_of(tool)}
    return None


class Registrar:
    """Records what one task made; ``register_tool`` is its tool for that.

    Args:
        bus: open; the records are read and written over it.
        deployment: where copies are kept, and whether a person approves.
        job: the task.
        workspace: of the task.
        after: called with each tool that was recorded, to synchronise a catalogue for example; its failure changes nothing.
    """

    def __init__(self, bus: ToolBus, deployment: Deployment, job: Job, workspace: Workspace, after: Hook | None = None) -> None:
        self._bus = bus
        self._records = Records(bus)
        self._deployment = deployment
        self._job = job
        self._task = job.creation
        self._workspace = workspace
        self._hook = after

    async def bring(self) -> None:
        """Copy the code of the tool that the task repairs into its workspace, unless it is there."""
        about, files = self._task.about, self._workspace.files
        tool = (await self._records.all()).tools.get(about) if about else None
        if tool is None or await asyncio.to_thread(lambda: any(files.has(f"{about}/{name}") for name in LAST)):
            return
        folder = next((source.host_dir for source in tool.sources if source.host_dir), "")
        try:
            count = await asyncio.to_thread(bring_code, folder, files, about)
        except (ConfigurationError, ToolError, OSError) as error:
            self._job.log(f"the code of {about} can't be brought here: {error}")
        else:
            self._job.log(f"brought {count} files of {about}")

    async def register_tool(
        self,
        project: str,
        tool_id: Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,63}$")],
        description: Annotated[str, Meta(min_length=10, max_length=4_000)],
        input_schema: dict[str, Any],
        example: dict[str, Any],
        name: Annotated[str, Meta(max_length=200)] = "",
        category: Annotated[str, Meta(max_length=200)] = "general",
        endpoint_path: Annotated[str, Meta(pattern=r"^/[A-Za-z0-9/_.-]*$", max_length=200)] = "/",
        stream: bool = False,
        effect: Effect = "",
        network: bool = False,
        container_port: Annotated[int, Meta(ge=0, le=65_535)] = 0,
    ) -> ToolResult:
        """Register the project as a tool. It is started and called with the example first, and refused when it does not answer.

        Args:
            project: its folder in the workspace
            tool_id: the tool's name for models
            description: what it does, when to use it, and what it answers, for the models that will call it
            input_schema: JSON Schema of its arguments, an object with a description for each property
            example: arguments with which it is called now; with every new revision, too
            name: its title for people
            category: one word
            endpoint_path: where it answers
            stream: whether its answer is streamed text
            effect: what a second execution does: read (nothing), idempotent (the same), once (must not be)
            network: whether it needs a network; it reaches none otherwise, and a person sees that it is asked for
            container_port: for a project with a Dockerfile instead of a uv project, the port at which its container's program answers
        """
        made = RecordedTool(
            meta=ToolMeta(
                tool_id=tool_id,
                name=name or tool_id,
                description=description,
                category=category,
                backend_runtime="docker" if container_port else "local",
                input_schema=input_schema,
                stream_support=stream,
            ),
            running=Running(effect=effect),
            made_by=self._task.id,
        )
        if network and self._workspace.options.network != "all":
            raise ToolError("this deployment lets no tool reach a network", type="forbidden", code="no_network")
        if container_port and not self._workspace.options.docker:
            raise ToolError("this deployment has no containers; register a uv project", type="forbidden", code="no_docker")
        if container_port and not network:
            message = "a container that is served reaches its engine's network: say network=true, so that a person sees it"
            raise ToolError(message, type="forbidden", code="no_network")
        seen = await self._records.all()
        before = self._before(tool_id, seen)
        if before is not None:
            made = _beside(made, before)
        _check_example(made, example)
        examples = [example, *(each.params for each in (before.examples if before else ()) if each.params != example)][:_MOST_EXAMPLES]
        record = await self._tried(made, project, endpoint_path, examples, network=network, port=container_port)
        revision = 1 if before is None else before.revision + (before.made_by != self._task.id)
        record = msgspec.structs.replace(record, revision=revision)
        approve = self._deployment.options.auto_approve
        try:
            await self._records.put_after(record, seen, pending=not approve)
        except Conflict as error:
            raise invalid(f"{error}; register it again, or choose another id", "id_taken") from None
        except DescriptorError as error:
            raise invalid(str(error), "bad_record") from None
        await self._heard(tool_id)
        self._job.log(f"registered {tool_id}, revision {revision}: {'approved' if approve else 'waits for approval'}")
        await self._after(record)
        state = "it is served as soon as a host takes it" if approve else "it waits for a person's approval"
        return ToolResult.ok(
            {"tool_id": tool_id, "revision": revision, "state": "approved" if approve else "pending", "digest": digest_of(record)},
            output=f"registered {tool_id}; {state}. It answered the example with:\n{record.examples[0].output}",
        )

    def _before(self, tool_id: str, found: Snapshot) -> RecordedTool | None:
        """Return the form of a tool that this task may replace.

        Raises:
            ToolError: the id is another tool's, or the task is to repair another tool.
        """
        about = self._task.about
        if about and tool_id != about:
            raise invalid(f"this task repairs {about!r}; register it under that id", "id_taken")
        waiting, served = found.pending.get(tool_id), found.tools.get(tool_id)
        for each in (waiting, served):
            if each is not None and each.made_by != self._task.id and about != tool_id:
                raise invalid(f"{tool_id!r} is another tool's id; choose another one", "id_taken")
        if served is None and waiting is None:
            if self._bus.tools.get(tool_id) is not None:
                raise invalid(f"{tool_id!r} is the name of a tool that a worker serves; choose another one", "id_taken")
            return None
        return waiting if waiting is not None and waiting.made_by == self._task.id else served or waiting

    async def _tried(
        self, made: RecordedTool, project: str, path: str, examples: list[dict[str, Any]], *, network: bool, port: int
    ) -> RecordedTool:
        """Call a project with all examples, and return its record with the answers and its code's copy."""
        workspace, deployment = self._workspace, self._deployment
        files = workspace.files
        for needed in ("Dockerfile",) if port else ("main.py", "pyproject.toml"):
            if not await asyncio.to_thread(files.has, f"{project}/{needed}"):
                raise ToolError(f"the project {project[:80]!r} has no {needed}", type="not_found", code="no_project")
        if not port:
            locked = await workspace.run_uv(["lock"], folder=project)
            if locked.status or locked.reason:
                raise ToolError(f"uv lock failed: {locked.output.strip()[-1_500:] or locked.reason}", code="uv_failed")
        copy = await asyncio.to_thread(Copy, files, project, deployment.tools, locked=not port)
        try:
            source = ToolSource(
                type="docker" if port else "local",
                host_dir=str(deployment.tools / made.tool_id),
                endpoint_path=path,
                internal_port=port,
                hosts=deployment.options.hosts,
                network="host" if network and not port else "",
                memory=CONFINED_MEMORY,
            )
            if port:
                trial = msgspec.structs.replace(
                    source, host_dir=str(copy.folder), image=f"toolbus-task/{workspace.task.lower()}-trial:built"
                )
                answered: list[Example] = await tried_container(made, trial, examples)
            else:
                answered = await tried(workspace, project, path, examples, network=network)
            if await asyncio.to_thread(lambda: digest_of_folder(files.folder(project))) != copy.digest:
                message = "the project's files changed while it ran; a tool must not write into its own folder (use a temporary one)"
                raise ToolError(message, code="code_changed")
            record = msgspec.structs.replace(made, sources=(source,), code=copy.digest, examples=tuple(answered))
            try:
                check_recorded(record)
            except DescriptorError as error:
                raise invalid(f"the tool is not registered: {error}", "bad_record") from None
            place = await asyncio.to_thread(copy.place, made.tool_id)
            await asyncio.to_thread(Forms(deployment.tools, self._bus.settings).note, place)
        finally:
            await asyncio.to_thread(copy.discard)
        return msgspec.structs.replace(record, sources=(msgspec.structs.replace(source, host_dir=str(place)),))

    async def _heard(self, tool_id: str) -> None:
        """Wait until the bus has heard of the record, so that the task's end finds it."""
        catalogue = self._bus.tools.catalogue
        keys = {f"{PENDING_KEY}{tool_id}", f"{RECORD_KEY}{tool_id}"}
        try:
            async with asyncio.timeout(5):
                await catalogue.wait(lambda: not keys.isdisjoint(catalogue.documents.by_key))
        except TimeoutError:
            self._job.log("the record was written, and has not been heard of yet")

    async def _after(self, record: RecordedTool) -> None:
        if self._hook is None:
            return
        try:
            await self._hook(record)
        except Exception as error:  # noqa: BLE001 - a catalogue that is away must not fail a registration
            self._job.log(f"the catalogue was not synchronised: {text_of(error)}")


def _check_example(tool: RecordedTool, example: dict[str, Any]) -> None:
    """Refuse a schema that is none, and an example that does not fit it.

    Raises:
        ToolError: see there.
    """
    schema = tool.meta.input_schema
    if schema.get("type") != "object":
        raise invalid('input_schema must be a JSON Schema with "type": "object"', "bad_schema")
    try:
        Validator(schema).check(example)
    except DescriptorError as error:
        raise invalid(f"input_schema is no JSON Schema: {error}", "bad_schema") from None
    except ToolError as error:
        raise invalid(f"the example does not fit input_schema: {error}", "bad_example") from None


def _beside(made: RecordedTool, before: RecordedTool) -> RecordedTool:
    """Return a new form of a tool, with what the model does not say taken from the form before it."""
    meta = msgspec.structs.replace(made.meta, group_ids=before.meta.group_ids, tool_slug_ids=before.meta.tool_slug_ids)
    return msgspec.structs.replace(made, meta=meta, running=msgspec.structs.replace(before.running, effect=made.running.effect))
