"""Say which access to the server each role of processes needs."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.server.reading import shown
from toolbus.bus.broker.server.scripts import Touched

SCRIPTS: Mapping[str, Touched] = MappingProxyType({each.name: each.touched for each in scripts.ALL})
"""The keys of each script; those without any are given keys of the role that runs them."""

WRITES_DOCUMENTS = scripts.CHANGE.name
"""The script that is given tables of documents, too, by what it writes."""


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
        uses: keys that it gives to scripts which several features share, by script.
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
    uses: Mapping[str, str] = MappingProxyType({})
    checks: bool = True
    sources: bool = True


_APART = "reg:recorded reg:pending reg:groups reg:pins"
_READ_REGISTRY = {
    "hscan": Touched(reads=f"reg:services reg:items {_APART}"),
    "hget": Touched(reads="reg:meta reg:services"),
    "hmget": Touched(reads=f"reg:names reg:s {_APART} format"),
    "xrevrange": Touched(reads="log"),
}
_CALL = ("publish/publish", "publish/cancel", "publish/share", "publish/listen", "recover/mend")
_CALL_DIRECTLY = {
    **_READ_REGISTRY,
    "xread": Touched(reads="rsp log call"),
    "xtrim": Touched(writes="rsp"),
    "xadd": Touched(writes="rsp"),
    "del": Touched(writes="rsp pub"),
    "publish": Touched(tells="wake"),
}
_READ_CONFIRMATIONS = {"zrange": Touched(reads="confirms"), "hget": Touched(reads="confirm"), "hmget": Touched(reads="confirm")}
_STATISTICS = {
    "publish": Touched(tells="wake:"),
    "zrange": Touched(reads="live"),
    "xrange": Touched(reads="stats recent ended"),
    "xrevrange": Touched(reads="recent ended"),
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
_AGENT_SCRIPTS = (*_CALL, "confirmations/ask", "confirmations/answer", "held/write", "held/settle", "streams/append")
_AGENT_USES = MappingProxyType({"held/write": "conv convs", "held/settle": "conv convs", "streams/append": "results"})
_GATEWAY_USES = MappingProxyType({**_AGENT_USES, **dict.fromkeys(("held/write", "held/settle"), "conv convs mcp mcps mcpreq")})
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
    "sessions/own", "sessions/disown", "sessions/line", "sessions/save", "sessions/load", "registry/register", "registry/unregister",
    "confirmations/ask", "confirmations/extend", "registry/pause", "limits/count", "streams/append",
)  # fmt: skip
_TASKS = "creation creations:queued creations:running creations:ended"
_PLATFORM_USES = MappingProxyType(
    {"streams/append": "recent ended stats output results", **dict.fromkeys(("held/write", "held/settle"), f"conv convs {_TASKS}")}
)
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
            uses=_AGENT_USES,
        ),
        "worker": Role(
            about="serves tools",
            scripts=_WORKER_SCRIPTS,
            commands=_WORKER_COMMANDS,
            hears="wake confirmed",
            uses=MappingProxyType({"streams/append": "recent ended stats"}),
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
            scripts=(*_WORKER_SCRIPTS, *_AGENT_SCRIPTS, "registry/change", "held/routes"),
            commands=_together(
                _WORKER_COMMANDS,
                _AGENT_COMMANDS,
                _READ_PLATFORM,
                # The calls that a tool failed, for its repair.
                {"xrevrange": Touched(reads="recent"), "publish": Touched(tells="creations")},
            ),
            hears="wake confirmed creations",
            uses=_PLATFORM_USES,
            # What an agent made waits there for a person.
            tables="reg:pending",
        ),
        "approver": Role(
            about="records tools and decides about them; beside gateway for its page, beside platform for --auto-approve and catalogues",
            scripts=("registry/change",),
            commands=_together(_READ_REGISTRY),
            tables=_APART,
        ),
        "messenger": Role(
            about="connects a messenger: an agent that tells of its windows",
            scripts=_AGENT_SCRIPTS,
            commands=_together(_AGENT_COMMANDS, {"get": Touched(reads="messenger"), "set": Touched(writes="messenger")}),
            alone=_FORGET_SNAPSHOTS,
            hears="confirmed",
            uses=_AGENT_USES,
        ),
        "gateway": Role(
            about="serves tools over HTTP and MCP, keeps groups and tokens, watches",
            scripts=(*_AGENT_SCRIPTS, "limits/count", "registry/change", "registry/unregister", "registry/overview", "registry/probe"),
            commands=_together(
                _AGENT_COMMANDS,
                _STATISTICS,
                _READ_PLATFORM,
                {
                    "hget": Touched(reads="tokens"),
                    "hscan": Touched(reads="tokens usage"),
                    "xlen": Touched(reads="q"),
                    "hmget": Touched(reads="mcp mcpreq"),
                    "del": Touched(writes="key"),
                },
            ),
            alone=_FORGET_SNAPSHOTS,
            hears="confirmed",
            tables="reg:groups",
            uses=_GATEWAY_USES,
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
                    "publish": Touched(tells="creations"),
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
            uses=_PLATFORM_USES,
        ),
        "monitor": Role(
            about="watches services, workers, queues and recent calls, and changes nothing",
            scripts=("registry/overview", "registry/probe"),
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
            alone=MappingProxyType({"del": "stats", "xrange": "stats recent ended", "xrevrange": "log recent ended"}),
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


_CALLED = re.compile(r"redis\.p?call\('([A-Z]+)'(?:, '([A-Z]+)')?")
# Commands that the scripts choose by a subcommand, which rules can name.
_PARTED = frozenset({"XGROUP", "XINFO"})
_GLOB = re.compile(r"([\\*?\[\]])")
# Commands that a script passes on to a function of its own.
_CHOSEN = {"registry/overview": frozenset({"hkeys", "xlen", "sismember", "zscore"})}
# Every connection begins with these. Of CLIENT only what is sent: its tracking tells the names of all keys of the server.
_CONNECTION = ("+@connection", "-@admin", "-@dangerous", "-client", "+client|id", "+client|setname", "+client|getname")
# Scripts whose source the user brings; who may, can stop the server with one, and fill its memory.
_SOURCES = frozenset({"eval", "script|load"})
# The checks of the server.
_CHECKS = frozenset(
    "time info role wait asking evalsha cluster|slots acl|whoami exists subscribe unsubscribe".split()  # noqa: SIM905
)


class Rights(msgspec.Struct, frozen=True):
    """The rights of a user, as ACL rules name them.

    Attributes:
        commands: allowed commands beside those of a connection, a part of a command after ``|``.
        given, reads, writes: patterns of keys that may be read and written, read, and written.
        channels: patterns of channels.
        alone: commands, each with patterns of the only keys that it is allowed for.
    """

    commands: tuple[str, ...]
    given: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    channels: tuple[str, ...]
    alone: tuple[tuple[str, tuple[str, ...]], ...]

    def rules(self) -> str:
        """Return them as the rules of ``ACL SETUSER`` or an ACL file; both keep the user's passwords."""
        words = ["resetkeys", "resetchannels", "clearselectors", "-@all", *_CONNECTION]
        words += [f"~{pattern}" for pattern in self.given]
        words += [f"%R~{pattern}" for pattern in self.reads]
        words += [f"%W~{pattern}" for pattern in self.writes]
        words += [f"&{pattern}" for pattern in self.channels]
        words += [f"+{command}" for command in self.commands]
        words += [f"(-@all +{command} {' '.join(f'~{pattern}' for pattern in patterns)})" for command, patterns in self.alone]
        return " ".join(words)


def rights(roles: Iterable[str], namespace: str) -> Rights:
    """Return the rights that a user needs who has these roles in a namespace.

    Raises:
        KeyError: there is no such role.
    """
    names = list(roles)
    found = [ROLES[name] for name in names]
    touched = [SCRIPTS[script] for role in found for script in role.scripts]
    touched += [each for role in found for each in role.commands.values()]
    given = {family for each in touched for family in each.given.split()}
    given |= {family for role in found for families in (role.tables, *role.uses.values()) for family in families.split()}
    reads = {family for each in touched for family in each.reads.split()} - given
    writes = {family for each in touched for family in each.writes.split()} - given
    given |= reads & writes
    keys = Keys(namespace)
    channels = {family for each in touched for family in each.tells.split()} | {family for role in found for family in role.hears.split()}
    commands = {command for role in found for command in role.commands} | (_CHECKS if any(role.checks for role in found) else frozenset())
    if any(role.sources for role in found):
        commands |= _SOURCES
    commands |= {command for role in found for script in role.scripts for command in commands_of(script) - role.never}
    return Rights(
        commands=tuple(sorted(commands)),
        given=_patterns(keys, given),
        reads=tuple(sorted((*_patterns(keys, reads - given), *(_escaped(mark(keys, name)) for name in names)))),
        writes=_patterns(keys, writes - given),
        channels=_patterns(keys, channels),
        alone=tuple((command, _patterns(keys, families.split())) for role in found for command, families in role.alone.items()),
    )


def mark(keys: Keys, role: str) -> str:
    """Return a key that nobody ever writes, and that only users with this role may look for: so a process finds out its role."""
    return f"{keys.prefix}role:{role}"


@functools.cache
def commands_of(script: str) -> frozenset[str]:
    """Return the commands in a script's source, in lower case, as ACL rules name them."""
    [source] = [each.source for each in scripts.ALL if each.name == script]
    return frozenset(
        f"{command}|{part}".lower() if command in _PARTED else command.lower() for command, part in _CALLED.findall(source)
    ) | _CHOSEN.get(script, frozenset())


def _patterns(keys: Keys, families: Iterable[str]) -> tuple[str, ...]:
    whole = {*keys.shared_by_all(), keys.wake_all, keys.confirmed, keys.creations_told, keys.messenger}
    named = [f"{keys.prefix}{family}" for family in families]
    return tuple(sorted(_escaped(key) if key in whole else f"{_escaped(key)}:*" for key in named))


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)


# Scripts that roles may lack: others run them, too.
_LEFT_TO_OTHERS = frozenset({"registry/unregister"})
# Keys that an error names, and words of a command that are looked at.
_MOST_KEYS = 4
_MOST_WORDS = 64
_NEEDS = "it needs the role "
_NO_ROLES = (
    "the user of this process has no rights in the namespace {0!r}: set TOOLBUS_NAMESPACE, or give it a role (`toolbus secure acl ROLE`)"
)


def is_forbidden(error: BaseException) -> bool:
    """Return whether the server has refused a command, or one within a script, because its user lacks a right."""
    # Within a script it has the code of any other error; the first text is Valkey's, the second Redis 7.0's.
    return str(error).startswith(("NOPERM", "ERR ACL failure in script", "ERR The user executing the script"))


def wanted(packed: bytes) -> str:
    """Return which role a packed command needs, which script or command it is, and what it touches."""
    words = packed.split(b"\r\n", 2 * _MOST_WORDS)[2 : 2 * _MOST_WORDS : 2]
    script = _script_in(packed)
    roles = _joined(_roles_for(script, words))
    role = f"{_NEEDS}{roles}; " if roles else ""
    if script:
        table = " and the table of what it writes" if script == WRITES_DOCUMENTS else ""
        touched = _told(SCRIPTS[script]) or f"reading and writing {', '.join(map(shown, _keys(words)[:_MOST_KEYS])) or 'its keys'}"
        return f"{role}the script {script} needs {touched}{table}, and the commands {' '.join(sorted(commands_of(script)))}"
    name = words[0].decode(errors="replace").lower() if words else ""
    key = f" {words[1].decode(errors='replace')[:100]}" if len(words) > 1 else ""
    return f"{role}it was {name}{key}"


def with_roles(text: str, roles: Sequence[str], namespace: str) -> str:
    """Return the text of a refusal with the roles that its user has: for somebody who sees it at a terminal."""
    if not roles:
        return f"{_NO_ROLES.format(namespace)}; {text}"
    before, needs, after = text.partition(_NEEDS)
    if not needs:
        return f"{text} (this user is: {', '.join(roles)})"
    needed, end, rest = after.partition(";")
    old = [role for role in roles if role in needed.replace(",", "").split()]
    advice = f"; its rights are older than this release: set them again with `toolbus secure acl {' '.join(roles)}`" if old else ""
    return f"{before}{needs}{needed} (this user is: {', '.join(roles)}{advice}){end}{rest}"


def is_left_to_others(packed: bytes) -> bool:
    """Return whether a packed command is a script that some roles may not run, or asks for a role."""
    return _script_in(packed) in _LEFT_TO_OTHERS or (packed.startswith(b"*2\r\n$6\r\nEXISTS\r\n") and b"}:role:" in packed)


def _keys(words: Sequence[bytes]) -> list[bytes]:
    """Return the keys that a script is given."""
    count = int(words[2]) if len(words) > 2 and words[2].isdigit() else 0
    return list(words[3 : 3 + count])


def _roles_for(script: str, words: Sequence[bytes]) -> list[str]:
    """Return the roles that may run a script or a command with these keys, the one with most rights last."""
    keys = _keys(words) if script else words[1:]
    families = [rest for word in keys if word.startswith(b"tb:{") for rest in [word.partition(b"}:")[2].decode(errors="replace")] if rest]
    if script:
        may = [name for name, role in ROLES.items() if script in role.scripts and _may_write(role, script, families)]
        found = [name for name in may if _may_pass(name, families)]
    else:
        command = words[0].decode(errors="replace").lower() if words else ""
        found = [name for name, role in ROLES.items() if _may_send(role, command, families)]
    return sorted(found, key=lambda name: name == "operator")


def _may_pass(role: str, families: Sequence[str]) -> bool:
    """Return whether a role may give these keys to a script: one that repairs keys takes those of any role."""
    keys, patterns = Keys("x"), rights((role,), "x").given
    passed = [_escaped(f"{keys.prefix}{family}") for family in families]
    return all(any(key == each or (each.endswith(":*") and key.startswith(each[:-1])) for each in patterns) for key in passed)


def _may_write(role: Role, script: str, families: Sequence[str]) -> bool:
    """Return whether a script that several features share is given no key that is another role's."""
    if script in role.uses:
        return _are_among(families, role.uses[script].split())
    others = {family for each in ROLES.values() for family in each.tables.split()} - {"reg:items", *role.tables.split()}
    return script != WRITES_DOCUMENTS or others.isdisjoint(families)


def _may_send(role: Role, command: str, families: Sequence[str]) -> bool:
    touched = role.commands.get(command, Touched())
    known = f"{touched.given} {touched.reads} {touched.writes} {touched.tells} {role.alone.get(command, '')}".split()
    return bool(families) and _are_among(families, known)


def _are_among(families: Sequence[str], known: Sequence[str]) -> bool:
    return all(any(each == family or each.startswith(f"{family}:") for family in known) for each in families)


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else "".join(names)


def _script_in(packed: bytes) -> str:
    words = packed.split(b"\r\n", 5)[2:5:2]
    if len(words) < 2 or words[0] not in {b"EVAL", b"EVALSHA"}:
        return ""
    head = words[1]
    return next((each.name for each in scripts.ALL if head == each.sha.encode() or packed.find(each.source.encode()) > 0), "")


def _told(touched: Touched) -> str:
    # In the order of its fields.
    acts = ("reading and writing", "reading", "writing", "publishing the channels")
    return ", ".join(f"{act} {families}" for act, families in zip(acts, msgspec.structs.astuple(touched), strict=True) if families)
