"""JSON as models damage it: every way that the repair claims to mend, made of a value."""

from __future__ import annotations

import ast
import contextlib
import json
import warnings
from collections.abc import Callable
from typing import Any

Quote = Callable[[str], str]


def written(value: Any, quote: Quote = json.dumps, *, comma: str = "", words: tuple[str, str, str] = ("true", "false", "null")) -> str:
    """Return a value as JSON, except for the strings, the text before closing brackets, and the words."""
    if isinstance(value, str):
        return quote(value)
    if value is None or isinstance(value, bool):
        return words[2] if value is None else words[0] if value else words[1]
    if isinstance(value, dict):
        parts = ", ".join(f"{quote(key)}: {written(part, quote, comma=comma, words=words)}" for key, part in value.items())
        return f"{{{parts}{comma if value else ''}}}"
    if isinstance(value, list):
        return f"[{', '.join(written(part, quote, comma=comma, words=words) for part in value)}{comma if value else ''}]"
    return json.dumps(value)


def _with_raw_controls(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _with_lone_backslashes(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\\\\", "\\")


def _with_only_quotes_escaped(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def _in_single_quotes(text: str) -> str:
    return "'" + json.dumps(text)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"


def _lone_in_single_quotes(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"


PYTHON = ("True", "False", "None")

DAMAGES: dict[str, Callable[[dict[str, Any]], str]] = {
    "fence": lambda value: f"```json\n{json.dumps(value)}\n```",
    "bare fence": lambda value: f"```{json.dumps(value)}```",
    "mark": lambda value: "\ufeff" + json.dumps(value),
    "repetition": lambda value: f"{json.dumps(value)}\n{json.dumps(value, indent=1)}",
    "empty before": lambda value: "{}" + json.dumps(value),
    "words after": lambda value: f"{json.dumps(value)} that's it",
    "bracket after": lambda value: json.dumps(value) + "}",
    "encoded twice": lambda value: json.dumps(json.dumps(value)),
    "trailing commas": lambda value: written(value, comma=","),
    "spaced trailing commas": lambda value: written(value, comma=" ,\n "),
    "raw control characters": lambda value: written(value, _with_raw_controls),
    "lone backslashes": lambda value: written(value, _with_lone_backslashes),
    "only quotes escaped": lambda value: written(value, _with_only_quotes_escaped),
    "Python's words": lambda value: written(value, words=PYTHON),
    "Python": repr,
    "single quotes": lambda value: written(value, _in_single_quotes),
    "single quotes, lone backslashes": lambda value: written(value, _lone_in_single_quotes, words=PYTHON),
    "fence, Python, comma": lambda value: f"```python\n{written(value, repr, comma=',', words=PYTHON)}\n```",
    "fence, lone backslashes, words after": lambda value: f"```json\n{written(value, _with_lone_backslashes)} done\n```",
}


def said(text: str) -> list[Any]:
    """Return the value of a text that is JSON, or a Python literal, without any slip; nothing for another text."""
    with contextlib.suppress(ValueError):
        return [json.loads(text, parse_constant=_refuse)]
    with warnings.catch_warnings(), contextlib.suppress(ValueError, SyntaxError):
        warnings.simplefilter("error")
        return [ast.literal_eval(text)]
    return []


def _refuse(word: str) -> None:
    raise ValueError(word)


UNITS = [
    '\\"', '"', "'", "\\'", "\\", "\\\\", "\\w", "\\n", "\\u0041", "{", "[", "(", "}", "]", ",", ",]", "[],", "{}", " ", "\n", "\t", '"a",',
    "'a',", '"a":', "```", ":", "a", "1", "True,", '{"a":', '{"a":1}', "/*", "#", "é", "\x01", "\\é", '"a":1,',
]  # fmt: skip
STARTS = ["", "{", '{"a": "', "{'a': '", '{"a": [', '{"a": 1}', "```json ", '```{"a": "x']
ENDS = ["", '"}', "'}", "]}"]


def hostile(start: str, unit: str, end: str, size: int) -> str:
    """Return a text of about this many characters that repeats a unit."""
    return start + unit * (size // len(unit)) + end
