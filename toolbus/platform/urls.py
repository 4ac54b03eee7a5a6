"""``check_url``: check an address of an API as a record may name it, the same for every field that holds one."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from toolbus.platform.values import wrong
from toolbus.results import DescriptorError

# Clients turn other hosts into different ones, which may be numbers of private addresses.
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def check_url(url: str, path: str) -> None:
    """Check a URL.

    Args:
        path: of the URL in its record, for the error.

    Raises:
        DescriptorError: it is none, holds a password or a query, or has a host that clients don't read as it is written.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise DescriptorError(f"it is no URL: {error}", path=path) from None
    if parts.username is not None or parts.password is not None:
        raise DescriptorError("it has a user or password, which everybody could read here: use headers", path=path)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isprintable() or any(each in url for each in " \\"):
        raise wrong(url, "an http:// or https:// URL", path)
    if parts.query or parts.fragment:
        raise DescriptorError("it has a query or fragment; queries belong into `query`", path=path)
    if port == 0:
        raise wrong(url, "a URL with a port that can be", path)
    if not _is_plain(parts.hostname):
        raise wrong(parts.hostname, "a plain host: give a name in ASCII (xn--… for others), or a whole address such as 192.0.2.1", path)


def _is_plain(host: str) -> bool:
    """Return whether every client takes a host for what is written: a name, or a whole address."""
    if ":" not in host and not (_NAME.fullmatch(host) and _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2])):
        return _NAME.fullmatch(host) is not None
    try:
        return "%" not in host and bool(ipaddress.ip_address(host))
    except ValueError:
        return False
