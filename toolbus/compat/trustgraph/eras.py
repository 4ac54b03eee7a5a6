"""Tell the two forms of TrustGraph's signatures apart: with the user first, as before April 2026, or without."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.results import ConfigurationError


class Given(NamedTuple):
    """The arguments of a client's call in either form; ``user`` is empty in the later one."""

    user: str
    config: Mapping[str, Any]
    arguments: Mapping[str, Any]
    callback: Any
    timeout: float


def takes_user(invoke: Callable[..., Any]) -> bool:
    """Return whether a service's ``invoke`` takes ``(user, config, arguments)`` instead of ``(config, arguments)``.

    The first parameter's name decides, then the number of parameters without a default. ``*args`` gets all three.

    Raises:
        ConfigurationError: it can be called in neither form.
    """
    return _takes_user(getattr(invoke, "__func__", invoke), inspect.ismethod(invoke))


@functools.lru_cache(256)
def _takes_user(function: Callable[..., Any], bound: bool) -> bool:
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    positional = [each for each in parameters if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD}]
    required = [each for each in positional if each.default is each.empty]
    more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    named_only = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty]
    first = positional[0].name if positional else ""
    user = first == "user" or (first != "config" and (more or len(required) != 2))
    taken = 3 if user else 2
    if named_only or len(required) > taken or (len(positional) < taken and not more):
        given = ", ".join(str(each) for each in parameters)
        raise ConfigurationError(f"invoke({given}) can't be called: it takes (config, arguments) or (user, config, arguments)")
    return user


def given(method: str, values: tuple[Any, ...], named: Mapping[str, Any], *, callback: bool = False) -> Given:
    """Return the arguments of ``call(user, config, arguments, …)`` or ``call(config, arguments, …)``.

    A first argument that is a text is the user; so is None, when two objects follow it.

    Raises:
        TypeError: they fit neither form.
    """
    names = ["config", "arguments", *(["callback"] if callback else []), "timeout"]
    if "user" not in named and _starts_with_user(values, named):
        names.insert(0, "user")
    if len(values) > len(names):
        raise TypeError(f"{method}() takes at most {len(names)} arguments here ({', '.join(names)}), not {len(values)}")
    found = dict(zip(names, values, strict=False))
    for name, value in named.items():
        if name not in {*names, "user"}:
            raise TypeError(f"{method}() has no argument {name!r}; it takes ([user,] {', '.join(names)})")
        if name in found:
            raise TypeError(f"{method}() got {name!r} twice")
        found[name] = value
    for name in ("config", "arguments", *(["callback"] if callback else [])):
        if name not in found:
            raise TypeError(f"{method}() needs {name!r}; it takes ([user,] {', '.join(name for name in names if name != 'user')})")
    for name in ("config", "arguments"):
        if not isinstance(found[name] or {}, Mapping):
            raise TypeError(f"{name} of {method}() is an object or None, not {type_name(found[name])}")
    return Given(
        str(found.get("user") or ""),
        found["config"] or {},
        found["arguments"] or {},
        found.get("callback"),
        float(found.get("timeout", 600)),
    )


def _starts_with_user(values: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    if not values:
        return False
    if isinstance(values[0], str):
        return True
    # call(None, {…}, {…}): a third object can be neither a timeout nor a callback.
    two_objects = len(values) > 2 and isinstance(values[1], Mapping) and isinstance(values[2], Mapping)
    return values[0] is None and (two_objects or "config" in named)
