"""Parse the text of a preset, and find the line of an error in it."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import ryaml
import yaml

from toolbus.results import ToolkitError
from toolbus.schema.documents import RepeatedKeyError, read_document

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
