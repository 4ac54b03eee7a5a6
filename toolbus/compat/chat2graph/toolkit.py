"""Chat2Graph's toolkit: its tools, groups, connections, graph and services, over ``toolbus.toolkit``."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import threading
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Generic, Self, TypeVar
from uuid import uuid4

import networkx as nx

from toolbus.bus import telemetry
from toolbus.bus.values.results import ToolkitError
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.provide import provide
from toolbus.compat.facade import finished
from toolbus.toolkit.graph import Action, Edge, Item, expect
from toolbus.toolkit.graph import Tool as GraphTool
from toolbus.toolkit.graph import ToolGroup as GraphGroup
from toolbus.toolkit.graph import Toolkit as Graph
from toolbus.toolkit.service import Scored, group_of_module
from toolbus.toolkit.service import ToolkitService as GraphService
from toolbus.toolkit.service import ToolkitWrapper as GraphWrapper


class ToolType(Enum):
    """The origin of a tool."""

    LOCAL_TOOL = "LOCAL_TOOL"
    MCP_TOOL = "MCP_TOOL"


class FunctionCallStatus(Enum):
    """The outcome of a call of a tool."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class ToolGroupType(Enum):
    """The kind of a group of tools."""

    MCP = "MCP"
    PACKAGE = "PACKAGE"


class McpTransportType(Enum):
    """The transport to an MCP server."""

    STDIO = "STDIO"
    SSE = "SSE"
    WEBSOCKET = "WEBSOCKET"
    STREAMABLE_HTTP = "STREAMABLE_HTTP"


class ToolResourceType(Enum):
    """The state that a connection to tools keeps between calls."""

    STATELESS = "STATELESS"
    STATEFUL = "STATEFUL"
    STACKABLE = "STACKABLE"


_lock = threading.RLock()
_instances: dict[type, Any] = {}


class Singleton(type):
    """A metaclass of classes with one instance: calling the class creates or returns it."""

    def __init__(cls, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A tool's parameter that is annotated with the class is filled in with the one instance.
        provide(cls, cls)  # type: ignore[arg-type] # the type of the instances is not known here

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return the one instance; the arguments are used only when it is created."""
        with _lock:
            if cls not in _instances:
                _instances[cls] = super().__call__(*args, **kwargs)
            return _instances[cls]

    @property
    def instance(cls) -> Any:
        """The one instance, or None before it is created."""
        return _instances.get(cls)


class AbcSingleton(Singleton, ABCMeta):
    """The same metaclass for abstract classes."""


@dataclass(frozen=True)
class ToolCallContext:
    """The job and the operator that a tool runs for; a worker fills in parameters of this type."""

    job_id: str
    operator_id: str


class _Current(ToolCallContext):
    """The context of whichever call runs: its session, or else its id, is the job; the tool's name is the operator."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> object:
        if name == "job_id":
            return invocation().session or invocation().id
        return invocation().tool if name == "operator_id" else super().__getattribute__(name)


provide(ToolCallContext, _Current())


@dataclass
class McpTransportConfig:
    """The way to reach an MCP server.

    Attributes:
        url, headers: for a running server.
        command, args, env: for a server that is to be started.
        timeout, sse_read_timeout: seconds.
    """

    transport_type: McpTransportType
    resource_type: ToolResourceType = ToolResourceType.STATEFUL
    url: str = "http://localhost:8931"
    command: str = "npx"
    args: list[str] | None = None
    env: dict[str, str] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    timeout: float = 5.0
    sse_read_timeout: float = 300.0

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Read the result of ``to_dict``; a missing transport is STDIO, a missing resource type STATELESS; ignore other keys."""
        known = {name: value for name, value in config.items() if name in cls.__dataclass_fields__}
        transport = McpTransportType(known.pop("transport_type", "STDIO"))
        return cls(transport, ToolResourceType(known.pop("resource_type", "STATELESS")), **known)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values for JSON."""
        return {name: value.value if isinstance(value, Enum) else value for name, value in asdict(self).items()}


@dataclass
class ToolGroupConfig:
    """The kind and name of a group."""

    type: ToolGroupType
    name: str


@dataclass
class McpConfig(ToolGroupConfig):
    """An MCP server as a group."""

    transport_config: McpTransportConfig


class ToolConnection(ABC):
    """An open connection to the tools of a group."""

    def __init__(self) -> None:
        self._id = str(uuid4())

    def get_id(self) -> str:
        """Return the connection's id."""
        return self._id

    @abstractmethod
    async def call(self, tool_name: str, **kwargs: Any) -> Any:
        """Run a tool with these arguments."""

    @abstractmethod
    async def list_tools(self) -> list[Any]:
        """Return every available tool."""

    @abstractmethod
    async def close(self) -> None:
        """Release what the connection holds."""


@dataclass
class FunctionCallResult:
    """The outcome of a call, as that project's reasoners pass it on."""

    func_name: str
    func_args: dict[str, Any]
    call_objective: str
    output: str
    status: FunctionCallStatus = FunctionCallStatus.SUCCEEDED

    @classmethod
    def error(cls, error_message: str) -> Self:
        """Return the outcome of a call that failed before its function was known."""
        return cls("", {}, "", error_message, FunctionCallStatus.FAILED)


class Tool(GraphTool):
    """A tool of the toolkit.

    Subclasses may call ``super().__init__`` with one of their methods, set ``_id`` afterwards, and override ``copy``.

    Args:
        name: the name for the model.
        description: the text for the model; the function's docstring when empty.
        function: a coroutine function or a plain one.
        tool_type: the tool's origin.
        id: id of its vertex; a new one when left out.
        parameters: JSON Schema of the arguments; the function's own when left out.
    """

    def __init__(
        self,
        name: str,
        description: str,
        function: Callable[..., Any],
        tool_type: ToolType = ToolType.LOCAL_TOOL,
        id: str | None = None,
        *,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(id or str(uuid4()), name, description, parameters, function)
        self._type = tool_type

    @property
    def tool_type(self) -> ToolType:
        """The tool's origin."""
        return self._type


class ToolGroup(GraphGroup, ABC):
    """A group that lists its tools on request. Subclasses may set ``_id`` after ``super().__init__``."""

    def __init__(self, tool_group_config: ToolGroupConfig) -> None:
        super().__init__(str(uuid4()), tool_group_config.name)
        self._tool_group_config = tool_group_config

    def get_id(self) -> str:
        """Return the id of its vertex."""
        return self._id

    @abstractmethod
    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        """Connect to the runner of the tools."""

    @abstractmethod
    async def list_tools(self) -> list[Any]:
        """Return every tool of the group: ``Tool``s, or objects with ``name``, ``description`` and ``inputSchema``."""


class ToolPackage(ToolGroup):
    """The public functions of a Python module as tools of this process; the group has the module's name."""

    async def create_connection(self, tool_call_ctx: Any = None) -> ToolConnection:
        """Return a connection that calls the module's functions."""
        return _ModuleConnection(await self.list_tools())

    async def list_tools(self) -> list[Tool]:
        """Return a tool for each public function.

        Raises:
            ToolkitError: the module has none.
        """
        group = group_of_module(importlib.import_module(self.name))
        return [Tool(tool.name, tool.description, tool.function, ToolType.LOCAL_TOOL) for tool in group.tools if tool.function is not None]


class _ModuleConnection(ToolConnection):
    def __init__(self, tools: list[Tool]) -> None:
        super().__init__()
        self._tools = {tool.name: tool for tool in tools}

    async def call(self, tool_name: str, **kwargs: Any) -> Any:
        """Call a function, and await its result when it is awaitable."""
        result: Any = self._tools[tool_name].function(**kwargs)  # type: ignore[misc] # each is a function of the module
        return await result if inspect.isawaitable(result) else result

    async def list_tools(self) -> list[Any]:
        """Return every tool of the module."""
        return list(self._tools.values())

    async def close(self) -> None:
        """Forget the tools."""
        self._tools.clear()


def _text_of(content: Any) -> Any:
    """Return the text of a result that consists of texts, as that project's reasoners do; anything else as it is."""
    texts: list[Any] = [getattr(part, "text", None) for part in content] if isinstance(content, list) else []
    return "\n".join(texts) if texts and all(isinstance(text, str) for text in texts) else content


class McpTool(Tool):
    """A tool that is called through a connection of its group.

    Args:
        name, description: the tool's name and description as the server lists them.
        tool_group: the server's group.
        parameters: the ``inputSchema`` that the server lists; any object when left out.
    """

    def __init__(self, name: str, description: str, tool_group: ToolGroup, *, parameters: Mapping[str, Any] | None = None) -> None:
        async def function(*, tool_call_ctx: ToolCallContext | None = None, **kwargs: Any) -> Any:
            connection = await tool_group.create_connection(tool_call_ctx)
            try:
                return _text_of(await connection.call(tool_name=name, **kwargs))
            finally:
                await connection.close()

        function.__name__ = function.__qualname__ = name
        # A worker's service is named after the module, and each server is a service.
        function.__module__ = f"mcp.{re.sub(r'[^A-Za-z0-9_-]', '-', tool_group.name)[:100]}"
        function.__doc__ = description
        super().__init__(
            name, description, function, ToolType.MCP_TOOL, parameters={"type": "object"} if parameters is None else parameters
        )
        self._tool_group = tool_group

    def get_tool_group(self) -> ToolGroup:
        """Return the server's group."""
        return self._tool_group


Kind = TypeVar("Kind", bound=Item)


class Toolkit(Graph):
    """The graph; ``_actions``, ``_tools``, ``_tool_groups`` and ``_scores`` are live mappings of its content."""

    def __init__(self, graph: nx.DiGraph[str] | None = None) -> None:
        super().__init__()
        if graph is not None:
            self._graph = graph

    def add_edge(self, u: str, v: str, score: float | None = None) -> None:
        """Add an edge; missing vertices are added without data, as networkx does."""
        self._link(u, v, score)

    def out_degree(self, vertex: str) -> int:
        """Return the number of edges that leave a vertex."""
        return len(self.successors(vertex))

    def vertices_count(self) -> int:
        """Return the number of vertices."""
        return len(self._graph)

    def remove_vertices(self, ids: Iterable[str]) -> None:
        """Remove several vertices, with everything that is useless without them."""
        for vertex in list(ids):
            self.remove_vertex(vertex)

    def to_json_str(self) -> str:
        """Return the ids of the vertices, and the edges between them, as JSON."""
        edges = [{"source": u, "target": v} for u, v in self.edges()]
        return json.dumps({"vertices": [{"id": vertex} for vertex in self.vertices()], "edges": edges}, indent=4)

    @classmethod
    def from_json_str(cls, json_str: str) -> Self:
        """Return a graph without data from the result of ``to_json_str``."""
        document = json.loads(json_str)
        graph: nx.DiGraph[str] = nx.DiGraph()
        graph.add_nodes_from(vertex["id"] for vertex in document["vertices"])
        graph.add_edges_from((edge["source"], edge["target"]) for edge in document["edges"])
        return cls(graph)

    @property
    def _actions(self) -> _Items[Action]:
        return _Items(self, Action)

    @property
    def _tools(self) -> _Items[GraphTool]:
        return _Items(self, GraphTool)

    @property
    def _tool_groups(self) -> _Items[GraphGroup]:
        return _Items(self, GraphGroup)

    @property
    def _scores(self) -> _Scores:
        return _Scores(self)


class _Items(MutableMapping[str, Kind], Generic[Kind]):
    """The items of one kind by vertex, not copies; deleting one leaves its vertex without data."""

    def __init__(self, toolkit: Toolkit, kind: type[Kind]) -> None:
        self._toolkit = toolkit
        self._kind = kind

    def __getitem__(self, id: str) -> Kind:
        item: Item | None = self._toolkit.item(id)
        if not isinstance(item, self._kind):
            raise KeyError(id)
        return item

    def __setitem__(self, id: str, item: Kind) -> None:
        self._toolkit.add_vertex(id, data=item)

    def __delitem__(self, id: str) -> None:
        self[id]  # raises KeyError
        del self._toolkit.get_graph().nodes[id]["data"]

    def __iter__(self) -> Iterator[str]:
        return (vertex for vertex, item in self._toolkit.items() if isinstance(item, self._kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class _Scores(MutableMapping[Edge, float]):
    """The scores that were set explicitly, by edge."""

    def __init__(self, toolkit: Toolkit) -> None:
        self._edges: Any = toolkit.get_graph().edges
        self._toolkit = toolkit

    def __getitem__(self, edge: Edge) -> float:
        score: float = self._edges[edge]["score"]
        return score

    def __setitem__(self, edge: Edge, score: float) -> None:
        try:
            self._toolkit.set_score(*edge, score)
        except ToolkitError as error:
            raise KeyError(edge) from error

    def __delitem__(self, edge: Edge) -> None:
        del self._edges[edge]["score"]

    def __iter__(self) -> Iterator[Edge]:
        return ((u, v) for u, v, score in self._edges.data("score") if score is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Service(GraphService):
    """The methods of the process's one service, for any graph."""

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        super().__init__(Toolkit() if toolkit is None else toolkit)

    def get_action(self, *ids: str) -> Action:
        """Return a copy of an action, for ``get_action(action_id)`` or ``get_action(id, action_id)``.

        Raises:
            ToolkitError: there is no such action (it is a ValueError).
        """
        return super().get_action(_last(ids))

    def remove_tool(self, *ids: str) -> None:
        """Remove a tool, for ``remove_tool(tool_id)`` or ``remove_tool(id, tool_id)``."""
        self.get_toolkit().remove_vertex(_last(ids))

    def remove_action(self, *ids: str) -> None:
        """Remove an action, for ``remove_action(action_id)`` or ``remove_action(id, action_id)``."""
        self.get_toolkit().remove_vertex(_last(ids))

    def add_tool_group(self, tool_group: GraphGroup, connected_actions: Sequence[Scored] = ()) -> None:
        """Ask a group for its tools and add them: each action gets an edge to each tool, and so does the group, with the score 1.0.

        Tools that the group listed before are recognised by name; those that it no longer lists are removed.

        Raises:
            ToolkitError: an argument is of another kind, a score is not within 0 and 1, or an id belongs to something of another kind.
        """
        expect("tool_group", tool_group, GraphGroup)
        listed = {tool.name: tool for tool in _listed(tool_group)}
        (pairs,) = self._checked(tool_group, *listed.values(), connected_actions=connected_actions)
        toolkit = self.get_toolkit()
        toolkit.add_vertex(tool_group.id, data=tool_group)
        callers = self._known(pairs, tool_group.id)
        for member in toolkit.successors(tool_group.id):
            known = toolkit.item(member)
            if isinstance(known, GraphTool) and known.name in listed:
                listed[known.name] = known
            else:
                # Not by remove_vertex, which would remove the group together with its last tool.
                toolkit.get_graph().remove_node(member)
        for tool in listed.values():
            self._put(tool.id, tool)
            toolkit.add_edge(tool_group.id, tool.id)
            for action, score in callers:
                toolkit.add_edge(action, tool.id, score)
        if not callers:
            telemetry.log.warning("toolkit.group_unreachable", group=tool_group.id)


class ToolkitService(Service, metaclass=Singleton):
    """The service of this process.

    ``ToolkitService()`` creates it once and returns it from then on; ``ToolkitService.instance`` is the service, or None.
    """


def _listed(group: GraphGroup) -> list[GraphTool]:
    if not isinstance(group, ToolGroup):
        return group.tools
    return [each if isinstance(each, GraphTool) else _mcp_tool(each, group) for each in finished(group.list_tools())]


def _mcp_tool(about: Any, group: ToolGroup) -> McpTool:
    return McpTool(
        about.name, about.description or "", group, parameters=getattr(about, "input_schema", None) or getattr(about, "inputSchema", None)
    )


def _last(ids: tuple[str, ...]) -> str:
    """Return the id, which may stand after an id of the toolkit."""
    if len(ids) not in {1, 2}:
        raise TypeError(f"give the id, or the toolkit's id and the id; these are {len(ids)} arguments")
    return ids[-1]


class ToolkitWrapper(GraphWrapper):
    """Adds chains to the graph of ``ToolkitService.instance``, or to a given graph."""

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        self._own = None if toolkit is None else Service(toolkit)

    @property
    def service(self) -> Service:
        """The service that adds to the graph."""
        found: Service = self._own or ToolkitService.instance or ToolkitService()
        return found

    def action(self, action: Action, tools: list[GraphTool] | None = None) -> Self:
        """Add an action with the tools that it calls."""
        self.chain(action, tuple(tools)) if tools else self.chain(action)
        return self


def init_server() -> None:
    """Do nothing: there is no database to make, and services are made when they are first used."""
