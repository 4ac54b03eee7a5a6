"""``Registrar``: record what tasks made, once it has been seen to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from toolbus.bus.broker.protocols import Creation
from toolbus.bus.client.bus import ToolBus
from toolbus.bus.schema.validate import Validator
from toolbus.bus.support.safe_text import text_of
from toolbus.bus.values.results import ConfigurationError, DescriptorError, ToolError, ToolResult
from toolbus.platform.checks import check_recorded
from toolbus.platform.coding.copies import LAST, Copy, Forms, bring_code, digest_in
from toolbus.platform.coding.options import Deployment
from toolbus.platform.coding.spending import Job
from toolbus.platform.coding.trial import tried, tried_container
from toolbus.platform.coding.workspace.workspace import Workspace
from toolbus.platform.documents import digest_of
from toolbus.platform.records import Example, RecordedTool, Running, ToolMeta, ToolSource
from toolbus.platform.review import CONFINED_MEMORY
from toolbus.platform.store import Conflict, Records, Snapshot

_MOST_EXAMPLES = 10
# A rate of calls is shown to models as a class; see toolbus.effects.
Effect = Literal["", "read", "idempotent", "once"]
Hook = Callable[[RecordedTool], Awaitable[object]]


class Registrar:
    """Records tools.

    Args:
        bus: open; the records are read and written over it.
        deployment: where copies are kept, and whether a person approves.
        after: called with each tool that was recorded, to synchronise a catalogue for example; its failure changes nothing.
    """

    def __init__(self, bus: ToolBus, deployment: Deployment, after: Hook | None = None) -> None:
        self.bus = bus
        self.records = Records(bus)
        self.deployment = deployment
        self.after = after

    def functions(self, job: Job, workspace: Workspace) -> dict[str, Callable[..., Any]]:
        """Return the tool ``register_tool`` for one task."""
        return {"register_tool": Registering(self, job, workspace).register_tool}

    async def bring(self, job: Job, workspace: Workspace) -> None:
        """Copy the code of the tool that a task repairs into its workspace, unless it is there."""
        about = job.creation.about
        tool = (await self.records.all()).tools.get(about) if about else None
        if tool is None or await asyncio.to_thread(_is_brought, workspace, about):
            return
        folder = next((source.host_dir for source in tool.sources if source.host_dir), "")
        try:
            count = await asyncio.to_thread(bring_code, folder, workspace.files, about)
        except (ConfigurationError, ToolError, OSError) as error:
            job.log(f"the code of {about} can't be brought here: {error}")
        else:
            job.log(f"brought {count} files of {about}")

    async def registered(self, task: str) -> dict[str, Any] | None:
        """Return the tool that a task has recorded, as its result; None when there is none."""
        found = await self.records.all()
        for state, tools in (("approved", found.tools), ("pending", found.pending)):
            for tool in tools.values():
                if tool.made_by == task:
                    return {"tool_id": tool.tool_id, "revision": tool.revision, "state": state, "digest": digest_of(tool)}
        return None


class Registering:
    """The tool ``register_tool`` of one task."""

    def __init__(self, registrar: Registrar, job: Job, workspace: Workspace) -> None:
        self._registrar = registrar
        self._job = job
        self._workspace = workspace

    @property
    def _task(self) -> Creation:
        return self._job.creation

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
        seen = await self._registrar.records.all()
        before = self._before(tool_id, seen)
        if before is not None:
            made = _beside(made, before)
        _check_example(made, example)
        examples = [example, *(each.params for each in (before.examples if before else ()) if each.params != example)][:_MOST_EXAMPLES]
        record = await self._tried(made, project, endpoint_path, examples, network=network, port=container_port)
        revision = 1 if before is None else before.revision + (before.made_by != self._task.id)
        record = msgspec.structs.replace(record, revision=revision)
        approve = self._registrar.deployment.options.auto_approve
        try:
            await self._registrar.records.put_after(record, seen, pending=not approve)
        except Conflict as error:
            raise _taken(f"{error}; register it again, or choose another id") from None
        except DescriptorError as error:
            raise ToolError(str(error), type="invalid_arguments", code="bad_record") from None
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
            raise _taken(f"this task repairs {about!r}; register it under that id")
        waiting, served = found.pending.get(tool_id), found.tools.get(tool_id)
        for each in (waiting, served):
            if each is not None and each.made_by != self._task.id and about != tool_id:
                raise _taken(f"{tool_id!r} is another tool's id; choose another one")
        if served is None and waiting is None:
            if self._registrar.bus.tools.get(tool_id) is not None or any(tool_id == each.tool_id for each in found.tools.values()):
                raise _taken(f"{tool_id!r} is the name of a tool that a worker serves; choose another one")
            return None
        return waiting if waiting is not None and waiting.made_by == self._task.id else served or waiting

    async def _tried(
        self, made: RecordedTool, project: str, path: str, examples: list[dict[str, Any]], *, network: bool, port: int
    ) -> RecordedTool:
        """Call a project with all examples, and return its record with the answers and its code's copy."""
        workspace, deployment = self._workspace, self._registrar.deployment
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
            if await asyncio.to_thread(digest_in, files, project) != copy.digest:
                message = "the project's files changed while it ran; a tool must not write into its own folder (use a temporary one)"
                raise ToolError(message, code="code_changed")
            record = msgspec.structs.replace(made, sources=(source,), code=copy.digest, examples=tuple(answered))
            try:
                check_recorded(record)
            except DescriptorError as error:
                raise ToolError(f"the tool is not registered: {error}", type="invalid_arguments", code="bad_record") from None
            place = await asyncio.to_thread(copy.place, made.tool_id)
            await asyncio.to_thread(Forms(deployment.tools, self._registrar.bus.settings).note, place)
        finally:
            await asyncio.to_thread(copy.discard)
        return msgspec.structs.replace(record, sources=(msgspec.structs.replace(source, host_dir=str(place)),))

    async def _heard(self, tool_id: str) -> None:
        """Wait until the bus has heard of the record, so that the task's end finds it."""
        catalogue = self._registrar.bus.tools.catalogue
        keys = (f"pending/{tool_id}", f"recorded/{tool_id}")
        try:
            async with asyncio.timeout(5):
                await catalogue.wait(lambda: any(key in catalogue.documents.by_key for key in keys))
        except TimeoutError:
            self._job.log("the record was written, and has not been heard of yet")

    async def _after(self, record: RecordedTool) -> None:
        if self._registrar.after is None:
            return
        try:
            await self._registrar.after(record)
        except Exception as error:  # noqa: BLE001 - a catalogue that is away must not fail a registration
            self._job.log(f"the catalogue was not synchronised: {text_of(error)}")


def _is_brought(workspace: Workspace, project: str) -> bool:
    return any(workspace.files.has(f"{project}/{name}") for name in LAST)


def _check_example(tool: RecordedTool, example: dict[str, Any]) -> None:
    """Refuse a schema that is none, and an example that does not fit it.

    Raises:
        ToolError: see there.
    """
    schema = tool.meta.input_schema
    if schema.get("type") != "object":
        raise ToolError('input_schema must be a JSON Schema with "type": "object"', type="invalid_arguments", code="bad_schema")
    try:
        Validator(schema).check(example)
    except DescriptorError as error:
        raise ToolError(f"input_schema is no JSON Schema: {error}", type="invalid_arguments", code="bad_schema") from None
    except ToolError as error:
        raise ToolError(f"the example does not fit input_schema: {error}", type="invalid_arguments", code="bad_example") from None


def _beside(made: RecordedTool, before: RecordedTool) -> RecordedTool:
    """Return a new form of a tool, with what the model does not say taken from the form before it."""
    meta = msgspec.structs.replace(made.meta, group_ids=before.meta.group_ids, tool_slug_ids=before.meta.tool_slug_ids)
    return msgspec.structs.replace(made, meta=meta, running=msgspec.structs.replace(before.running, effect=made.running.effect))


def _taken(message: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code="id_taken")
