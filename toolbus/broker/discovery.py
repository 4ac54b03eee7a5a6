"""Where the server is: fixed by the URL, told by Sentinels, or found in a Cluster by the namespace's slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

import redis
from redis.asyncio.connection import parse_url
from redis.crc import key_slot
from redis.sentinel import Sentinel

_ASK_TIMEOUT = 1.0
_SENTINEL_PORT, _CLUSTER_PORT = 26379, 6379


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
        """What redis-py needs to connect, but for the address where that is found."""

    def find(self) -> Node | None:
        """The server now, or None when ``options`` has its address. Blocks for a bounded time.

        :raises redis.RedisError: nobody could say.
        """

    def told(self, node: Node) -> None:
        """Take a server's word that another one is in charge."""


class Fixed:
    """One server, as the URL says."""

    def __init__(self, url: str) -> None:
        self.options: dict[str, Any] = {**parse_url(url)}

    def find(self) -> Node | None:
        """None: the options have the address."""
        return None

    def told(self, node: Node) -> None:
        """Ignored: the URL says where to connect."""


class At:
    """One node of a cluster."""

    def __init__(self, node: Node, options: dict[str, Any]) -> None:
        self._node = node
        self.options = options

    def find(self) -> Node:
        """The node."""
        return self._node

    def told(self, node: Node) -> None:
        """Ignored: there is one."""


class BySentinel:
    """The master of a name, as Sentinels know it: ``redis+sentinel://[user:password@]host[:port][,host...]/<name>[/<db>]``."""

    def __init__(self, parts: SplitResult, password: Callable[[], str | None]) -> None:
        path = [unquote(piece) for piece in parts.path.split("/") if piece]
        if not 1 <= len(path) <= 2:
            raise ValueError("the path of a Sentinel URL is /<master name>[/<db>]")
        self._name = path[0]
        self._sentinels = _nodes(parts, _SENTINEL_PORT)
        self.options = _base_options(parts, path[1] if len(path) == 2 else "0")
        self._sentinel_options = _sentinel_options(parts)
        self._password = password

    def find(self) -> Node:
        """Ask the Sentinels, in turn, until one knows."""
        sentinel: Any = Sentinel(list(self._sentinels), sentinel_kwargs=self._sentinel_options)  # type: ignore[no-untyped-call]
        try:
            return Node(*sentinel.discover_master(self._name))
        finally:
            for client in sentinel.sentinels:
                client.close()

    def told(self, node: Node) -> None:
        """Ignored: the Sentinels say it."""


class InCluster:
    """The master of the namespace's slot: ``redis+cluster://[user:password@]host[:port][,host...]``.

    Every key of a namespace has the same hash tag, so one node serves all of it.
    """

    def __init__(self, parts: SplitResult, key: str, password: Callable[[], str | None]) -> None:
        self._seeds = _nodes(parts, _CLUSTER_PORT)
        self._known: list[Node] = []
        self._slot = key_slot(key.encode())
        self.options = _base_options(parts, "0")
        self._password = password

    def find(self) -> Node:
        """Ask the nodes known last and the URL's, in turn, until one knows."""
        trouble: Exception | None = None
        for node in dict.fromkeys([*self._known, *self._seeds]):
            try:
                return self._ask(node)
            except (redis.RedisError, OSError) as error:
                trouble = error
        raise redis.ConnectionError(f"no cluster node could say who serves slot {self._slot}: {trouble}")

    def told(self, node: Node) -> None:
        """Ask the named node first: it learned of its slot before the others did."""
        self._known = [node, *(known for known in self._known if known != node)]

    def _ask(self, node: Node) -> Node:
        options = {key: value for key, value in self.options.items() if key in {"username", "password"}}
        if (password := self._password()) is not None:
            options["password"] = password
        tls = self.options.get("connection_class") is not None
        client: Any = redis.Redis(*node, ssl=tls, socket_timeout=_ASK_TIMEOUT, socket_connect_timeout=_ASK_TIMEOUT, protocol=2, **options)
        try:
            ranges: Any = client.execute_command("CLUSTER SLOTS")
        finally:
            client.close()
        masters = [_master(found, node) for found in ranges]
        self._known = list(dict.fromkeys([*(master for _, _, master in masters), *self._known]))[:16]
        for first, last, master in masters:
            if first <= self._slot <= last:
                return master
        raise redis.ConnectionError(f"slot {self._slot} is served by no node")


def discovery(url: str, key: str, password: Callable[[], str | None]) -> Discovery:
    """What finds the server of a URL; ``key`` is any key of the namespace, ``password`` overrides the URL's when it is not None.

    :raises ValueError: the URL can't be understood.
    """
    parts = urlsplit(url)
    if parts.scheme.endswith("+sentinel"):
        return BySentinel(parts, password)
    if parts.scheme.endswith("+cluster"):
        return InCluster(parts, key, password)
    return Fixed(url)


def _nodes(parts: SplitResult, usual: int) -> list[Node]:
    places = [place for place in parts.netloc.rpartition("@")[2].split(",") if place]
    if not places:
        raise ValueError("it names no host")
    nodes: list[Node] = []
    for place in places:
        found = urlsplit(f"//{place}")
        if not found.hostname:
            raise ValueError(f"{place!r} is no host")
        nodes.append(Node(found.hostname, found.port or usual))
    return nodes


def _base_options(parts: SplitResult, db: str) -> dict[str, Any]:
    """The options of a plain URL with the same credentials, database and query."""
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


def _sentinel_options(parts: SplitResult) -> dict[str, Any]:
    query = parse_qs(parts.query)
    options: dict[str, Any] = {"socket_timeout": _ASK_TIMEOUT, "socket_connect_timeout": _ASK_TIMEOUT, "protocol": 2}
    for name in ("username", "password"):
        if f"sentinel_{name}" in query:
            options[name] = query[f"sentinel_{name}"][0]
    return options


def _master(found: Iterable[Any], asked: Node) -> tuple[int, int, Node]:
    first, last, master, *_ = found
    host = master[0].decode() if isinstance(master[0], bytes) else master[0]
    # A node that does not know its own address leaves it out.
    return int(first), int(last), Node(host or asked.host, int(master[1]))
