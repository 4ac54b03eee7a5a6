"""Records of tools that hosts serve: what a tool is, where it can run, and how."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

SourceType = Literal["local", "docker", "remote"]
"""``local``: a uv project; ``docker``: a container; ``remote``: an HTTP API."""

State = Literal["stopped", "starting", "running", "failed"]
"""The state of a tool at a host."""

RECORD_KEY = "recorded/"
"""Begins the keys of approved records among the registry's items."""

PENDING_KEY = "pending/"
"""Begins the keys of records that wait for approval; nobody serves them."""

GROUP_KEY = "group/"
RUNTIME_KEY = "backend-runtime/"

_WHOLE_URL = re.compile(r"https?://[^/?#]*", re.IGNORECASE)


class ToolMeta(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded tool, for models and people; an entry of ``registry.json``.

    Attributes:
        tool_id: its name on the bus, and the id of its service.
        name: its title.
        backend_runtime: a label by which tools are found; ``local``, ``docker`` or ``remote`` when nothing else is said.
        input_schema, output_schema: JSON Schemas of arguments and answer.
        stream_support: whether the answer is passed on as it is produced.
        status: ``active``, or ``inactive`` for a tool that is recorded and not served.
        tool_slug_ids: the entries of an external catalogue that are this tool.
    """

    tool_id: str
    name: str = ""
    description: str = ""
    category: str = ""
    backend_runtime: str = ""
    group_ids: tuple[str, ...] = ()
    input_schema: dict[str, Any] = {}
    output_schema: dict[str, Any] = {}
    stream_support: bool = False
    status: str = "active"
    tool_slug_ids: tuple[str, ...] = ()


class ToolSource(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A place where a tool can run; an entry of ``sources.json``. Fields after ``internal_port`` are toolbus's own.

    Attributes:
        type: see ``SourceType``.
        host_dir: folder of a local project, or of a container's build files.
        endpoint_path: path of the endpoint; ``{name}`` in it is filled in from the arguments. A remote source without ``url`` may have
            the whole URL here.
        http_method: method of the endpoint.
        internal_port: port of the program within its container, 0 for one that the host chooses; of a remote source without ``url``, the
            port at which somebody else runs it on the host's machine.
        hosts: labels of the hosts that may run it; empty for every host.
        image: the container's image; with ``host_dir`` it is built from there.
        ports, mounts: ``host:container`` pairs.
        gpus, memory, cpus, network: as ``docker run`` takes them.
        command: the program's command line in place of the usual one; ``{port}`` in it is the port.
        env: environment variables; values may be ``env:NAME`` or ``file:PATH`` of the host.
        url: base URL of an API.
        headers, query: sent with each request; values may be ``env:NAME`` or ``file:PATH`` of the host, or have ``{env:NAME}`` within.
        auth: how requests are authorized, see ``toolbus.platform.backends.remote``; values as those of ``headers``.
        ready: how readiness is known: ``port``, ``path:/health``, or ``log:TEXT``.
        ready_within: seconds that it may take to become ready.
    """

    type: SourceType
    host_dir: str = ""
    endpoint_path: str = "/"
    http_method: str = "POST"
    internal_port: int = 0
    hosts: tuple[str, ...] = ()
    image: str = ""
    ports: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    gpus: str = ""
    memory: str = ""
    cpus: float = 0.0
    network: str = ""
    command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    auth: dict[str, str] = {}
    ready: str = "port"
    ready_within: float = 60.0

    @property
    def api(self) -> tuple[str, str]:
        """The base URL and the path of a remote source; the URL is empty when the source names none."""
        path = self.endpoint_path
        if not self.url and (found := _WHOLE_URL.match(path)):
            return found[0], path[found.end() :] or "/"
        return self.url or (f"http://127.0.0.1:{self.internal_port}" if self.internal_port else ""), path


class Running(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Say how a host runs a tool; times are in seconds.

    Attributes:
        single: it runs at one host at a time.
        idle_stop: it is stopped after this time without a call; 0 for never.
        keep_warm: instances that run without a call.
        instances: most instances at one host.
        concurrency: most calls at once of one instance.
        health_every: between two health checks of one that runs.
        stop_within: that it has to end by itself when it is stopped.
        restarts: starts in a row that may fail until it counts as failed.
        timeout: that a call may take when its caller says nothing; 0 for the usual time.
        effect: see ``toolbus.bus.values.descriptors``; the empty one may be run again.
    """

    single: bool = False
    idle_stop: float = 300.0
    keep_warm: int = 0
    instances: int = 1
    concurrency: int = 16
    health_every: float = 10.0
    stop_within: float = 5.0
    restarts: int = 5
    timeout: float = 0.0
    effect: str = ""


class Example(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call that the tool has answered, with the answer's text."""

    params: dict[str, Any]
    output: str = ""


class RecordedTool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that is recorded of a tool; one item of the registry.

    Attributes:
        sources: places where it can run; the first one that starts is used.
        revision: counts the versions of the tool.
        code: digest of its folder as it was approved; a host refuses another one. Empty for folders that people change.
        made_by: who recorded it: ``import``, a person, or the task of a coding agent (``create_…``).
        examples: calls that every new revision must answer.
    """

    meta: ToolMeta
    sources: tuple[ToolSource, ...] = ()
    running: Running = Running()
    revision: int = 1
    code: str = ""
    made_by: str = ""
    examples: tuple[Example, ...] = ()

    @property
    def tool_id(self) -> str:
        """Its name on the bus."""
        return self.meta.tool_id

    @property
    def by_model(self) -> bool:
        """True if a model wrote its program, so that hosts confine it."""
        return self.made_by.startswith("create_")


class ToolRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Tell where a tool runs at one host.

    Attributes:
        sources: all of the record's.
        active_source: index of the one that is used.
        state: see ``State``.
        pid, port: of the first instance; 0 when there is none.
        host: id of the host.
        since: when it came into this state, in seconds since 1970.
        restarts: starts after failures since it last ran well.
        last_error: one line, why it failed last.
        instances: how many run.
    """

    tool_id: str
    sources: tuple[ToolSource, ...] = ()
    active_source: int = 0
    state: State = "stopped"
    pid: int = 0
    port: int = 0
    host: str = ""
    since: float = 0.0
    restarts: int = 0
    last_error: str = ""
    instances: int = 0


class BackendRuntime(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A label of tools that run alike, for people."""

    backend_runtime: str
    name: str = ""
    description: str = ""
