"""Parse the text of a preset, and find the line of an error in it."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import ryaml
import yaml

from toolbus.bus.client.tools.tool import Tool as BusTool
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.schema.documents import RepeatedKeyError, read_document
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ToolkitError
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.collect import collect
from toolbus.bus.worker.service import ToolService
from toolbus.toolkit.items import Tool, ToolGroup

_BRACKET = re.compile(r"[\[\]{}]")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[\.\.\.\]")
# PyYAML makes a node of each value (about 10 µs), so lines are only looked up in the start of a larger text.
_MOST_BRACKETS = 1000
_MOST_LOCATED = 2 * 1024 * 1024


class Source:
    """The text of a preset, as YAML (which includes JSON) or JSON.

    ``ryaml`` reads it, in a tenth of PyYAML's time and with bounds on nesting and on repeated aliases. PyYAML is only used to find
    the line of an error.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name

    def parse(self) -> Any:
        """Return the parsed document.

        Raises:
            ToolkitError: it is neither YAML nor JSON; the message names the line.
        """
        try:
            text = self._data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = self._data.count(b"\n", 0, error.start) + 1
            raise ToolkitError(f"{self._name}:{line}: not UTF-8 text") from None
        if text.lstrip()[:1] == "{":
            try:
                return read_document(text, object)
            except RepeatedKeyError as error:
                key = json.dumps(error.key)
                raise ToolkitError(f"{self._name}{self._repeated(key)}: {error}") from None
            except ValueError:
                pass  # it may be YAML in flow style
        if _brackets(text) > _MOST_BRACKETS:
            raise ToolkitError(f"{self._name}: not YAML that a preset can be: more than {_MOST_BRACKETS} brackets are open")
        try:
            return ryaml.loads(text)
        except ryaml.InvalidYamlError as error:
            message = str(error)
            found = re.search(r" at line (\d+) column \d+", message)
            place = f":{found[1]}" if found else self._line_of_repeated(message)
            raise ToolkitError(f"{self._name}{place}: not YAML: {re.sub(r' at line [0-9]+ column [0-9]+', '', message)}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise ToolkitError(f"{self._name}: not YAML that a preset can be: {error}") from None

    def error(self, path: str, message: str) -> ToolkitError:
        """Return an error for a path (``$.actions[3].next[0]``); the message begins with file and line."""
        line = self._line(path)
        return ToolkitError(f"{self._name}{f':{line}' if line else ''}: {path.removeprefix('$').removeprefix('.') or 'preset'}: {message}")

    def _line(self, path: str) -> int | None:
        """Return the line of a path, or of the nearest parent that can be found."""
        node = self._nodes
        line: int | None = node.start_mark.line + 1 if node is not None else None
        for name, index in _STEP.findall(path):
            node, line = _below(node, name, index, line)
            if node is None:
                break
        return line

    @functools.cached_property
    def _nodes(self) -> Any:
        try:
            return yaml.compose(self._data[:_MOST_LOCATED] if len(self._data) > _MOST_LOCATED else self._data, _LOADER)
        except (yaml.YAMLError, RecursionError, UnicodeDecodeError):
            return None

    def _line_of_repeated(self, message: str) -> str:
        """Return the line of a key that stands twice, since the parser reports only the key."""
        found = re.search(r'duplicate entry with key "(.*)"', message)
        return "" if found is None else self._repeated(f"{found[1]}:")

    def _repeated(self, start: str) -> str:
        """Return the line of the second key of two, of lines that start with it; empty when that is not clear."""
        lines = [number for number, line in enumerate(self._data.splitlines(), 1) if line.strip().startswith(start.encode())]
        return f":{lines[-1]}" if len(lines) == 2 else ""


def _brackets(text: str) -> int:
    """Return the greatest number of open brackets. The parser's time grows with its square before it checks the number."""
    if text.count("[") + text.count("{") <= _MOST_BRACKETS:
        return 0
    opened = most = 0
    for found in _BRACKET.finditer(text):
        opened = opened + 1 if found[0] in "[{" else max(0, opened - 1)
        most = max(most, opened)
    return most


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _below(node: Any, name: str, index: str, line: int | None) -> tuple[Any, int | None]:
    """Return the node under a key or at an index, and its line."""
    if isinstance(node, yaml.MappingNode) and name:
        for key, value in node.value:
            if key.value == name:
                return value, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode) and index and int(index) < len(node.value):
        found = node.value[int(index)]
        return found, found.start_mark.line + 1
    return None, line


def tool_of_bus(tool: BusTool) -> Tool:
    """Return a toolkit tool for a tool of the bus; its id and name are the bus tool's name."""
    return Tool(tool.name, tool.name, tool.description, tool.parameters)


def group_of_service(tools: ToolView, service: str) -> ToolGroup:
    """Return a group of every tool of a service of the bus, sorted by name; its id is ``service:`` and the service's id.

    Args:
        tools: ``bus.tools`` or a view of a part of it.

    Raises:
        ToolkitError: none of its tools is listed.
    """
    return _of_bus(f"service:{service}", service, [tool for tool in tools.values() if tool.service == service], f"the service {service!r}")


def group_of_registry(tools: ToolView, group: str) -> ToolGroup:
    """Return a group of every tool of the bus in a registry group, sorted by name; its id is ``group:`` and the group's name.

    Args:
        tools: ``bus.tools`` or a view of a part of it.

    Raises:
        ToolkitError: none of its tools is listed.
    """
    return _of_bus(f"group:{group}", group, tools.filter(groups=[group]).values(), f"the group {group!r}")


def group_of_worker(target: ModuleType | ToolService | type[ToolService]) -> ToolGroup:
    """Return a group of every tool that a worker of this module or service serves, as tools of the bus, sorted by name.

    The group's id is ``worker:`` and the module's name or the service's id.

    Raises:
        ConfigurationError: it has no tools, or one of them is invalid.
    """
    served = collect(target, Settings())
    name = target.__name__ if isinstance(target, ModuleType) else served[0].id
    tools = {tool.name: Tool(tool.name, tool.name, tool.description, tool.schema) for each in served for tool in each.publication.tools}
    return _group(f"worker:{name}", name, served[0].publication.service.description, tools.values(), f"the worker {name!r}")


def group_of_module(module: ModuleType) -> ToolGroup:
    """Return a group of every public function of a module as a tool that runs in this process, sorted by name.

    Public functions are those in ``__all__``, else those that the module defines. Tool ids are qualified names, since functions
    of several modules may share a name. The group's id is ``module:`` and the module's name.

    Raises:
        ToolkitError: the module has none.
    """
    tools = (Tool.from_function(function, id=f"{function.__module__}.{function.__qualname__}") for function in _public(module))
    about = inspect.cleandoc(module.__doc__ or "").partition("\n")[0]
    return _group(f"module:{module.__name__}", module.__name__, about, tools, f"the module {module.__name__!r}")


def group_of_definitions(id: str, definitions: Iterable[object], *, name: str = "", description: str = "") -> ToolGroup:
    """Return a group of tools of the bus made from definitions, sorted by name; tool ids are the group's id, a slash, and the name.

    A definition is a mapping or an object with ``name``, ``description``, and ``inputSchema`` or ``input_schema`` (as MCP
    clients list a server's tools) or ``parameters``.

    Raises:
        ToolkitError: there is no definition, one has no name, or two have the same name.
    """
    tools: dict[str, Tool] = {}
    for index, definition in enumerate(definitions):
        tool = _defined(id, index, definition)
        if tool.name in tools:
            raise ToolkitError(f"the group {id!r} has two definitions of the tool {tool.name!r}")
        tools[tool.name] = tool
    return _group(id, name or id, description, tools.values(), f"the group {id!r}")


def _of_bus(id: str, name: str, tools: Iterable[BusTool], what: str) -> ToolGroup:
    found = list(tools)
    service = found[0].service_descriptor if found and id.startswith("service:") else None
    return _group(id, name, "" if service is None else service.description, map(tool_of_bus, found), what)


def _group(id: str, name: str, description: str, tools: Iterable[Tool], what: str) -> ToolGroup:
    found = sorted(tools, key=lambda tool: tool.name)
    if not found:
        raise ToolkitError(f"{what} has no tools")
    return ToolGroup(id, name, description, found)


def _public(module: ModuleType) -> list[Callable[..., Any]]:
    named = getattr(module, "__all__", None)
    names = [name for name in vars(module) if not name.startswith("_")] if named is None else named
    found = [getattr(module, name, None) for name in names]
    return [each for each in found if inspect.isfunction(each) and (named is not None or each.__module__ == module.__name__)]


def _defined(group: str, index: int, definition: object) -> Tool:
    about = definition if isinstance(definition, Mapping) else _Attributes(definition)
    name = about.get("name")
    if not isinstance(name, str) or not name:
        raise ToolkitError(f"definition {index} of the group {group!r} has no name")
    schema = about.get("inputSchema") or about.get("input_schema") or about.get("parameters") or {"type": "object"}
    if not isinstance(schema, Mapping):
        raise ToolkitError(f"the schema of the tool {name!r} in the group {group!r} is a {type_name(schema)}, not an object")
    return Tool(f"{group}/{name}", name, about.get("description") or "", dict(schema), bus_name=name)


class _Attributes:
    """Reads an object's attributes through a mapping's ``get``."""

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def get(self, name: str) -> Any:
        """Return an attribute, or None."""
        return getattr(self._owner, name, None)
