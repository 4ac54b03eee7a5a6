"""Rules for the values that programs give as options, each with the words that say it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeVar

from toolbus.bus.support.display import shortened
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ConfigurationError

T = TypeVar("T")

# Characters of a wrong value in a message.
_MOST_TOLD = 80


class Rule(NamedTuple):
    """A condition on an option's value.

    Attributes:
        expected: the words after "must be".
        holds: returns whether a value is that.
    """

    expected: str
    holds: Callable[[Any], bool]


def check(values: Mapping[str, object], rules: Mapping[str, Rule], of: str) -> None:
    """Check the values of options.

    Args:
        values: by option.
        rules: the rule of each option.
        of: what has these options, for the message.

    Raises:
        ConfigurationError: a value breaks its rule; names the option, and what is expected.
    """
    if wrong := flaw(values, rules):
        raise ConfigurationError(f"{of}: {wrong}")


def flaw(values: Mapping[str, object], rules: Mapping[str, Rule]) -> str:
    """Return which option breaks its rule, and what is expected; an empty text when none does."""
    for name, value in values.items():
        if not rules[name].holds(value):
            return _broken(value, name, rules[name])
    return ""


def checked(value: T, name: str, rule: Rule) -> T:
    """Return the value of an option.

    Raises:
        ConfigurationError: it breaks the rule; names the option, and what is expected.
    """
    if not rule.holds(value):
        raise ConfigurationError(_broken(value, name, rule))
    return value


def _broken(value: object, name: str, rule: Rule) -> str:
    return f"{name} must be {rule.expected}, not {told(value)}"


def told(value: object) -> str:
    """Return a wrong value and its type, for a message."""
    try:
        said = repr(value)
    except BaseException:  # noqa: BLE001 - a class of the user's own may fail here, and its type says enough
        said = "a value"
    return f"{shortened(said, _MOST_TOLD)} ({type_name(value)})"


def or_none(rule: Rule) -> Rule:
    """Return the rule of an option that may be left out."""
    return Rule(f"{rule.expected}, or None", lambda value: value is None or rule.holds(value))


def whole(expected: str, least: int = 0) -> Rule:
    """Return the rule of a whole number of at least ``least``."""
    return Rule(expected, lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least)


def number(expected: str, *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf) -> Rule:
    """Return the rule of a number between ``least`` and ``most``, and above ``above``."""

    def holds(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most and value > above

    return Rule(expected, holds)


def one_of(*words: str) -> Rule:
    """Return the rule of an option that is one of some words."""
    return Rule(f"one of {', '.join(map(repr, words))}", lambda value: isinstance(value, str) and value in words)


def _are_texts(value: Any) -> bool:
    listed = isinstance(value, Collection) and not isinstance(value, (bytes, bytearray, Mapping))
    return listed and all(isinstance(each, str) for each in value)


TEXT = Rule("a text", lambda value: isinstance(value, str))
TEXTS = Rule("a list of texts, or one text", _are_texts)
FLAG = Rule("True or False", lambda value: isinstance(value, bool))
MAPPING = Rule("a mapping", lambda value: isinstance(value, Mapping))
FUNCTION = Rule("a function", callable)


def names(value: Any) -> tuple[str, ...]:
    """Return the texts of an option that may be one text."""
    return (value,) if isinstance(value, str) else tuple(value)
