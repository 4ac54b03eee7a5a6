"""URLs of servers: what is wrong with one, and how to show one without its passwords."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_NETWORK = ("redis", "rediss")
_SCHEMES = (*_NETWORK, "unix", *(f"{scheme}+{way}" for way in ("sentinel", "cluster") for scheme in _NETWORK), "memory")
_PASSWORD = re.compile(r"((?:^|/)[^/@:]*):(?!//).*@|(\w*password=)[^&]*")
# A name without a colon is often a password whose colon was forgotten, and so is a port without a host.
_ALONE = re.compile(r"(^|//)(?:[^/:@]+@|:[^@]*$)")
_END_OF_SERVER = re.compile(r"([^/?#]*)([/?#]?)(.*)", re.DOTALL)


def redact(url: str) -> str:
    """Return the URL without its passwords, fit for logs."""
    shown = _PASSWORD.sub(lambda found: f"{found[2]}***" if found[2] else f"{found[1]}:***@", url)
    return _ALONE.sub(lambda found: f"{found[1]}***{'@' if found[0].endswith('@') else ''}", shown)


def without_credentials(url: str) -> str:
    """Return the URL without the user and password of the server; the same URL when it has none."""
    scheme, found, rest = url.partition("://")
    server, end, after = _END_OF_SERVER.match(rest).groups()  # type: ignore[union-attr] # it matches every text
    bare = f"{scheme}{found}{server.rpartition('@')[2]}{end}{after}"
    address, asked, query = bare.partition("?")
    kept = [each for each in query.split("&") if each.partition("=")[0] not in {"username", "password"}]
    return bare if len(kept) == len(query.split("&")) else f"{address}{asked if kept else ''}{'&'.join(kept)}"


def check_url(url: str) -> None:
    """Check what can be known of a URL before anything is connected; nothing in the message is part of a password.

    Raises:
        ValueError: it can't be the URL of a server.
    """
    scheme, found, rest = url.partition("://")
    _check_user(scheme, rest if found else url)
    if not found or scheme not in _SCHEMES:
        raise ValueError(f"its scheme is none of {', '.join(f'{each}://' for each in _SCHEMES)}")
    if scheme == "memory" and rest:
        raise ValueError("memory:// has no name behind it; a namespace keeps apart what is in it")
    if scheme not in _NETWORK:
        return
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        why = "its port is no number from 0 to 65535" if "ort " in str(error) else str(error)
        raise ValueError(why) from None
    database = parts.path.strip("/")
    if database and not database.isdecimal():
        raise ValueError(f"behind its host, {database!r} is no number of a database (0, 1, 2 …)")


def _check_user(scheme: str, rest: str) -> None:
    """Refuse a user or password that ends the address too early: the rest would be taken for a path, and parts of it be shown."""
    server, end, after = _END_OF_SERVER.match(rest).groups()  # type: ignore[union-attr] # it matches every text
    if not server and scheme == "unix":
        return
    # A parameter may have an @ in its value.
    where = after.partition("=")[0] if end == "?" else after.partition("?")[0]
    if end == "#" or "#" in where or "@" in where:
        raise ValueError("in a user's name and password, write / as %2F, # as %23 and ? as %3F")
