"""Decide which addresses a tool may connect to: a model must not reach what only the worker's network can reach."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence

from toolbus.results import ToolError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name as text; raises OSError (``socket.gaierror``) when there are none."""

# A name with more addresses is suspicious, and no fetch needs so many attempts.
MAX_ADDRESSES = 32

# Listed in full, because the standard library's definition of "global" differs between Python versions.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        "168.63.129.16/32",  # public by number, but the metadata service of a cloud
        "2001::/23",  # Teredo, ORCHID, benchmarks: nothing that serves pages
        "2001:db8::/32",
        "2002::/16",  # 6to4 leads to the IPv4 address inside
        "3fff::/20",
    )
)  # fmt: skip
# The rest of IPv6 is unspecified, loopback, link-local, unique local, multicast or reserved.
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
# With DNS64 every IPv4 host has an address in this network.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Guard:
    """Resolves names and permits only public addresses.

    Args:
        allow: networks that may be reached although they are not public, such as ``10.20.0.0/16``. Only code that builds the
            service can set them; no argument and no config value of a tool does.
        resolve: turns a name into addresses; the system's resolver when left out.
    """

    def __init__(self, *, allow: Iterable[str] = (), resolve: Resolve | None = None) -> None:
        self._allowed = tuple(ipaddress.ip_network(network) for network in allow)
        self._resolve = resolve or resolve_name

    def permits(self, address: str) -> bool:
        """Return whether an address may be connected to."""
        try:
            parsed: Address = ipaddress.ip_address(address)
        except ValueError:
            return False
        reached = _reached(parsed)
        if any(reached in network for network in self._allowed):
            return True
        if reached.version == 6 and reached not in _PUBLIC_V6:
            return False
        return reached.is_global and not any(reached in network for network in _NOT_PUBLIC)

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the checked addresses of a host. Connect to these, never to the name, which may resolve differently then.

        Raises:
            ToolError: the host is unknown, or one of its addresses is not public.
        """
        try:
            found = list(dict.fromkeys(await self._resolve(host, port)))
        except socket.gaierror as error:
            raise _unresolved(host, error) from None
        except (OSError, UnicodeError):
            raise _unresolved(host, None) from None
        if not found:
            raise _unresolved(host, None)
        # A forbidden address among public ones is an attack or a mistake, so none of them is used.
        if len(found) > MAX_ADDRESSES or not all(self.permits(address) for address in found):
            raise ToolError(
                f"{host!r} is not a host on the public Internet, so it is not fetched; use the address of a public page",
                type="forbidden",
                code="forbidden_address",
            )
        return found


async def resolve_name(host: str, port: int) -> Sequence[str]:
    """Return the system's addresses for a name. It also reads numbers such as ``127.1``, which are checked like any other."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


def _reached(address: Address) -> Address:
    """Return the address that packets really go to."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _unresolved(host: str, error: socket.gaierror | None) -> ToolError:
    if error is not None and error.errno == socket.EAI_AGAIN:
        message = f"the name {host!r} can't be looked up now: this worker has no network, or its name server does not answer"
        return ToolError(f"{message}; try again later, or do without this page", type="unavailable", code="no_network", retryable=True)
    message = f"no host is known by the name {host!r}, or this worker has no network; check the spelling, or try another page"
    return ToolError(message, type="not_found", code="unknown_host")
