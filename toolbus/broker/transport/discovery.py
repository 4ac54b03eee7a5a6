"""Find the server: fixed by the URL, or in a Cluster by the namespace's slot (Sentinels: see sentinels.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, urlsplit

import redis
from redis.asyncio.connection import parse_url
from redis.crc import key_slot

from toolbus.broker.transport import clients
from toolbus.broker.transport.ask_nodes import TIMEOUT, AskPolicy, ask_each

_CLUSTER_PORT = 6379
# All nodes know the slots, so one answer will do, and a second node is asked only when the first is late.
_ONE_NODE = AskPolicy(head_start=0.1)


class Node(NamedTuple):
    """A server's address."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Node:
        """Read ``host:port``, as error replies write it; raises ValueError."""
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


class Discovery(Protocol):
    """Finds the server to connect to, at every connect."""

    @property
    def options(self) -> dict[str, Any]:
        """The options with which redis-py connects, but for an address that has to be found."""

    def find(self) -> Node | None:
        """Return the server now, or None when ``options`` has its address. Blocks for a bounded time.

        Raises:
            redis.RedisError: no node could say.
        """

    def redirected(self, node: Node) -> None:
        """Take a server's word that another one is in charge."""


class Fixed:
    """One server, as the URL says."""

    def __init__(self, url: str, tls: Mapping[str, str]) -> None:
        self.options: dict[str, Any] = {**parse_url(url), **tls}

    def find(self) -> Node | None:
        """None: the options have the address."""
        return None

    def redirected(self, node: Node) -> None:
        """Ignore it: the URL says where to connect."""


class SingleNode:
    """One node of a cluster."""

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        self._node = node
        self.options = options

    def find(self) -> Node:
        """Return the node."""
        return self._node

    def redirected(self, node: Node) -> None:
        """Ignore it: there is one."""


class InCluster:
    """The master of the namespace's slot: ``redis+cluster://[user:password@]host[:port][,host...]``.

    Every key of a namespace has the same hash tag, so one node serves all of it.
    """

    def __init__(self, parts: SplitResult, key: str, password: Callable[[], str | None], tls: Mapping[str, str]) -> None:
        self._seeds = nodes_of(parts, _CLUSTER_PORT)
        self._known: list[Node] = []
        self._slot = key_slot(key.encode())
        self.options = {**base_options(parts, "0"), **tls}
        self._password = password

    def find(self) -> Node:
        """Ask the nodes known last and the URL's, until one knows."""
        try:
            masters = ask_each(list(dict.fromkeys([*self._known, *self._seeds])), self._ask, _ONE_NODE)[0]
        except redis.ConnectionError as error:
            raise redis.ConnectionError(f"no cluster node could say who serves slot {self._slot}: {error}") from None
        self._known = list(dict.fromkeys([*masters, *self._known]))[:16]
        return masters[0]

    def redirected(self, node: Node) -> None:
        """Ask the named node first: it learned of its slot before the others did."""
        self._known = [node, *(known for known in self._known if known != node)]

    def _ask(self, node: Node) -> list[Node]:
        """Return the masters that a node knows, that of the slot first."""
        options = tls_options(self.options) | {key: self.options[key] for key in ("username", "password") if key in self.options}
        if (password := self._password()) is not None:
            options["password"] = password
        with clients.client({**options, **node._asdict(), "protocol": 2}, TIMEOUT) as client:
            ranges: Any = client.execute_command("CLUSTER SLOTS")
        masters = [_master(found, node) for found in ranges]
        for first, last, master in masters:
            if first <= self._slot <= last:
                return [master, *(other for _, _, other in masters)]
        raise redis.ConnectionError(f"slot {self._slot} is served by no node")


def nodes_of(parts: SplitResult, usual: int) -> list[Node]:
    """Return the nodes that a URL names; ``usual`` is the port of those without one.

    Raises:
        ValueError: it names none, or wrongly.
    """
    places = [place for place in parts.netloc.rpartition("@")[2].split(",") if place]
    if not places:
        raise ValueError("it names no host")
    nodes: list[Node] = []
    for place in places:
        found = urlsplit(f"//{place}")
        if not found.hostname:
            raise ValueError("one of its hosts has no name")
        nodes.append(Node(found.hostname, _port(found) or usual))
    return nodes


def _port(place: SplitResult) -> int | None:
    try:
        return place.port
    except ValueError:
        # The text may be a password whose host was forgotten.
        raise ValueError("one of its ports is no number from 0 to 65535") from None


def base_options(parts: SplitResult, db: str) -> dict[str, Any]:
    """Return the options of a plain URL with the same credentials, database and query."""
    if not db.isdigit():
        raise ValueError(f"{db!r} is no database number")
    scheme = parts.scheme.partition("+")[0]
    if scheme not in {"redis", "rediss"}:
        raise ValueError(f"{parts.scheme!r} is no scheme; there are redis, rediss, unix, and redis or rediss with +sentinel or +cluster")
    credentials = parts.netloc.rpartition("@")[0]
    query = "&".join(piece for piece in parts.query.split("&") if piece and not piece.startswith("sentinel_"))
    options = {**parse_url(f"{scheme}://{credentials + '@' if credentials else ''}host/{db}{'?' + query if query else ''}")}
    options.pop("host", None)
    return options


def speaks_tls(url: str) -> bool:
    """Return whether a URL's connections are encrypted."""
    return urlsplit(url).scheme.partition("+")[0] == "rediss"


def tls_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the TLS options, with which a client asks another server in the same way; none without TLS."""
    if not clients.encrypted(options):
        return {}
    return {name: value for name, value in options.items() if name == "connection_class" or name.startswith("ssl_")}


def _master(found: Iterable[Any], asked: Node) -> tuple[int, int, Node]:
    first, last, master, *_ = found
    host = master[0].decode() if isinstance(master[0], bytes) else master[0]
    # A node that does not know its own address leaves it out.
    return int(first), int(last), Node(host or asked.host, int(master[1]))
