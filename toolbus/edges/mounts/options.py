"""``Options``: how what is mounted is served, and its limits."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from toolbus.bus.broker.admin import Admin
from toolbus.bus.support.display import visible
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values import rules
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.secrets import Secret, harmless
from toolbus.bus.values.settings import Settings

Transport = Literal["http", "sse"]

_RULES = {
    **dict.fromkeys(("timeout", "quiet", "between"), rules.number("a number of seconds, 0 or more", least=0, most=1e9)),
    **dict.fromkeys(("start", "patience", "first_delay", "longest_delay"), rules.number("a number of seconds above 0", above=0, most=1e9)),
    "output_limit": rules.whole("a number of characters, 0 or more"),
    "most_tools": rules.whole("a whole number above 0", 1),
    "most_bytes": rules.whole("a whole number of at least 1,024", 1_024),
}


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a mount.

    Attributes:
        include: patterns (``get_*``) of the tools that are served; all when empty.
        exclude: patterns of tools that are not served, even if they are included.
        prefix: what the names of its tools begin with.
        groups, category: labels of its tools.
        timeout: seconds that a call may take unless the caller says otherwise; 0 for the caller's default.
        output_limit: characters of an observation; 0 for the default.
        external: the tools are marked as external, so that models are told to distrust what they say.
        resources: resources and prompts are served as tools that read.
        start: seconds that the server may take to start and to list what it has.
        patience: seconds that a call waits for a server that starts anew, and after which a server that answers nothing is ended.
        quiet, between: seconds without a change before tools are listed again, and at least between two lists.
        first_delay, longest_delay: seconds before a server that ended is started again; doubled each time.
        most_tools: tools that are served; those beyond are left out.
        most_bytes: bytes of one message of the server.

    Raises:
        ConfigurationError: a value is out of its range.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    prefix: str = ""
    groups: tuple[str, ...] = ()
    category: str = ""
    timeout: float = 0.0
    output_limit: int = 0
    external: bool = True
    resources: bool = True
    start: float = 30.0
    patience: float = 10.0
    quiet: float = 0.25
    between: float = 2.0
    first_delay: float = 0.5
    longest_delay: float = 30.0
    most_tools: int = 1_000
    most_bytes: int = 16_777_216

    def __post_init__(self) -> None:
        rules.check({name: getattr(self, name) for name in _RULES}, _RULES, "mount")

    def selects(self, name: str) -> bool:
        """Return whether a tool of the mounted server is served."""
        wanted = not self.include or any(fnmatchcase(name, pattern) for pattern in self.include)
        return wanted and not any(fnmatchcase(name, pattern) for pattern in self.exclude)


def check_name(name: str) -> str:
    """Return the name of a mount, which is the id of its service.

    Raises:
        ConfigurationError: it can't be one.
    """
    if not 0 < len(name) <= 64 or not name.isascii() or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigurationError(f"{name!r} is no name of a mount: give 1 to 64 letters, digits, '_', '.' or '-', such as github")
    return name


_PLAIN = re.compile(r"[^\s\x00-\x1f/\\{}]{1,128}\Z")
_OTHERS = re.compile(r"[^A-Za-z0-9_.-]+")
_READABLE = 50


def bus_name(name: str) -> str:
    """Return the name under which a tool is published.

    One that the bus allows stands for itself. Another becomes as much of it as fits, ``-`` and ten letters that depend on the whole
    name only.
    """
    if _PLAIN.match(name) and (name.isascii() or visible(name) == name):
        return name
    hashed = base64.b32encode(hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=10).digest()).decode().lower()
    return f"{_OTHERS.sub('_', name)[:_READABLE]}-{hashed[:10]}"


def words_of(text: str) -> str:
    """Return a text as a name of letters, digits and ``_``."""
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")


async def pin_new(settings: Settings, mount: str) -> list[str]:
    """Pin the tools that a mount offers now and that have no pin; return their names.

    Raises:
        BrokerError: the server could not be asked.
    """
    async with Admin(settings) as admin:
        offered = await admin.pins.offered()
        return await admin.pins.pin_new([tool for tool in offered.values() if tool.service == mount], by=f"mount {mount}")


class Command(msgspec.Struct, frozen=True):
    """A server that is started as a child process and spoken to over its standard input and output.

    Attributes:
        words: the program and its arguments.
        environment: all variables that the child gets.
        folder: where it runs; the current one when empty.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = {}
    folder: str = ""

    @property
    def shown(self) -> str:
        """The command for people: the program without its arguments, which may hold secrets."""
        return Path(self.words[0]).name


class Address(msgspec.Struct, frozen=True):
    """A server at an address.

    Attributes:
        url: its MCP endpoint.
        headers: header values by name, or where secret ones are, see ``secret``.
        transport: ``http`` (streamable HTTP), or ``sse`` for servers of before 2025.
    """

    url: str
    headers: Mapping[str, Secret | str] = {}
    transport: Transport = "http"

    @property
    def shown(self) -> str:
        """The address for people, without what may be secret: user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class InProcess(msgspec.Struct, frozen=True):
    """A server object of this process: a FastMCP, or an ``MCPServer`` of the official SDK."""

    server: Any

    @property
    def shown(self) -> str:
        """The object's name for people."""
        return f"{type_name(self.server)} {getattr(self.server, 'name', '')!r}"


Target = Command | Address | InProcess


def environment_for(names: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the environment of a child: a few harmless variables of ours, and those that are named.

    Raises:
        ConfigurationError: one that is named is not set.
    """
    for name in names:
        if "=" in name:
            raise ConfigurationError(f"--env takes the name of a variable, which is passed on: --env {name.partition('=')[0]}")
        if name not in os.environ:
            raise ConfigurationError(f"the variable {name!r} is not set, so it can't be passed on")
    return harmless() | {name: os.environ[name] for name in names}


def check_address(url: str) -> str:
    """Return the address of a server.

    Raises:
        ConfigurationError: it is no http or https address, or has a password, which belongs into a header.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError("that is no address: give https://host/path")
    if parts.username or parts.password:
        raise ConfigurationError("the address has a password: give it in a header, --header Authorization=env:VARIABLE")
    return url
