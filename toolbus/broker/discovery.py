"""Where the server is: fixed by the URL, told by Sentinels, or found in a Cluster by the namespace's slot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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

    def __init__(self, url: str, tls: Mapping[str, str]) -> None:
        self.options: dict[str, Any] = {**parse_url(url), **tls}

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

    def __init__(self, parts: SplitResult, password: Callable[[], str | None], tls: Mapping[str, str]) -> None:
        path = [unquote(piece) for piece in parts.path.split("/") if piece]
        if not 1 <= len(path) <= 2:
            raise ValueError("the path of a Sentinel URL is /<master name>[/<db>]")
        self._name = path[0]
        self._sentinels = _nodes(parts, _SENTINEL_PORT)
        self.options = {**_base_options(parts, path[1] if len(path) == 2 else "0"), **tls}
        self._sentinel_options = _sentinel_options(parts) | (_asking(self.options) if _sentinels_speak_tls(parts) else {})
        self._password = password

    def find(self) -> Node:
        """Ask the Sentinels, in turn, until one knows."""
        sentinel: Any = Sentinel(list(self._sentinels), sentinel_kwargs=self._sentinel_options)  # type: ignore[no-untyped-call]
        trouble: Exception | None = None
        try:
            for client in sentinel.sentinels:
                try:
                    state = client.sentinel_masters().get(self._name)
                except (redis.ConnectionError, redis.TimeoutError) as error:
                    trouble = error
                    continue
                if state and sentinel.check_master_state(state, self._name):
                    return Node(state["ip"], state["port"])
        finally:
            for client in sentinel.sentinels:
                client.close()
        raise redis.ConnectionError(f"no Sentinel knows a master {self._name!r}" + (f": {trouble}" if trouble else ""))

    def told(self, node: Node) -> None:
        """Ignored: the Sentinels say it."""


class InCluster:
    """The master of the namespace's slot: ``redis+cluster://[user:password@]host[:port][,host...]``.

    Every key of a namespace has the same hash tag, so one node serves all of it.
    """

    def __init__(self, parts: SplitResult, key: str, password: Callable[[], str | None], tls: Mapping[str, str]) -> None:
        self._seeds = _nodes(parts, _CLUSTER_PORT)
        self._known: list[Node] = []
        self._slot = key_slot(key.encode())
        self.options = {**_base_options(parts, "0"), **tls}
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
        options = _asking(self.options) | {key: self.options[key] for key in ("username", "password") if key in self.options}
        if (password := self._password()) is not None:
            options["password"] = password
        client: Any = redis.Redis(*node, socket_timeout=_ASK_TIMEOUT, socket_connect_timeout=_ASK_TIMEOUT, protocol=2, **options)
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


def discovery(url: str, key: str, password: Callable[[], str | None], tls: Mapping[str, str]) -> Discovery:
    """What finds the server of a URL; ``key`` is any key of the namespace.

    ``password`` overrides the URL's when it is not None, and ``tls``, redis-py's options, what the URL says of the same.

    :raises ValueError: the URL can't be understood.
    """
    parts = urlsplit(url)
    if parts.scheme.endswith("+sentinel"):
        return BySentinel(parts, password, tls)
    if parts.scheme.endswith("+cluster"):
        return InCluster(parts, key, password, tls)
    return Fixed(url, tls)


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


def speaks_tls(url: str) -> bool:
    """Whether a URL's connections are encrypted."""
    return urlsplit(url).scheme.partition("+")[0] == "rediss"


def _asking(options: Mapping[str, Any]) -> dict[str, Any]:
    """What a client needs to ask another server in the same way: the options of TLS, or none."""
    if "connection_class" not in options:
        return {}
    return {"ssl": True, **{name: value for name, value in options.items() if name.startswith("ssl_")}}


def _sentinels_speak_tls(parts: SplitResult) -> bool:
    said = parse_qs(parts.query).get("sentinel_tls", ["yes"])[0]
    if said not in {"yes", "no"}:
        raise ValueError(f"sentinel_tls is yes or no, not {said!r}")
    return said == "yes"


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
