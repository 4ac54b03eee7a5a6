"""Find the server: fixed by the URL, this process's own, or in a Cluster by the namespace's slot (Sentinels: see sentinels.py)."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit
from weakref import WeakSet

import redis
from redis.asyncio.connection import parse_url
from redis.crc import key_slot

from toolbus.bus.broker.server.reading import integer
from toolbus.bus.broker.transport import clients
from toolbus.bus.broker.transport.embedded import EmbeddedServer


class PasswordUnread(redis.AuthenticationError):
    """The file of a password can't be read."""


def read_password(path: str) -> str:
    """Return the password that a file holds, without the blanks around it.

    Raises:
        PasswordUnread: the file can't be read.
    """
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PasswordUnread(f"the password file can't be read: {error}") from None


T = TypeVar("T")
N = TypeVar("N")

TIMEOUT = 1.0
"""Seconds that one node may take to connect, and for each answer."""

_MOST = 3.0


class AskPolicy(NamedTuple):
    """The way in which nodes are asked.

    Attributes:
        patience: with the good answers until now, the seconds for which others are waited for; with none the asking ends.
        head_start: seconds that a node has before the next is asked as well; one that failed has none.
    """

    patience: Callable[[Sequence[Any]], float] = lambda good: 0.0
    head_start: float = 0.0


def ask_each(nodes: Sequence[N], ask: Callable[[N], T], policy: AskPolicy) -> list[T]:
    """Return the good answers, at least one, in the order in which they came.

    Blocks for three seconds at most after the last node was asked. Each node is asked in a thread of its own, which is left alone when
    it is late.

    Raises:
        redis.ConnectionError: no node gave one; it tells of the last failure.
    """
    came: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()
    good: list[T] = []
    trouble: Exception | str = f"no answer within {_MOST:g} s"
    unasked, asked, failed = list(nodes), 0, 0
    latest, patient = 0.0, float("inf")
    while unasked or asked > len(good) + failed:
        now = time.monotonic()
        if unasked:
            _start(unasked.pop(0), ask, came)
            asked, latest = asked + 1, now + _MOST
        until = min(latest, patient)
        try:
            answer, error = came.get(timeout=max(0.0, min(until, now + policy.head_start if unasked else until) - now))
        except Empty:
            if time.monotonic() >= (patient if unasked else until):
                break
            continue
        if error is not None:
            trouble, failed = error, failed + 1
            continue
        good.append(answer)  # type: ignore[arg-type]
        if not (patience := policy.patience(good)):
            break
        patient = time.monotonic() + patience
    if not good:
        raise redis.ConnectionError(str(trouble))
    return good


def _start(node: N, ask: Callable[[N], T], came: SimpleQueue[tuple[T | None, Exception | None]]) -> None:
    def run() -> None:
        try:
            came.put((ask(node), None))
        except Exception as error:  # noqa: BLE001 - whatever went wrong with this node, another may know
            came.put((None, error))

    threading.Thread(target=run, name="toolbus-ask", daemon=True).start()


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


class Discovery:
    """Finds the server to connect to, at every connect: the one that the options name, or the node that is given.

    Attributes:
        options: with which redis-py connects, but for an address that has to be found.
        asks: whether finding it may take time.
    """

    asks = False

    def __init__(self, options: Mapping[str, Any], node: Node | None = None) -> None:
        self.options = dict(options)
        self._node = node

    def find(self) -> Node | None:
        """Return the server now, or None when ``options`` has its address. Blocks for a bounded time.

        Raises:
            redis.RedisError: no node could say.
        """
        return self._node

    def redirected(self, node: Node) -> None:
        """Take a server's word that another one is in charge; who knows better ignores it."""

    def left(self) -> None:
        """Take in that no further connection is opened."""


class OfProcess(Discovery):
    """The embedded server of this process, which starts with the first connection and forgets everything after the last: ``memory://``."""

    _server: EmbeddedServer | None = None
    _users: ClassVar[WeakSet[OfProcess]] = WeakSet()
    _lock = threading.Lock()
    asks = True

    def find(self) -> None:
        """Start the server, or empty it when nobody has used it; then the options have the address.

        Raises:
            ConfigurationError: there is no server to start.
            BrokerUnavailable: it does not answer.
        """
        with OfProcess._lock:
            # Other programs of this machine reach its port, and what an agent has written is among them.
            server = OfProcess._server = OfProcess._server or EmbeddedServer(config={"requirepass": secrets.token_hex(16)})
            server.start()
            self.options = {**parse_url(server.url)}
            if not OfProcess._users:
                with clients.client(self.options, TIMEOUT) as client:
                    client.flushall()
            OfProcess._users.add(self)

    def left(self) -> None:
        """Use the server no more."""
        OfProcess._users.discard(self)


class InCluster(Discovery):
    """The master of the namespace's slot: ``redis+cluster://[user:password@]host[:port][,host...]``.

    Every key of a namespace has the same hash tag, so one node serves all of it.
    """

    asks = True

    def __init__(self, parts: SplitResult, key: str, password: Callable[[], str | None], tls: Mapping[str, str]) -> None:
        self._seeds = nodes_of(parts, _CLUSTER_PORT)
        self._known: list[Node] = []
        self._slot = key_slot(key.encode())
        super().__init__({**base_options(parts, "0"), **tls})
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


_PORT = 26379
_MOST_PORT = 65_535
# Others are waited for after a lone answer: one that was cut off from them may not know of a failover.
_GRACE = 0.2
_DOWN = frozenset({"s_down", "o_down", "disconnected"})


class SentinelReport(NamedTuple):
    """The report of one Sentinel.

    Attributes:
        node: the master, also while it is being replaced by it.
        epoch: grows with each failover, so of true reports the one with the highest is the newest.
        down: whether it is silent.
        replacing: whether another one is being put in its place.
    """

    node: Node
    epoch: int
    down: bool
    replacing: bool


class BySentinel(Discovery):
    """The master of a name, as Sentinels know it: ``redis+sentinel://[user:password@]host[:port][,host...]/<name>[/<db>]``.

    Attributes:
        name: the master's.
        nodes: the Sentinels of the URL.
        agreed: the report of the majority, in a process that follows the Sentinels and while one agrees.
    """

    asks = True

    def __init__(self, parts: SplitResult, tls: Mapping[str, str]) -> None:
        path = [unquote(piece) for piece in parts.path.split("/") if piece]
        if not 1 <= len(path) <= 2:
            raise ValueError("the path of a Sentinel URL is /<master name>[/<db>]")
        self.name = path[0]
        self.nodes = nodes_of(parts, _PORT)
        super().__init__({**base_options(parts, path[1] if len(path) == 2 else "0"), **tls})
        self.agreed: SentinelReport | None = None
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if "sentinel_password" in query and "sentinel_password_file" in query:
            raise ValueError("it has both sentinel_password and sentinel_password_file; leave one out")
        self._password_file = query.get("sentinel_password_file", "")
        if (speaks := query.get("sentinel_tls", "yes")) not in {"yes", "no"}:
            raise ValueError(f"sentinel_tls is yes or no, not {speaks!r}")
        self._asking = tls_options(self.options) if speaks == "yes" else {}
        self._asking |= {name: query[f"sentinel_{name}"] for name in ("username", "password") if f"sentinel_{name}" in query}

    @property
    def majority(self) -> int:
        """The number of Sentinels that can replace a master."""
        return len(self.nodes) // 2 + 1

    def find(self) -> Node:
        """Ask the Sentinels, all at once; the master that a majority names counts, else what those that answer in time make likely."""
        try:
            reports = ask_each(self.nodes, self._ask, AskPolicy(self._patience))
        except redis.ConnectionError as error:
            raise redis.ConnectionError(f"no Sentinel knows a master {self.name!r}: {error}") from None
        agreed = [report for report in (agreed_report(reports, self.majority), self.agreed) if report is not None]
        if agreed:
            return max(agreed, key=lambda report: report.epoch).node
        # Where a majority was heard without agreeing, one Sentinel with a wrong epoch must not have its way.
        reports.sort(key=lambda report: report.epoch, reverse=True)
        return reports[max(0, len(reports) - self.majority)].node

    def _patience(self, reports: Sequence[SentinelReport]) -> float:
        if agreed_report(reports, self.majority) is not None:
            return 0.0
        return _GRACE if len({report.node for report in reports}) == 1 else TIMEOUT

    def asking_options(self, node: Node) -> dict[str, Any]:
        """Return the options of a connection to one Sentinel.

        Raises:
            redis.AuthenticationError: the file with the password can't be read.
        """
        password = {"password": read_password(self._password_file)} if self._password_file else {}
        return {**self._asking, **password, **node._asdict()}

    def questions(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the commands whose answers ``read_report`` reads."""
        # In this order: a failover between the two makes the address newer than the epoch, never the other way round.
        return ("SENTINEL", "MASTER", self.name), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)

    def _ask(self, node: Node) -> SentinelReport:
        with clients.client({**self.asking_options(node), "protocol": 2}, TIMEOUT) as client:
            # The answers are read as they come.
            client.response_callbacks.clear()
            report = read_report(*(client.execute_command(*question) for question in self.questions()))
        if report.down:
            raise redis.ConnectionError(f"{report.node.host}:{report.node.port} does not answer the Sentinel at {node.host}:{node.port}")
        return report


def agreed_report(reports: Sequence[SentinelReport], majority: int) -> SentinelReport | None:
    """Return the report of the master that a majority names, with the highest epoch that a majority confirms; None when it names none."""
    for node in {report.node for report in reports}:
        same = sorted((report for report in reports if report.node == node), key=lambda report: report.epoch, reverse=True)
        if len(same) >= majority:
            return same[majority - 1]
    return None


def read_report(state: Any, address: Any) -> SentinelReport:
    """Return a Sentinel's report from its answers to the ``questions``.

    Raises:
        ValueError: it does not know the master, or they can't be read; they may raise anything else, too.
    """
    if not state or not address:
        raise ValueError("the Sentinel does not know the master")
    pairs: Iterable[tuple[Any, Any]] = state.items() if isinstance(state, dict) else zip(state[::2], state[1::2], strict=True)
    fields = {_text(name): _text(value) for name, value in pairs}
    flags = set(fields.get("flags", "").split(","))
    node = Node(_text(address[0]), integer(address[1], least=1, most=_MOST_PORT))
    # Once another one has been promoted the address is that one's, and the flags are still the old one's.
    same = (node.host, str(node.port)) == (fields.get("ip"), fields.get("port"))
    return SentinelReport(
        node, int(fields.get("config-epoch", "0")), same and bool(flags & _DOWN), same and "failover_in_progress" in flags
    )


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
