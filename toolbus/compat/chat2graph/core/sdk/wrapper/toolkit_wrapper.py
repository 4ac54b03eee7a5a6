"""``ToolkitWrapper``: build the process's toolkit, or a given one, from chains."""

from __future__ import annotations

from typing import Self

from toolbus.bus.worker.definition.objects import ToolObject
from toolbus.compat.chat2graph.core.service.toolkit_service import Service, ToolkitService
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit
from toolbus.toolkit.graph import Action, Tool
from toolbus.toolkit.graph import Toolkit as Graph
from toolbus.toolkit.service import Link, add_chain


class ToolkitWrapper:
    """Adds chains to the graph of ``ToolkitService.instance``, or to a given graph."""

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        self._own = None if toolkit is None else Service(toolkit)

    @property
    def toolkit(self) -> Graph:
        """The graph."""
        return self._service().get_toolkit()

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools of the graph, for a worker of the module that holds the wrapper."""
        return self._service().__toolbus_tools__()

    def action(self, action: Action, tools: list[Tool] | None = None) -> Self:
        """Add an action with the tools that it calls."""
        self.chain(action, tuple(tools)) if tools else self.chain(action)
        return self

    def chain(self, *item_chain: Link) -> Self:
        """Add a chain of actions, tools and groups; see ``toolbus.toolkit.add_chain``.

        Raises:
            ToolkitError: the chain is impossible (it is a ValueError).
        """
        add_chain(self._service(), *item_chain)
        return self

    def _service(self) -> Service:
        found: Service = self._own or ToolkitService.instance or ToolkitService()
        return found
