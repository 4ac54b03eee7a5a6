"""The roles of processes: the scripts that each runs, and the commands that it sends."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from toolbus.broker.access.touched import SCRIPTS, Touched


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """A role of processes, and what it does on the server.

    Attributes:
        about: for people.
        scripts: the scripts that it runs.
        commands: commands that it sends itself, and what they touch.
        alone: commands that are allowed for these keys only.
        hears: channels that it subscribes to.
        never: commands that its scripts do without.
        tables: tables of the registry's documents that it writes.
        checks: it sends what every process of toolbus sends: the checks of the server, and the question for its role.
        sources: whether it may bring scripts to the server; else it runs those that others have loaded.
    """

    about: str
    scripts: tuple[str, ...]
    commands: Mapping[str, Touched]
    alone: Mapping[str, str] = MappingProxyType({})
    hears: str = ""
    never: frozenset[str] = frozenset()
    tables: str = ""
    checks: bool = True
    sources: bool = True


_APART = "reg:recorded reg:pending reg:groups reg:pins"
_READ_REGISTRY = {
    "hscan": Touched(reads=f"reg:services reg:items {_APART}"),
    "hget": Touched(reads="reg:meta reg:services"),
    "hmget": Touched(reads=f"reg:names reg:s {_APART} format"),
    "xrevrange": Touched(reads="log"),
}
_CALL = ("publish/publish", "publish/cancel", "publish/share", "publish/leave", "publish/listen", "recover/mend")
_CALL_DIRECTLY = {
    **_READ_REGISTRY,
    "xread": Touched(reads="rsp log call"),
    "xtrim": Touched(writes="rsp"),
    "xadd": Touched(writes="rsp"),
    "del": Touched(writes="rsp pub"),
    "publish": Touched(tells="wake"),
}
_ASK = ("confirmations/ask", "confirmations/withdraw")
_READ_CONFIRMATIONS = {"zrange": Touched(reads="confirms"), "hget": Touched(reads="confirm"), "hmget": Touched(reads="confirm")}
_LIMITS = ("limits/spend", "limits/quota", "limits/usage")
_STATISTICS = {
    "publish": Touched(tells="wake:"),
    "zrange": Touched(reads="live"),
    "xrange": Touched(reads="stats recent"),
    "xrevrange": Touched(reads="recent"),
    "del": Touched(writes="stats"),
}


def _together(*tables: Mapping[str, Touched]) -> Mapping[str, Touched]:
    """Return several tables of commands as one."""
    found: dict[str, Touched] = {}
    for table in tables:
        for command, touched in table.items():
            before = found.get(command, Touched())
            pairs = zip(msgspec.structs.astuple(before), msgspec.structs.astuple(touched), strict=True)
            found[command] = Touched(*(" ".join(dict.fromkeys(f"{one} {other}".split())) for one, other in pairs))
    return MappingProxyType(found)


_AGENT_COMMANDS = _together(
    _CALL_DIRECTLY,
    _READ_CONFIRMATIONS,
    {
        "zrevrange": Touched(reads="convs"),
        "zrange": Touched(reads="live"),
        "hmget": Touched(reads="conv"),
        "pttl": Touched(reads="conv"),
        "lrange": Touched(reads="results"),
        "get": Touched(reads="task"),
        "set": Touched(writes="task"),
        "xrange": Touched(reads="call"),
    },
)
_AGENT_SCRIPTS = (
    *_CALL, *_ASK, "confirmations/answer", "results/keep",
    "conversations/hold", "conversations/append", "conversations/renew", "conversations/remove",
)  # fmt: skip
# A session's end removes its snapshot, and nothing else of an agent's may touch snapshots.
_FORGET_SNAPSHOTS = MappingProxyType({"del": "snap"})

_READ_PLATFORM = {
    "hscan": Touched(reads="routes"),
    "zrange": Touched(reads="hosts creations:queued creations:running"),
    "zrevrange": Touched(reads="creations:ended convs"),
    "xrange": Touched(reads="output"),
    "xrevrange": Touched(reads="output"),
    "hmget": Touched(reads="creation conv"),
    "get": Touched(reads="messenger"),
}
_WORKER_SCRIPTS = (
    "finish/send", "finish/finish", "finish/finish_each", "lease/beat", "lease/renew",
    "recover/reap", "recover/rescue", "recover/hand_back", "recover/hand_over", "recover/outlive", "recover/retire", "recover/mend",
    "take/start", "take/count", "take/take", "dead_letters/bury",
    "sessions/own", "sessions/disown", "recover/pass_on", "sessions/line", "sessions/save", "sessions/forget",
    "sessions/load", "sessions/elsewhere", "registry/register", "registry/unregister", "registry/sweep",
    *_ASK, "confirmations/extend", "confirmations/pause", *_LIMITS, "recent/note", "statistics/tell",
)  # fmt: skip
_WORKER_COMMANDS = _together(
    _READ_REGISTRY,
    {
        "hmget": Touched(reads="fence"),
        "hget": Touched(reads="fence confirm"),
        "hset": Touched(writes="reg:s"),
        "zrange": Touched(reads="live"),
        "zrevrange": Touched(reads="cancelled"),
        "sismember": Touched(reads="reg:paused"),
        "xreadgroup": Touched(writes="q"),
        "xlen": Touched(writes="rsp call"),
        "del": Touched(writes="pause"),
        "publish": Touched(tells="wake"),
        "client|unblock": Touched(),
    },
)

ROLES: Mapping[str, Role] = MappingProxyType(
    {
        "agent": Role(
            about="calls tools, answers confirmations, keeps conversations",
            scripts=_AGENT_SCRIPTS,
            commands=_AGENT_COMMANDS,
            alone=_FORGET_SNAPSHOTS,
            hears="confirmed",
        ),
        "worker": Role(
            about="serves tools",
            scripts=_WORKER_SCRIPTS,
            commands=_WORKER_COMMANDS,
            hears="wake confirmed",
        ),
        "nested": Role(
            about="calls other tools from handlers; belongs to a worker's user, beside the role worker",
            scripts=_CALL,
            commands=_together(_CALL_DIRECTLY),
            alone=_FORGET_SNAPSHOTS,
            hears="confirmed",
        ),
        "platform": Role(
            about="the tool platform: hosts, the coding agent, and the service agent",
            scripts=(
                *_WORKER_SCRIPTS, *_AGENT_SCRIPTS, "registry/replace", "routes/renew", "routes/release", "routes/output",
                "creations/submit", "creations/claim", "creations/write", "creations/end", "creations/stop",
            ),
            commands=_together(
                _WORKER_COMMANDS,
                _AGENT_COMMANDS,
                _READ_PLATFORM,
                # The calls that a tool failed, for its repair.
                {"xrevrange": Touched(reads="recent")},
            ),
            hears="wake confirmed creations",
            # What an agent made waits there for a person.
            tables="reg:pending",
        ),
        "approver": Role(
            about="records tools and decides about them; beside gateway for its page, beside platform for --auto-approve and catalogues",
            scripts=("registry/item", "registry/replace"),
            commands=_together(_READ_REGISTRY),
            tables=_APART,
        ),
        "messenger": Role(
            about="connects a messenger: an agent that tells of its windows",
            scripts=_AGENT_SCRIPTS,
            commands=_together(_AGENT_COMMANDS, {"get": Touched(reads="messenger"), "set": Touched(writes="messenger")}),
            alone=_FORGET_SNAPSHOTS,
            hears="confirmed",
        ),
        "gateway": Role(
            about="serves tools over HTTP and MCP, keeps groups and tokens, watches",
            scripts=(*_AGENT_SCRIPTS, *_LIMITS, "registry/item", "registry/sweep", "registry/overview", "registry/overviews"),
            commands=_together(
                _AGENT_COMMANDS,
                _STATISTICS,
                _READ_PLATFORM,
                {"hget": Touched(reads="tokens"), "hscan": Touched(reads="tokens usage"), "xlen": Touched(reads="q")},
            ),
            alone=_FORGET_SNAPSHOTS,
            hears="confirmed",
            tables="reg:groups",
        ),
        "operator": Role(
            about="looks after everything, by `toolbus` on the command line",
            scripts=tuple(SCRIPTS),
            commands=_together(
                _AGENT_COMMANDS,
                _STATISTICS,
                _READ_PLATFORM,
                {
                    "hget": Touched(reads=f"reg:items {_APART} tokens"),
                    "hset": Touched(writes="tokens format"),
                    "hdel": Touched(writes="tokens reg:items format"),
                    "hscan": Touched(reads="tokens usage"),
                    "scan": Touched(),
                    "script|flush": Touched(),
                    "script|kill": Touched(),
                    "srem": Touched(writes="reg:paused"),
                    "xdel": Touched(writes="dlq"),
                    "xlen": Touched(reads="q"),
                    "xrange": Touched(reads="q dlq"),
                    "xrevrange": Touched(reads="dlq"),
                    "zscan": Touched(reads="live"),
                },
            ),
            hears="confirmed",
            tables=f"reg:items {_APART}",
        ),
        "monitor": Role(
            about="watches services, workers, queues and recent calls, and changes nothing",
            scripts=("registry/overview", "registry/overviews"),
            commands=_together(
                {command: touched for command, touched in _READ_REGISTRY.items() if command != "xrevrange"},
                {
                    "hscan": Touched(reads="routes usage"),
                    "zrange": Touched(reads="live hosts"),
                    "xlen": Touched(reads="q"),
                    "publish": Touched(tells="wake:"),
                },
            ),
            # Its scripts are given queues and dead letters, whose entries have the arguments of calls.
            alone=MappingProxyType({"del": "stats", "xrange": "stats recent", "xrevrange": "log recent"}),
            # A lease that is further ahead than any can be is put right by others.
            never=frozenset({"zadd"}),
            sources=False,
        ),
        "scaler": Role(
            about="counts requests for KEDA, which scales workers, and does nothing else",
            scripts=(),
            # In a cluster, its client asks for the nodes.
            commands=MappingProxyType({"xlen": Touched(reads="q"), "cluster|slots": Touched()}),
            checks=False,
            sources=False,
        ),
    }
)  # fmt: skip
"""The roles, in the order in which people meet them."""
