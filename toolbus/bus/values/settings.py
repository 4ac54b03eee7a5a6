"""Settings: every limit and default, read from arguments, ``TOOLBUS_*`` variables or the defaults here."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from toolbus.bus.values.encoding import whole_text
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.urls import check_url, redact

# Event loops and servers refuse infinity as a time.
_FOREVER = 1e9
LONGEST_LEASE = 3600.0
"""Seconds; no process of a namespace can have a longer lease."""

_Positive = Annotated[float, msgspec.Meta(gt=0, le=_FOREVER)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=_FOREVER)]
_Count = Annotated[int, msgspec.Meta(ge=1)]

PREFIX = "TOOLBUS_"
# Settings whose values are words, in upper or lower case.
_SAID = {"namespace": "it has 1 to 64 letters (A to Z), digits, dots, dashes and underscores"}
_WORDS = frozenset({"log_level", "log_format", "recent"})
# Files may have names of any bytes; other texts are sent.
FILES = frozenset({"password_file", "tls_ca", "tls_cert", "tls_key"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process; each field is read from ``TOOLBUS_<NAME>`` unless an argument gives it.

    A file that neither names is systemd's credential ``toolbus.<name>``, if the process has it.
    Times are in seconds and sizes in bytes unless a name says otherwise.

    Attributes:
        url: server; ``redis://``, ``rediss://``, ``unix://``, or ``memory://`` (the embedded server, for this process alone).
        password_file: a file with the server's password, read at every connect.
        tls_ca: a PEM file with the server's authorities, instead of the system's.
        tls_cert: a PEM file with this process's certificate, and what leads from it to its authority.
        tls_key: a PEM file with its key, when it is not in the same file.
        namespace: separates everything of one installation from another's.
        owner: who may change the names this process publishes; empty: the project of each module.
        lease: how long a silent worker counts as alive.
        cooldown: how long a name stays reserved after its service is gone.
        concurrency: calls that run at once in a worker process.
        isolated: child processes for tools with ``isolation="process"``; 0 means as many as processors, at least two.
        grace: how long running calls may take to finish when a worker stops.
        connect_timeout: how long a process that starts tries to reach its server; 30 for commands that serve. Unset elsewhere:
            an error at once. Afterwards a worker tries without end, and an agent for ``TOOLBUS_TIMEOUT``. A name that does not
            exist and a refusal are errors at once.
        max_deliveries: starts of one request before it is given up.
        timeout: of a call, when neither caller nor tool says otherwise.
        max_timeout: the longest a caller may ask for.
        queue_limit: requests queued and running per service.
        max_request: of one request.
        max_frame: of text in one frame.
        max_output: of one call in all.
        reply_limit: unread reply entries before an agent's calls end as ``slow_consumer``.
        reply_bytes: unread reply bytes before an agent's calls end as ``slow_consumer``.
        call_buffer: unread events of one call.
        retention: how long the mark of a ``once`` call, and the answer of a call with an idempotency key, outlive their
            deadline.
        confine: confine programs that models wrote, and refuse those that this machine can't confine.
        require_approval: withhold every tool that no operator has approved, new ones too; set it at agents and gateways.
        conversation_ttl: how long a kept conversation outlives its last use.
        wait_replicas: replicas that must have confirmed a ``once`` call before it runs, and an item before ``put`` returns.
        wait_timeout: how long they have for it, at most 5.
        recent: of a worker: the record of recent calls: ``on``, ``off``, or ``arguments`` to record those, too.
        history: of a worker: ended calls that the server holds for a history, such as 10000 (4 MB); 0 for none.
        metric_tools: tools that have metrics of their own; the others are one, ``_OTHER``.
        log_level: ``debug``, ``info``, ``warning``, ``error``.
        log_format: ``auto``, ``text``, ``json``.
    """

    url: str = "redis://127.0.0.1:6379"
    password_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    namespace: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,64}\Z")] = "default"
    owner: str = ""
    lease: Annotated[float, msgspec.Meta(ge=0.2, le=LONGEST_LEASE)] = 30.0
    cooldown: _NotNegative = 60.0
    concurrency: _Count = 100
    isolated: Annotated[int, msgspec.Meta(ge=0)] = 0
    grace: _NotNegative = 30.0
    connect_timeout: _NotNegative | None = None
    max_deliveries: _Count = 5
    timeout: _Positive = 60.0
    max_timeout: _Positive = 86_400.0
    queue_limit: _Count = 10_000
    max_request: _Count = 262_144
    max_frame: Annotated[int, msgspec.Meta(ge=256)] = 65_536
    max_output: _Count = 16_777_216
    reply_limit: _Count = 10_000
    reply_bytes: _Count = 67_108_864
    call_buffer: _Count = 8_388_608
    retention: _Positive = 3600.0
    require_approval: bool = False
    confine: bool = True
    conversation_ttl: _Positive = 604_800.0
    wait_replicas: Annotated[int, msgspec.Meta(ge=0)] = 0
    wait_timeout: Annotated[float, msgspec.Meta(gt=0, le=5)] = 1.0
    recent: Literal["off", "on", "arguments"] = "on"
    history: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    metric_tools: _Count = 200
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "text", "json"] = "auto"

    def __repr__(self) -> str:
        # Whatever shows the locals of a frame would write the server's password elsewhere.
        return f"Settings(url={redact(self.url)!r}, namespace={self.namespace!r}, …)"

    @property
    def alone_from(self) -> int:
        """The attempt from which a request runs alone, because it may be what killed its workers: one of the last two attempts.

        An earlier start would hurt calls that were only interrupted twice by a paused server or a broken network: in chaos runs,
        dozens of them waited most of a minute for idle workers.
        """
        return max(2, self.max_deliveries - 1)

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, *, base: Settings | None = None, **arguments: Any) -> Settings:
        """Return settings from arguments that are not None, then ``TOOLBUS_*`` variables, then the defaults.

        With ``base``, its values replace both variables and defaults.

        Raises:
            ConfigurationError: a variable or argument is wrong; the message names it.
        """
        values: dict[str, Any] = {} if base is None else msgspec.structs.asdict(base)
        variables = {} if base is not None else os.environ if environ is None else environ
        for name, (value, source) in _provided(variables, arguments).items():
            # First, since its message shows nothing of the value.
            if isinstance(value, str) and name not in FILES and whole_text(value) != value:
                raise ConfigurationError(f"{source} is wrong: its text is not UTF-8")
            if name == "url" and isinstance(value, str):
                _check_url(value, source)
            try:
                read = value.lower() if name in _WORDS and isinstance(value, str) else value
                values[name] = msgspec.convert(read, cls._types()[name], strict=False)
            except msgspec.ValidationError as error:
                reason = f"choose {', '.join(get_args(cls._types()[name]))}" if name in _WORDS else _SAID.get(name, error)
                raise ConfigurationError(f"{source} is wrong: {reason} (given: {value!r})") from None
        settings = cls(**values)
        for name, most in _WITHIN.items():
            if getattr(settings, name) > getattr(settings, most):
                one, other = (f"{PREFIX}{each.upper()} ({getattr(settings, each)})" for each in (name, most))
                raise ConfigurationError(f"{one} is more than {other}, which bounds it: lower the first or raise the second")
        return settings

    @classmethod
    def sources(cls, environ: Mapping[str, str] | None = None, **arguments: Any) -> dict[str, tuple[Any, str]]:
        """Return each setting's value and its source: an argument, a variable, or ``default``.

        Raises:
            ConfigurationError: a variable or argument is wrong; the message names it.
        """
        given = _provided(os.environ if environ is None else environ, arguments)
        settings = cls.load(environ, **arguments)
        return {name: (getattr(settings, name), given[name][1] if name in given else "default") for name in cls.__struct_fields__}

    @classmethod
    def meanings(cls) -> dict[str, str]:
        """Return what each setting means, as the class's docstring says it; nothing where Python leaves docstrings out."""
        listed = inspect.cleandoc(cls.__doc__ or "").partition("Attributes:\n")[2].replace("``", "`")
        return {
            name: " ".join(text.split()) for name, text in re.findall(r"^ {4}(\w+): (.+?)(?=\n {4}\w|\Z)", listed, re.DOTALL | re.MULTILINE)
        }

    @classmethod
    @functools.cache
    def _types(cls) -> dict[str, Any]:
        return {field.name: field.type for field in msgspec.structs.fields(cls)}


# Settings that can't be reached beyond others: an answer waits as a whole among the unread replies of its caller.
_WITHIN = {"max_frame": "reply_bytes", "max_output": "reply_bytes"}


def _check_url(url: str, source: str) -> None:
    try:
        check_url(url)
    except ValueError as error:
        raise ConfigurationError(f"{source} is wrong: {error} (given: {redact(url)!r})") from None


def misspelt(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that look like those of settings and are none, each with the name that is probably meant."""
    known = [name.upper() for name in Settings.__struct_fields__]
    found: dict[str, str] = {}
    for variable in environ:
        name = variable.upper().removeprefix(PREFIX)
        if not variable.upper().startswith(PREFIX) or (variable.startswith(PREFIX) and name == variable[len(PREFIX) :] and name in known):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        if near:
            found[variable] = PREFIX + near[0]
    return found


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the environment of a child process that has these settings, without the misspelt names that this process has told of."""
    known = {name: value for name, value in os.environ.items() if name not in misspelt(os.environ)}
    given = {name: getattr(settings, name) for name in Settings.__struct_fields__}
    return {**known, **{PREFIX + name.upper(): str(value) for name, value in given.items() if value is not None}}


def _provided(environ: Mapping[str, str], arguments: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    given: dict[str, tuple[Any, str]] = {}
    credentials = environ.get("CREDENTIALS_DIRECTORY", "")
    for name in Settings.__struct_fields__:
        variable, credential = PREFIX + name.upper(), f"toolbus.{name}"
        if arguments.get(name) is not None:
            given[name] = (arguments[name], f"argument {name!r}")
        elif environ.get(variable, "") != "":
            given[name] = (environ[variable], variable)
        elif name in FILES and credentials and (file := Path(credentials, credential)).is_file():
            given[name] = (str(file), f"credential {credential!r}")
    for name in arguments:
        if name not in Settings.__struct_fields__:
            raise ConfigurationError(f"there is no setting {name!r}; `toolbus see settings` lists them")
    return given
