"""Modules that a ``chat2graph.yml`` of the tests names: tools with a service, and classes that can't be used."""

from __future__ import annotations

from toolbus.compat.chat2graph.core.common.singleton import Singleton
from toolbus.compat.chat2graph.core.model.task import ToolCallContext
from toolbus.compat.chat2graph.core.toolkit.tool import Tool


class GraphDbService(metaclass=Singleton):
    """A service of which there is one."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.labels = ["Person"]


class _Named(Tool):
    def __init__(self, method: str) -> None:
        function = getattr(self, method)
        super().__init__(name=method, description=function.__doc__ or "", function=function)


class SchemaGetter(_Named):
    """A tool as that project's authors write one."""

    def __init__(self) -> None:
        super().__init__("get_schema")

    async def get_schema(self, graph_db_service: GraphDbService, tool_call_ctx: ToolCallContext, label: str) -> str:
        """Get the schema of a label.

        Args:
            label: which one
        """
        return f"{label} in {graph_db_service.labels} for {tool_call_ctx.job_id}/{tool_call_ctx.operator_id}"


class CypherExecutor(_Named):
    """A plain function."""

    def __init__(self) -> None:
        super().__init__("run_cypher")

    def run_cypher(self, query: str) -> str:
        """Run a query."""
        return query.lower()


class SameName(_Named):
    """Its tool has the name of another."""

    def __init__(self) -> None:
        super().__init__("run_cypher")

    def run_cypher(self, query: str) -> str:
        """Run it otherwise."""
        return query


class NeedsArguments(_Named):
    """Can't be made without arguments."""

    def __init__(self, place: str) -> None:
        super().__init__("run")
        self.place = place

    def run(self, text: str) -> str:
        """Tell the place."""
        return f"{self.place}: {text}"


class Leaving:
    """Ends the process that makes one."""

    def __init__(self) -> None:
        raise SystemExit(3)


class Foreign:
    """A tool of another class than ours, with that project's properties."""

    name = "foreign"
    description = ""

    def function(self, text: str) -> str:
        """Say it backwards."""
        return text[::-1]
