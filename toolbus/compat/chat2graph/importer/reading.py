"""Read the entries of a ``chat2graph.yml`` from its parsed document, and note what is wrong with each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolbus.compat.chat2graph.importer.entries import ActionEntry, Config, ExpertEntry, GroupEntry, OperatorEntry, ToolEntry

Problem = tuple[str, str]
"""A path (``$.actions[3].tools[0]``), and what is wrong there."""

SECTIONS = ("app", "plugin", "reasoner", "tools", "actions", "toolkit", "operators", "experts", "leader", "knowledgebase", "memory", "env")
LEADER = "Leader"

_MOST_NAME = 256
_MOST_MERGES = 32
_ABSENT = object()


def read(document: object, problems: list[Problem]) -> Config:
    """Return what can be used of a document; add to ``problems`` what can't."""
    return _Reader(problems).config(document)


class _Reader:
    def __init__(self, problems: list[Problem]) -> None:
        self._problems = problems
        self._tools: dict[str, ToolEntry | GroupEntry] = {}
        self._actions: dict[str, ActionEntry] = {}
        self._ids: set[str] = set()
        self._operators: dict[str, OperatorEntry] = {}

    def config(self, document: object) -> Config:
        if not isinstance(document, dict):
            self._note("$", f"the file is a mapping of sections ({', '.join(SECTIONS)}), not {_shown(document)}")
            document = {}
        for section in document:
            if section not in SECTIONS:
                self._note(f"$.{section}", f"there is no section {str(section)[:80]!r}; the sections are {', '.join(SECTIONS)}")
        app = document.get("app") or {}
        if not isinstance(app, dict):
            self._note("$.app", f"it is a mapping, not {_shown(app)}")
            app = {}
        for path, entry in self._mappings("$.tools", document.get("tools")):
            self._tool(path, entry)
        for path, entry in self._mappings("$.actions", document.get("actions")):
            self._action(path, entry)
        chains = tuple(chain for path, each in self._list("$.toolkit", document.get("toolkit")) if (chain := self._chain(path, each)))
        experts = tuple(self._experts(document.get("experts")))
        self._leader(document.get("leader"))
        self._unused(document.get("operators"))
        found = self._tools.values()
        return Config(
            name=self._text("$.app", app, "name") or "chat2graph",
            description=self._text("$.app", app, "desc"),
            tools=tuple(each for each in found if isinstance(each, ToolEntry)),
            groups=tuple(each for each in found if isinstance(each, GroupEntry)),
            actions=tuple(self._actions.values()),
            chains=chains,
            operators=tuple(self._operators.values()),
            experts=experts,
        )

    # -- entries ----------------------------------------------------------------------------------

    def _tool(self, path: str, entry: dict[str, Any]) -> None:
        name = self._name(path, entry, self._tools)
        kind = entry.get("type", "LOCAL_TOOL")
        if not name:
            return
        if kind == "MCP":
            transport = entry.get("mcp_transport_config") or {}
            if isinstance(transport, dict):
                self._tools[name] = GroupEntry(path, name, transport)
            else:
                self._note(f"{path}.mcp_transport_config", f"it is a mapping, not {_shown(transport)}; the tool is left out")
        elif kind != "LOCAL_TOOL":
            self._note(f"{path}.type", f"the tool {name!r} has the type {_shown(kind)}, not LOCAL_TOOL or MCP; it is left out")
        elif module := self._text(path, entry, "module_path"):
            self._tools[name] = ToolEntry(path, name, module, self._text(path, entry, "desc"))
        else:
            self._note(f"{path}.module_path", f"the tool {name!r} needs the module that has its class; it is left out")

    def _action(self, path: str, entry: dict[str, Any]) -> None:
        name = self._name(path, entry, self._actions)
        if not name:
            return
        vertex = self._text(path, entry, "id") or name
        if len(vertex) > _MOST_NAME or vertex in self._tools or vertex in self._ids:
            self._note(f"{path}.id", f"the id {vertex[:80]!r} of the action {name!r} is too long or taken; the action is left out")
            return
        tools = tuple(dict.fromkeys(self._references(f"{path}.tools", entry.get("tools"), self._tools, "tools")))
        self._ids.add(vertex)
        self._actions[name] = ActionEntry(path, vertex, name, self._text(path, entry, "desc"), tools)

    def _chain(self, path: str, links: object) -> tuple[str, ...]:
        return tuple(self._references(path, links, self._actions, "actions"))

    def _experts(self, section: object) -> Iterator[ExpertEntry]:
        taken: dict[str, object] = {LEADER: None}
        for path, entry in self._mappings("$.experts", section):
            profile = entry.get("profile")
            if not isinstance(profile, dict):
                self._note(f"{path}.profile", "an expert has a profile with its name; it is left out")
                continue
            name = self._name(f"{path}.profile", profile, taken)
            if not name:
                continue
            taken[name] = None
            found: list[tuple[str, dict[str, Any]]] = []
            for at, stage in self._list(f"{path}.workflow", entry.get("workflow")):
                found += self._mappings(at, stage)
            ids = [f"{name}/{number}" if len(found) > 1 else name for number in range(1, len(found) + 1)]
            made = [each for each, (at, operator) in zip(ids, found, strict=True) if self._operator(at, operator, each)]
            yield ExpertEntry(name, self._text(f"{path}.profile", profile, "desc"), tuple(made))

    def _operator(self, path: str, entry: dict[str, Any], id: str) -> bool:
        if len(id) > _MOST_NAME or id in self._operators:
            self._note(path, f"the operator's id {id[:80]!r} is too long or taken; it is left out")
            return False
        actions = tuple(dict.fromkeys(self._references(f"{path}.actions", entry.get("actions"), self._actions, "actions")))
        if not actions:
            self._note(path, f"the operator {id!r} has no action to start at, so nothing is recommended to it")
        texts = (self._text(path, entry, "instruction"), self._text(path, entry, "output_schema"))
        self._operators[id] = OperatorEntry(path, id, *texts, actions)
        return True

    def _leader(self, section: object) -> None:
        if section is None:
            return
        if not isinstance(section, dict):
            self._note("$.leader", f"it is a mapping, not {_shown(section)}")
        elif section.get("actions"):
            self._operator("$.leader", section, LEADER)

    def _unused(self, section: object) -> None:
        """Read the operators that stand in no workflow; the others are aliases of entries here."""
        used = {(each.instruction, each.output_schema) for each in self._operators.values()}
        for number, (path, entry) in enumerate(self._mappings("$.operators", section), 1):
            if (entry.get("instruction") or "", entry.get("output_schema") or "") not in used:
                self._note(path, f"the operator stands in no expert's workflow; it is imported as 'operator {number}'")
                self._operator(path, entry, f"operator {number}")

    # -- values -----------------------------------------------------------------------------------

    def _note(self, path: str, problem: str) -> None:
        self._problems.append((path, problem))

    def _list(self, path: str, value: object) -> Iterator[tuple[str, Any]]:
        if value is None:
            return
        if not isinstance(value, list):
            self._note(path, f"it is a list, not {_shown(value)}")
            return
        for index, each in enumerate(value):
            yield f"{path}[{index}]", each

    def _mappings(self, path: str, value: object) -> Iterator[tuple[str, dict[str, Any]]]:
        for at, each in self._list(path, value):
            if isinstance(each, dict):
                yield at, _merged(each)
            else:
                self._note(at, f"an entry is a mapping, not {_shown(each)}; it is left out")

    def _text(self, path: str, entry: dict[str, Any], key: str) -> str:
        value = entry.get(key)
        if value is None or isinstance(value, str):
            return value or ""
        self._note(f"{path}.{key}", f"it is a text, not {_shown(value)}; it is left empty")
        return ""

    def _name(self, path: str, entry: dict[str, Any], taken: dict[str, Any]) -> str:
        """Return the entry's name, or an empty text when it can't be used."""
        name = entry.get("name", _ABSENT)
        if not isinstance(name, str) or not 1 <= len(name) <= _MOST_NAME:
            shown = "it has none" if name is _ABSENT else f"not {_shown(name)}"
            self._note(f"{path}.name", f"an entry needs a name of 1 to {_MOST_NAME} characters, {shown}; it is left out")
            return ""
        if name in taken:
            self._note(f"{path}.name", f"the name {name!r} is taken by an entry above; this one is left out")
            return ""
        return name

    def _references(self, path: str, value: object, known: dict[str, Any], section: str) -> Iterator[str]:
        for at, each in self._list(path, value):
            name = each.get("name") if isinstance(each, dict) else each
            if not isinstance(name, str):
                self._note(at, f"expected an alias or a name of one of the {section}, got {_shown(each)}")
            elif name not in known:
                self._note(at, f"there is no usable entry {name[:80]!r} among the {section}")
            else:
                yield name


def _merged(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an entry with the entries of its merge keys (``<<: *alias``) below its own."""
    for _ in range(_MOST_MERGES):
        if "<<" not in entry:
            break
        below = entry["<<"]
        found: dict[str, Any] = {}
        for each in reversed(below if isinstance(below, list) else [below]):
            found |= each if isinstance(each, dict) else {}
        entry = {**found, **{key: value for key, value in entry.items() if key != "<<"}}
    return entry


def _shown(value: object) -> str:
    if isinstance(value, (dict, list, str)):
        return {dict: "a mapping", list: "a list", str: "a text"}[type(value)] if value else "an empty one"
    return "empty" if value is None else repr(value)[:80]
