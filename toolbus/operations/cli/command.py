"""Declare commands: each parameter stands once, in the function's signature, and the rules of all of them are kept here."""

from __future__ import annotations

import ast
import contextlib
import datetime
import difflib
import functools
import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.naming import did_you_mean
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.operations.cli.common import RESTART, with_admin, with_bus
from toolbus.operations.cli.failing import needing


class Declared(NamedTuple):
    """The way in which a parameter is given.

    Attributes:
        names: of an option; without any it has the parameter's.
        about: what click is told of it.
        needs: parameters, one of which must be given with it.
        kept: whether it is of the process itself, and not of children that do its work.
        is_option: whether it is no argument.
    """

    names: tuple[str, ...]
    about: dict[str, Any]
    needs: tuple[str, ...] = ()
    kept: bool = False
    is_option: bool = True


def option(help: str = "", *names: str, needs: tuple[str, ...] = (), kept: bool = False, **about: Any) -> Declared:
    """Describe an option. Whether it is a flag, or may be repeated, is said by the parameter's type."""
    return Declared(names, {"help": help or None, **about}, needs, kept)


def argument(**about: Any) -> Declared:
    """Describe an argument; a parameter that is not described is one, too."""
    return Declared((), about, is_option=False)


# -- types of values ---------------------------------------------------------------------------------


_UNITS = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def seconds_of(text: str) -> float | None:
    """Return the seconds of a time such as 30m, 12h, 90d or 4w; None for another text."""
    found = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    return int(found[1]) * _UNITS[found[2]] if found else None


def date_of(text: str, wrong: str) -> float:
    """Return the time that a date names, of UTC unless it has a zone, in seconds since 1970.

    Raises:
        UsageError: it is no date; ``wrong`` says what is expected.
    """
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(f"{wrong}, or a date like 2030-01-31, not {text[:50]!r}") from None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()


class Span(click.ParamType[float]):
    """A time such as 30m, 12h, 90d or 4w, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds, or fail with a usage error."""
        seconds = value if isinstance(value, float) else seconds_of(value)
        return seconds or self.fail(f"{value!r} is no time such as 30m, 12h, 90d or 4w", param, ctx)


class Number(click.FloatRange):
    """A number within bounds; NaN, which breaks no bound, is none, and neither is infinity."""

    meaning = "finite number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail with a usage error."""
        with contextlib.suppress(ValueError):
            if math.isfinite(float(value)):
                return super().convert(value, param, ctx)
        return self.fail(f"{value!r} is not a {self.meaning}", param, ctx)


class Seconds(Number):
    """A number of seconds, above 0 and at most ``most``."""

    name = "seconds"
    meaning = "number of seconds"

    def __init__(self, most: float = 1e9) -> None:
        super().__init__(min=0, min_open=True, max=most)


class _Text(click.types.StringParamType):
    """A text that can be sent; Python passes bytes that are not UTF-8 as characters that can't."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text, or fail with a usage error, which does not show it: it may be a password."""
        text = super().convert(value, param, ctx)
        return text if whole_text(text) == text else self.fail("its text is not UTF-8", param, ctx)


class _Setting(click.ParamType[Any]):
    """The value of a setting, as ``inner`` reads it; a wrong one is a usage error, as it is of every other option."""

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


Share = NewType("Share", float)
Port = NewType("Port", int)
Hops = NewType("Hops", int)
Folder = NewType("Folder", Path)
File = NewType("File", Path)
_TYPES: Mapping[Any, click.ParamType[Any]] = {
    str: _Text(),
    int: click.INT,
    float: Number(),
    Path: click.Path(path_type=Path),
    Share: Number(0, 1),
    Port: click.IntRange(0, 65535),
    Hops: click.IntRange(0, 100),
    Folder: click.Path(path_type=Path, file_okay=False),
    File: click.Path(path_type=Path, dir_okay=False),
}
"""The reader of a parameter's values, by the type of the parameter."""


_KINDS = get_type_hints(Settings)


def setting(name: str, means: str, **about: Any) -> Declared:
    """Describe an option that is a setting: its type, its variable and its default are those of the setting.

    Args:
        name: of the setting.
        means: what it is in the command.
        **about: what else click is told of it.
    """
    return _setting(name, f"{means} ({PREFIX}{name.upper()}; {getattr(Settings(), name):,g}).", **about)


def _setting(name: str, help: str, *names: str, **about: Any) -> Declared:
    kind = _KINDS[name]
    if get_origin(kind) is Literal:
        about["type"] = click.Choice(get_args(kind), case_sensitive=False)
    else:
        about["type"] = _Setting(name, about.get("type") or _TYPES[kind])
    return option(help, *names, f"--{name.replace('_', '-')}", **about)


def _choices_of(name: str) -> str:
    *words, last = get_args(_KINDS[name])
    return f"{', '.join(words)} or {last} ({getattr(Settings(), name)})."


# -- options of several commands ---------------------------------------------------------------------


def digest(means: str) -> Declared:
    """Describe the option ``--digest``, which is empty when it is not given; an empty one, as of an unset variable, is refused."""

    def chosen(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
        if value == "":
            raise click.BadParameter("it is empty, which names no form", ctx, param)
        return value or ""

    return option(means, callback=chosen)


Output = Annotated[Literal["text", "json"], option("Text for people, JSON for programs.", default="text")]
Yes = Annotated[bool, option("Do not ask.")]
User = Annotated[str, option("The tenant that tools run for.", default="")]
Groups = Annotated[tuple[str, ...], option("Only tools in this group (may be repeated).", "--group")]
Categories = Annotated[tuple[str, ...], option("Only tools of this category (may be repeated).", "--category")]
Names = Annotated[tuple[str, ...], option("Only this tool (may be repeated).", "--tool")]
Lifeline = Annotated[int | None, option(hidden=True, kept=True)]
Concurrency = Annotated[int | None, setting("concurrency", "Calls that run at once in each process", type=click.IntRange(1))]
Grace = Annotated[float | None, setting("grace", "Seconds that running calls may take to finish on SIGTERM")]

JSON = click.Option(["--output"], type=click.Choice(["json"]), default="json", expose_value=False, help="This command always prints JSON.")
"""For a command that prints JSON in any case, so that ``--output json`` changes nothing."""


HealthHost = Annotated[
    str, option("Address of --health-port; anybody who can reach it may read.", default="127.0.0.1", needs=("health_port",), kept=True)
]
HealthPort = Annotated[Port | None, option("Answer /live, /startup, /ready and /metrics at this port; 0 for a free one.", kept=True)]


class ProcessOptions(NamedTuple):
    """The options of a process that serves, which its children do not get.

    Attributes:
        health_host, health_port: where it answers probes; no port for nowhere, and 0 for a free one.
        lifeline: the file descriptor of the process that started it.
    """

    health_host: HealthHost = "127.0.0.1"
    health_port: HealthPort = None
    lifeline: Lifeline = None


_COMMON: Mapping[str, Declared] = {
    "url": _setting("url", f"Server ({Settings().url}).", metavar="URL"),
    "namespace": _setting("namespace", f"Namespace whose tools to use ({Settings().namespace}).", metavar="NAME"),
    "connect_timeout": _setting(
        "connect_timeout", f"Wait for a server at the start ({RESTART:g} to serve).", metavar="SECONDS", type=Number(0)
    ),
    "log_level": _setting("log_level", _choices_of("log_level"), "-l", metavar="LEVEL"),
    "log_format": _setting("log_format", _choices_of("log_format"), metavar="FORMAT"),
}
"""The options of every command, which may stand before its name, or after it, where one replaces one before."""


# -- commands ----------------------------------------------------------------------------------------


class Command(click.Command):
    """A command, with what is declared of its parameters beside what click knows.

    Attributes:
        needs: by parameter, those one of which must be given with it.
        kept: parameters that children which do its work do not get.
    """

    needs: Mapping[str, tuple[str, ...]] = {}
    kept: frozenset[str] = frozenset()

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; refuse an option of the command line that another one must come with."""
        for name, others in self.needs.items():
            # A variable may be there for other commands, too.
            alone = all(ctx.get_parameter_source(each) in {None, ParameterSource.DEFAULT} for each in others)
            if alone and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                first, *words = (next(param.opts[0] for param in self.params if param.name == each) for each in (name, *others))
                raise click.UsageError(f"{first} means nothing alone: give {' or '.join(words)}, too", ctx)
        return super().invoke(ctx)

    def words(self, values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
        """Return the options, and the arguments, by which another process of this command gets values.

        Args:
            values: by parameter; those of parameters that this command does not have are left out.
        """
        options, arguments = list[str](), list[str]()
        for param in self.params:
            value = values.get(param.name or "")
            if value is None or not param.expose_value:
                continue
            if isinstance(value, bool):
                options += param.opts[:1] if value else param.secondary_opts[:1]
                continue
            for each in value if isinstance(value, tuple) and (param.multiple or param.nargs == -1) else (value,):
                if isinstance(param, click.Argument):
                    arguments.append(str(each))
                else:
                    options += [param.opts[0], str(each)]
        return options, arguments


_CONNECTED: Mapping[str, Callable[[Callable[[Any], Any]], Any]] = {"admin": with_admin, "bus": with_bus}


def command(
    name: str, *more: click.Option, into: click.Group | None = None, env: str = "", **about: Any
) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a command of a function, whose parameters are the command's.

    A parameter of a type ``Annotated[..., option(...)]`` is an option, and any other one an argument; a named tuple stands for all of
    its fields. A coroutine function begins with ``admin`` or ``bus``, which is connected, and runs until it returns.

    Args:
        name: of the command.
        more: options that the function does not get.
        into: the group of the command.
        env: begins the names of the variables by which each option can be set.
        **about: what else click is told of the command.
    """

    def made(function: Callable[..., Any]) -> Command:
        hints = get_type_hints(function, localns={"Admin": object, "ToolBus": object}, include_extras=True)
        connected = _CONNECTED.get(next(iter(hints)))
        hints = {each: hint for each, hint in hints.items() if each not in {"return", *_CONNECTED}}
        declared = dict(_declared(hints))
        params = [*(_parameter(each, kind, how, env) for each, (kind, how) in declared.items()), *more]
        taken = {word for param in params for word in param.opts}
        params += [
            _parameter(*each) for each in _common(hidden=True, expose_value=False, callback=_keep) if taken.isdisjoint(each[2].names)
        ]

        def run(**values: Any) -> Any:
            given = {each: _value(each, hint, values) for each, hint in hints.items()}
            return function(**given) if connected is None else connected(lambda found: function(found, **given))

        found = Command(name, callback=run, params=params, help=inspect.getdoc(function), **about)
        found.needs = {each: how.needs for each, (_, how) in declared.items() if how.needs}
        found.kept = frozenset(each for each, (_, how) in declared.items() if how.kept)
        if into is not None:
            into.add_command(found)
        return found

    return made


def _is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple)


def _value(name: str, hint: Any, values: Mapping[str, Any]) -> Any:
    if not _is_group(hint):
        return values[name]
    return hint(**{field: _value(field, inner, values) for field, inner in get_type_hints(hint, include_extras=True).items()})


def _declared(hints: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, Declared]]]:
    for name, hint in hints.items():
        if _is_group(hint):
            yield from _declared(get_type_hints(hint, include_extras=True))
        else:
            yield name, (hint.__origin__, hint.__metadata__[0]) if get_origin(hint) is Annotated else (hint, argument())


def _parameter(name: str, kind: Any, how: Declared, env: str = "") -> click.Parameter:
    """Return a parameter of click, as its type and its description say."""
    about = dict(how.about)
    is_optional = type(None) in get_args(kind)
    if is_optional:
        [kind] = [each for each in get_args(kind) if each is not type(None)]
    is_many = get_origin(kind) is tuple
    if is_many:
        kind = get_args(kind)[0]
    names = how.names or (f"--{name.replace('_', '-')}",)
    if kind is not bool:
        about.setdefault("type", click.Choice(get_args(kind)) if get_origin(kind) is Literal else _TYPES.get(kind))
    elif not any("/" in each for each in names):
        about["is_flag"] = True
    if kind is bool and is_optional:
        # Of click's own accord a flag that is not given is False.
        about.setdefault("default", None)
    if not how.is_option:
        return click.Argument([name], **({"nargs": -1} if is_many else {"required": False} if is_optional else {}), **about)
    about.setdefault("show_default", about.get("default") not in {None, "", 0})
    if env and not about.get("hidden") and not isinstance(about.get("type"), _Setting):
        about["envvar"] = env + max(names, key=len).removeprefix("--").replace("-", "_").upper()
    return click.Option([*names, name], multiple=is_many, **about)


def _common(**more: Any) -> Iterator[tuple[str, Any, Declared]]:
    for name, how in _COMMON.items():
        yield name, str | None, how._replace(about={**how.about, **more})


def common_options() -> list[click.Parameter]:
    """Return the options of every command, for the main one."""
    return [_parameter(*each) for each in _common()]


def _keep(context: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None and param.name is not None:
        context.find_root().ensure_object(dict)[param.name] = value


# -- groups ------------------------------------------------------------------------------------------


class Group(click.Group):
    """A group of commands, which answers a misspelt name with those that look like it.

    Args:
        extra: what brings the packages that its commands need, if they need any.
        **about: what click is told of it.
    """

    def __init__(self, *words: Any, extra: str = "", **about: Any) -> None:
        super().__init__(*words, **about)
        self._extra = extra

    def moved(self, name: str) -> str:
        """Return where a command of this name is, if it is not in this group; empty if it is nowhere."""
        return ""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or fail with where it is, or with the names that look like it."""
        if args[0].startswith("-") or self.get_command(ctx, args[0]) is not None:
            return super().resolve_command(ctx, args)
        if place := self.moved(args[0]):
            raise click.UsageError(f"{args[0]!r} is now `toolbus {place}`", ctx)
        near = difflib.get_close_matches(args[0], self.list_commands(ctx))
        advice = did_you_mean(near, str) or f"; `{ctx.command_path} --help` lists them"
        raise click.UsageError(f"there is no command {args[0]!r}{advice}", ctx)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; say what to install when a package is missing."""
        with needing(self._extra, f"the {self._extra}") if self._extra else contextlib.nullcontext():
            return super().invoke(ctx)


def group(name: str, **about: Any) -> Callable[[Callable[[], None]], Group]:
    """Return a decorator that makes a group of a function whose docstring is the group's help."""
    return click.group(name, cls=Group, no_args_is_help=True, **about)


class Place(NamedTuple):
    """The place of a command: its module, which has it as ``<name>_command``, and a few words about it at the first level."""

    about: str
    module: str


@functools.cache
def _helps(module: str) -> Mapping[str, str]:
    """Return the help of each command of a module, which is read and not loaded."""
    source = ast.parse(Path(__file__).with_name(f"{module}.py").read_text("utf-8"))
    functions = [each for each in source.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {each.name.removesuffix("_command"): ast.get_docstring(each) or "" for each in functions}


class Tree(Group):
    """A group whose commands are imported when they are used, so that its help is quick.

    Args:
        places: where each command is; a group of the tree stands for itself.
        about: what the list of commands says of it, a few words.
        **more: what click is told of it.
    """

    def __init__(self, *words: Any, places: Mapping[str, Place | Tree], about: str = "", **more: Any) -> None:
        super().__init__(*words, **more)
        self._places = places
        self.about = about

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of their places."""
        return [*self._places]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        place = self._places.get(cmd_name)
        if not isinstance(place, Place):
            return place
        module = importlib.import_module(f"toolbus.operations.cli.{place.module}")
        found: click.Command = getattr(module, f"{cmd_name}_command")
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence of each command's help without loading them."""
        room = formatter.width - max(map(len, self._places)) - 6
        places = {name: place for name, place in self._places.items() if isinstance(place, Place)}
        shown = {name: click.Command(name, help=_helps(place.module)[name]) for name, place in places.items()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.get_short_help_str(room)) for name, found in shown.items()])


def tree(name: str, about: str, **modules: str) -> Callable[[Callable[[], None]], Tree]:
    """Return a decorator that makes a tree of a function whose docstring is the tree's help.

    Args:
        name: of the tree.
        about: what the list of commands says of it, a few words.
        **modules: by module, the names of its commands.
    """
    places = {each: Place("", module) for module, names in modules.items() for each in names.split()}

    def made(function: Callable[[], None]) -> Tree:
        return Tree(name, help=inspect.getdoc(function), no_args_is_help=True, places=places, about=about)

    return made
