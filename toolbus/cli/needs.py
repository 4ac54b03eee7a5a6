"""Refuse options that mean nothing without another one, before their command runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import click
from click.core import ParameterSource

_API = ("openapi",)
_MADE = ("generated", "noise")
_WALK = ("walk", "actions", "operator")
_START = ("starts",)

NEEDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "agent": {"threshold": _WALK, "hops": _WALK, "explore": _WALK},
    "draw": {"threshold": _START, "hops": _START},
    "evaluate": {"episodes": _MADE, "wrong": _MADE},
    "mount": {"query": _API, "base_url": _API, "hosts": _API},
    "serve": dict.fromkeys(("issuer", "audiences", "user_claim", "groups_claim", "tools_claim", "permissions_claim"), ("keys",)),
}
"""For each command, the parameters that need one of others."""

_EVERYWHERE: Mapping[str, tuple[str, ...]] = {"health_host": ("health_port",)}


def needs(command: click.Command) -> dict[str, tuple[str, ...]]:
    """Return the parameters of a command that need one of others."""
    names = {param.name for param in command.params}
    rows = {**_EVERYWHERE, **NEEDS.get(command.name or "", {})}
    return {name: others for name, others in rows.items() if name in names and names.issuperset(others)}


def check_needs(command: click.Command) -> None:
    """Let a command refuse, as a usage error, an option on the command line that another one must come with."""
    callback, rows = command.callback, needs(command)
    if callback is None or not rows:
        return

    @functools.wraps(callback)
    def checked(*words: Any, **given: Any) -> Any:
        context = click.get_current_context()
        for name, others in rows.items():
            # A variable may be there for other commands, too.
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and not any(_is_given(context, each) for each in others):
                words_of = " or ".join(_option(command, each) for each in others)
                raise click.UsageError(f"{_option(command, name)} means nothing alone: give {words_of}, too", context)
        return callback(*words, **given)

    command.callback = checked


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) not in {None, ParameterSource.DEFAULT}


def _option(command: click.Command, name: str) -> str:
    return next(param.opts[0] for param in command.params if param.name == name)
