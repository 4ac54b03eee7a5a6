"""Find the master by what Sentinels report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, unquote

import redis

from toolbus.broker.reading import integer
from toolbus.broker.transport import clients
from toolbus.broker.transport.ask_nodes import TIMEOUT, AskPolicy, ask_each
from toolbus.broker.transport.discovery import Node, base_options, nodes_of, tls_options
from toolbus.broker.transport.passwords import read_password

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


class BySentinel:
    """The master of a name, as Sentinels know it: ``redis+sentinel://[user:password@]host[:port][,host...]/<name>[/<db>]``.

    Attributes:
        name: the master's.
        nodes: the Sentinels of the URL.
        agreed: the report of the majority, in a process that follows the Sentinels and while one agrees.
    """

    def __init__(self, parts: SplitResult, tls: Mapping[str, str]) -> None:
        path = [unquote(piece) for piece in parts.path.split("/") if piece]
        if not 1 <= len(path) <= 2:
            raise ValueError("the path of a Sentinel URL is /<master name>[/<db>]")
        self.name = path[0]
        self.nodes = nodes_of(parts, _PORT)
        self.options = {**base_options(parts, path[1] if len(path) == 2 else "0"), **tls}
        self.agreed: SentinelReport | None = None
        self._password_file = _password_file(parts)
        self._asking = _credentials(parts) | (tls_options(self.options) if _sentinels_speak_tls(parts) else {})

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

    def redirected(self, node: Node) -> None:
        """Ignore it: the Sentinels say it."""

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


def _sentinels_speak_tls(parts: SplitResult) -> bool:
    said = parse_qs(parts.query).get("sentinel_tls", ["yes"])[0]
    if said not in {"yes", "no"}:
        raise ValueError(f"sentinel_tls is yes or no, not {said!r}")
    return said == "yes"


def _password_file(parts: SplitResult) -> str:
    query = parse_qs(parts.query)
    if "sentinel_password" in query and "sentinel_password_file" in query:
        raise ValueError("it has both sentinel_password and sentinel_password_file; leave one out")
    return query.get("sentinel_password_file", [""])[0]


def _credentials(parts: SplitResult) -> dict[str, Any]:
    query = parse_qs(parts.query)
    return {name: query[f"sentinel_{name}"][0] for name in ("username", "password") if f"sentinel_{name}" in query}
