"""The options that every command takes, before its name or after it."""

from __future__ import annotations

from typing import Any

import click

_LEVELS = click.Choice(["debug", "info", "warning", "error"], case_sensitive=False)
_FORMATS = click.Choice(["auto", "text", "json"], case_sensitive=False)

_OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "url": (("--url",), {"help": "Server, e.g. redis://localhost:6379 (TOOLBUS_URL)."}),
    "namespace": (("--namespace",), {"help": "Namespace whose tools to use (TOOLBUS_NAMESPACE)."}),
    "log_level": (("-l", "--log-level"), {"type": _LEVELS, "help": "TOOLBUS_LOG_LEVEL; info."}),
    "log_format": (("--log-format",), {"type": _FORMATS, "help": "TOOLBUS_LOG_FORMAT; auto."}),
}


def options() -> list[click.Parameter]:
    """Return the options for the main command."""
    return [click.Option([*names], **about) for names, about in _OPTIONS.values()]


def accepting(command: click.Command) -> click.Command:
    """Let a command, and those of its group, take the options too; one after the name replaces one before it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                accepting(found)
        return command
    taken = {word for param in command.params for word in param.opts}
    for name, (names, about) in _OPTIONS.items():
        if taken.isdisjoint(names):
            command.params.append(click.Option([*names, name], **about, hidden=True, expose_value=False, callback=_keep))
    return command


def _keep(context: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and param.name is not None:
        context.find_root().ensure_object(dict)[param.name] = value
