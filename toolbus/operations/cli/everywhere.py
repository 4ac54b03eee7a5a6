"""Rules for the parameters of every command: the common options, before its name or after it, and texts that can be sent."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.core import ParameterSource

from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.common import no_command

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


_LEVELS = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
_FORMATS = click.Choice(["auto", "text", "json"], case_sensitive=False)

_OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "url": (("--url",), {"help": "Server, e.g. redis://localhost:6379 (TOOLBUS_URL)."}),
    "namespace": (("--namespace",), {"help": "Namespace whose tools to use (TOOLBUS_NAMESPACE)."}),
    "connect_timeout": (
        ("--connect-timeout",),
        {
            "type": click.FloatRange(min=0),
            "help": "Seconds to wait at the start for a server that can't be reached (TOOLBUS_CONNECT_TIMEOUT; 30 where tools are served).",
        },
    ),
    "log_level": (("-l", "--log-level"), {"type": _LEVELS, "help": "TOOLBUS_LOG_LEVEL; info."}),
    "log_format": (("--log-format",), {"type": _FORMATS, "help": "TOOLBUS_LOG_FORMAT; auto."}),
}


class _Text(click.types.StringParamType):
    """A text that can be sent; Python passes bytes that are not UTF-8 as characters that can't."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text, or fail with a usage error, which does not show it: it may be a password."""
        text = super().convert(value, param, ctx)
        return text if whole_text(text) == text else self.fail("its text is not UTF-8", param, ctx)


_TEXT = _Text()
# Options that are settings with rules of their own: a wrong one is a usage error, as it is of every other option.
_SETTINGS = frozenset({"url", "namespace", "lease", "grace"})


class _Setting(click.ParamType[Any]):
    """The value of a setting, as ``inner`` reads it."""

    def __init__(self, setting: str, inner: click.ParamType[Any]) -> None:
        self.name = inner.name
        self._setting = setting
        self._inner = inner

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value, or fail with a usage error."""
        found = self._inner.convert(value, param, ctx)
        try:
            Settings.load({}, **{self._setting: found})
        except ConfigurationError as error:
            self.fail(str(error).partition(" is wrong: ")[2] or str(error), param, ctx)
        return found


def options() -> list[click.Parameter]:
    """Return the options for the main command."""
    made: list[click.Parameter] = [click.Option([*names], **about) for names, about in _OPTIONS.values()]
    _check_texts(made)
    return made


def accepting(command: click.Command) -> click.Command:
    """Let a command, and those of its group, take the options too, where one after the name replaces one before it; check its texts."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        _suggest(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                accepting(found)
        return command
    taken = {word for param in command.params for word in param.opts}
    for name, (names, about) in _OPTIONS.items():
        if taken.isdisjoint(names):
            command.params.append(click.Option([*names, name], **about, hidden=True, expose_value=False, callback=_keep))
    _check_texts(command.params)
    check_needs(command)
    return command


def _suggest(group: click.Group) -> None:
    """Let a group answer a misspelt command with the names that look like it, as the main command does."""
    resolve = group.resolve_command

    def resolved(ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and group.get_command(ctx, args[0]) is None:
            raise no_command(ctx, args[0], group.list_commands(ctx))
        return resolve(ctx, args)

    group.resolve_command = resolved  # type: ignore[method-assign]


def _check_texts(params: Iterable[click.Parameter]) -> None:
    for param in params:
        # Files may have names of any bytes, and are of another type.
        if type(param.type) is click.types.StringParamType:
            param.type = _TEXT
        if isinstance(param, click.Option) and param.name in _SETTINGS:
            param.type = _Setting(param.name, param.type)


def _keep(context: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and param.name is not None:
        context.find_root().ensure_object(dict)[param.name] = value
