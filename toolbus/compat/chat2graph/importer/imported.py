"""``import_config``: read a ``chat2graph.yml`` as a graph, as presets, and as each expert's part of the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from toolbus.bus.values.results import ToolkitError
from toolbus.bus.worker.definition.objects import ToolObject
from toolbus.compat.chat2graph.core.toolkit.toolkit import Toolkit
from toolbus.compat.chat2graph.importer.building import build
from toolbus.compat.chat2graph.importer.entries import Config, ExpertEntry, OperatorEntry
from toolbus.compat.chat2graph.importer.reading import Problem, read
from toolbus.toolkit.graph import Action, Tool, ToolGroup, recommend_subgraph
from toolbus.toolkit.graph import Toolkit as Graph
from toolbus.toolkit.presets import MAX_BYTES, LiveGroup, Source, read_preset

THRESHOLD, HOPS = 0.5, 0
"""The score and the number of hops that every operator of that project has."""


class Imported:
    """A file's graph, operators and experts.

    Attributes:
        toolkit: the graph; vertices have the names of the file, and actions the ids that it gives them.
        problems: one line for each entry that is wrong, with file, line and path; the other entries were imported.
        operators: the operators, with their instructions; ``Leader`` starts at the leader's actions.
        experts: the experts, with the ids of their operators.
    """

    def __init__(self, config: Config, toolkit: Toolkit, problems: list[str]) -> None:
        self._config = config
        self._starts = {each.name: Action(each.id, each.name, each.description) for each in config.actions}
        self.toolkit = toolkit
        self.problems = problems
        self.operators: dict[str, OperatorEntry] = {each.id: each for each in config.operators}
        self.experts: dict[str, ExpertEntry] = {each.name: each for each in config.experts}

    def __toolbus_tools__(self) -> list[ToolObject]:
        """Return the tools, for a worker of the module that holds this."""
        return self.toolkit.__toolbus_tools__()

    def toolkit_of(self, expert: str) -> Graph:
        """Return the part of the graph that an expert's operators see.

        Raises:
            ToolkitError: there is no such expert.
        """
        found = self.experts.get(expert)
        if found is None:
            raise ToolkitError(f"there is no expert {expert!r} (there are: {', '.join(self.experts) or 'none'})")
        seen: dict[str, None] = {}
        for operator in found.operators:
            starts = [self._starts[name] for name in self.operators[operator].actions]
            seen |= dict.fromkeys(recommend_subgraph(self.toolkit, starts, threshold=THRESHOLD, hops=HOPS).vertices())
        return self.toolkit.subgraph(list(seen))

    def preset(self) -> dict[str, Any]:
        """Return the graph and the operators as a preset, whose tools are those that a worker of the same file serves.

        An operator's output schema stands at the end of its instruction.
        """
        items = dict(self.toolkit.items())
        actions = [
            {
                "id": vertex,
                "name": item.name,
                "description": item.description,
                "next": [to for to in self.toolkit.successors(vertex) if isinstance(items.get(to), Action)],
                "call": [to for to in self.toolkit.successors(vertex) if isinstance(items.get(to), Tool | ToolGroup)],
            }
            for vertex, item in items.items()
            if isinstance(item, Action)
        ]
        found = [(vertex, item) for vertex, item in items.items() if isinstance(item, ToolGroup)]
        groups = [{"id": vertex, "name": group.name, **self._members(vertex, group)} for vertex, group in found]
        tools = [{"id": vertex, "name": item.name, "bus": item.name} for vertex, item in items.items() if isinstance(item, Tool)]
        made = {
            "name": re.sub(r"[^A-Za-z0-9_.-]", "-", self._config.name)[:128],
            "description": self._config.description,
            "tools": tools,
            "groups": groups,
            "actions": actions,
            "operators": [self._operator(each) for each in self.operators.values()],
        }
        read_preset(msgspec.json.encode(made))
        return made

    def _members(self, id: str, group: ToolGroup) -> dict[str, Any]:
        return {"group": group.group} if isinstance(group, LiveGroup) else {"tools": self.toolkit.successors(id)}

    def _operator(self, operator: OperatorEntry) -> dict[str, Any]:
        schema = f"\n\nAnswer in this form:\n{operator.output_schema}" if operator.output_schema else ""
        starts = [self._starts[name].id for name in operator.actions]
        made = {"id": operator.id, "instruction": operator.instruction + schema, "actions": starts}
        return {**made, "threshold": THRESHOLD, "hops": HOPS}


def import_config(path: str | Path, *, rename: Mapping[str, str] | None = None, connect: bool = False) -> Imported:
    """Read a ``chat2graph.yml``, import the modules of its tools, and build its graph. Only for files that are trusted like code.

    Args:
        path: the file.
        rename: beginnings of modules' names, and what stands in their place: ``{"app.": "mine."}``.
        connect: ask MCP servers for their tools now, which starts the commands of those with the transport STDIO. Otherwise the
            group of a server is the bus's tools of the registry group with the server's name.

    Raises:
        ToolkitError: the file can't be read or is no YAML; what is wrong within it is in ``problems``.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ToolkitError(f"can't read {str(path)!r}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ToolkitError(f"{path}: a file may have {MAX_BYTES:,} bytes, this one has more")
    source = Source(data, str(path))
    problems: list[Problem] = []
    config = read(source.parse(), problems)
    toolkit = build(config, problems, rename=rename or {}, connect=connect)
    return Imported(config, toolkit, [_line(source, *problem) for problem in problems])


def _line(source: Source, path: str, problem: str) -> str:
    return str(source.error(path, problem)).replace(": preset: ", ": ", 1) if path == "$" else str(source.error(path, problem))
