"""Say where a mounted MCP server is: a command to run, an address, or an object of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from toolbus.environment import harmless
from toolbus.results import ConfigurationError
from toolbus.safe_text import type_name
from toolbus.secrets import Secret

Transport = Literal["http", "sse"]


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
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise ConfigurationError("that is no address: give https://host/path") from None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigurationError("that is no address: give https://host/path")
    if parts.username or parts.password:
        raise ConfigurationError("the address has a password: give it in a header, --header Authorization=env:VARIABLE")
    return url
