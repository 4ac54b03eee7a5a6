"""The rights of each role: enough for its work (the contract's tests run under them), and no more."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import redis

from tests.broker.users import Users
from tests.faults.hostile import KEY_NAMES
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.access import ROLES, SCRIPTS, wanted, with_roles
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.wire import pack
from toolbus.operations.cli.secure import acl_command

_KEYS = Keys("walled")

# What each role must not do, as commands; the first of each list is the gravest.
_OTHERS = ("GET", "tb:{other}:x"), ("SET", "tb:{other}:x", "1"), ("PUBLISH", "tb:{other}:wake:", "x"), ("GET", "plain")
_SERVERS = (
    ("FLUSHALL",),
    ("CONFIG", "GET", "*"),
    ("KEYS", "*"),
    ("SHUTDOWN", "NOSAVE"),
    ("ACL", "LIST"),
    ("DEBUG", "SLEEP", "0"),
    ("MONITOR",),
    ("CLIENT", "TRACKING", "ON", "BCAST"),
    ("CLIENT", "REPLY", "OFF"),
    ("CLIENT", "NO-EVICT", "ON"),
    ("CLIENT", "LIST"),
)
# Records of tools that hosts run, and what people decide about them.
_DECISIONS = tuple(
    command
    for table, name in (
        (_KEYS.recorded, "recorded/x"),
        (_KEYS.pending, "pending/x"),
        (_KEYS.groups, "group/x"),
        (_KEYS.pins, "pin/x"),
    )
    for command in (
        ("HSET", table, name, "{}"),
        ("HDEL", table, name),
        ("DEL", table),
        ("EVAL", "return redis.call('HSET', KEYS[1], 'x', '{}')", "1", table),
    )
)


def _without(commands: tuple[tuple[str, ...], ...], table: str) -> tuple[tuple[str, ...], ...]:
    return tuple(command for command in commands if table not in command)


_FORBIDDEN: dict[str, tuple[tuple[str, ...], ...]] = {
    "agent": (
        ("HSET", _KEYS.services, "s", "forged"), ("HSET", _KEYS.items, "tool/x", "forged"), ("XADD", _KEYS.log, "*", "op", "x"),
        ("HGET", _KEYS.tokens, "id"), ("HSET", _KEYS.tokens, "id", "x"), ("XRANGE", _KEYS.dead_letters("s"), "-", "+"),
        ("XREADGROUP", "GROUP", "g", "me", "STREAMS", _KEYS.queue("s"), ">"), ("HGET", _KEYS.snapshot("s", "d"), "d"),
        ("HSET", _KEYS.snapshot("s", "d"), "d", "x"), ("SET", _KEYS.started("c"), "x"), ("HSET", _KEYS.fence("s"), "generation", "9"),
        ("ZADD", _KEYS.live, "1", "s/i"), ("SCAN", "0"), ("SET", _KEYS.rate("d"), "0"), ("XRANGE", _KEYS.recent, "-", "+"),
        ("SET", _KEYS.messenger, "x"), *_DECISIONS,
    ),
    "worker": (
        ("HGET", _KEYS.tokens, "id"), ("HSET", _KEYS.tokens, "id", "x"), ("HGET", _KEYS.conversation("d"), "m:0"),
        ("XREAD", "STREAMS", _KEYS.replies("a"), "0"), ("XRANGE", _KEYS.replies("a"), "-", "+"), ("LRANGE", _KEYS.results("d"), "0", "-1"),
        ("GET", _KEYS.task("d")), ("ZRANGE", _KEYS.conversations, "0", "-1"), ("SCAN", "0"), ("HSET", _KEYS.flushes("a"), "1", "x"),
        ("SET", _KEYS.messenger, "x"), *_DECISIONS,
    ),
    "nested": (
        ("HSET", _KEYS.services, "s", "forged"), ("HGET", _KEYS.tokens, "id"), ("HGET", _KEYS.conversation("d"), "m:0"),
        ("GET", _KEYS.task("d")), ("HSET", _KEYS.confirmation("c"), "answer", "x"), ("HSET", _KEYS.snapshot("s", "d"), "d", "x"),
        *_DECISIONS,
    ),
    "platform": (
        ("HGET", _KEYS.tokens, "id"), ("HSET", _KEYS.tokens, "id", "x"), ("SCAN", "0"), ("SREM", _KEYS.paused, "s"),
        ("SET", _KEYS.messenger, "x"), *_without(_DECISIONS, _KEYS.pending),
    ),
    "approver": (
        ("HGET", _KEYS.tokens, "id"), ("XADD", _KEYS.queue("s"), "*", "r", "x"), ("HSET", _KEYS.fence("s"), "generation", "9"),
        ("XRANGE", _KEYS.queue("s"), "-", "+"), ("HGET", _KEYS.conversation("d"), "m:0"), ("SCAN", "0"), ("SET", _KEYS.messenger, "x"),
    ),
    "messenger": (
        ("HSET", _KEYS.services, "s", "forged"), ("HGET", _KEYS.tokens, "id"), ("XRANGE", _KEYS.dead_letters("s"), "-", "+"),
        ("XREADGROUP", "GROUP", "g", "me", "STREAMS", _KEYS.queue("s"), ">"), ("SCAN", "0"), *_DECISIONS,
    ),
    "gateway": (
        ("HSET", _KEYS.tokens, "id", "forged"), ("HDEL", _KEYS.tokens, "id"),
        ("XREADGROUP", "GROUP", "g", "me", "STREAMS", _KEYS.queue("s"), ">"),
        ("HSET", _KEYS.snapshot("s", "d"), "d", "x"), ("SET", _KEYS.started("c"), "x"), ("SCAN", "0"),
        ("XADD", _KEYS.recent, "*", "c", "x"), ("SET", _KEYS.session("s", "d"), "x"),
        ("SET", _KEYS.messenger, "x"), *_without(_DECISIONS, _KEYS.groups),
    ),
    "operator": (("CLIENT", "KILL", "TYPE", "normal"), ("REPLICAOF", "NO", "ONE")),
    "monitor": (
        ("DEL", _KEYS.queue("s")), ("XADD", _KEYS.queue("s"), "*", "r", "x"), ("XDEL", _KEYS.queue("s"), "1-1"),
        ("ZADD", _KEYS.live, "1", "s/i"), ("HSET", _KEYS.services, "s", "x"), ("HSET", _KEYS.fence("s"), "generation", "9"),
        ("SADD", _KEYS.paused, "s"), ("XRANGE", _KEYS.replies("a"), "-", "+"), ("HGET", _KEYS.tokens, "id"),
        ("HGET", _KEYS.conversation("d"), "m:0"), ("XRANGE", _KEYS.call("c"), "-", "+"), ("DEL", _KEYS.live), ("SCAN", "0"),
        ("XRANGE", _KEYS.queue("s"), "-", "+"), ("XRANGE", _KEYS.dead_letters("s"), "-", "+"), ("XREVRANGE", _KEYS.output("t"), "+", "-"),
        ("EVAL", "while true do end", "0"), ("EVAL_RO", "while true do end", "0"), ("SCRIPT", "LOAD", "return 1"), ("SCRIPT", "KILL"),
        ("PUBLISH", _KEYS.wake("s"), "cancel c"), ("CLIENT", "UNBLOCK", "1"),
        *_DECISIONS,
    ),
    "scaler": (
        ("XRANGE", _KEYS.queue("s"), "-", "+"), ("XPENDING", _KEYS.queue("s"), "g"), ("XINFO", "STREAM", _KEYS.queue("s"), "FULL"),
        ("XDEL", _KEYS.queue("s"), "1-1"), ("XADD", _KEYS.queue("s"), "*", "r", "x"), ("XLEN", _KEYS.dead_letters("s")),
        ("HGETALL", _KEYS.services), ("HGET", _KEYS.tokens, "id"), ("EVAL", "return 1", "0"), ("SUBSCRIBE", _KEYS.confirmed),
        ("SCRIPT", "LOAD", "return 1"), ("INFO",), ("SCAN", "0"), *_DECISIONS,
    ),
}  # fmt: skip


# Families of keys that scripts of several features are given.
_USED = {family for role in ROLES.values() for families in role.uses.values() for family in families.split()}

# Families of keys that no script touches.
_OF_COMMANDS = {
    family
    for role in ROLES.values()
    for each in role.commands.values()
    for family in f"{each.given} {each.reads} {each.writes}".split()
    if not family.startswith("wake")
}


@tool(service="walled", effect="read")
async def walled_echo(text: str) -> str:
    """Give a text back."""
    return text


def test_every_script_is_in_the_table() -> None:
    """A new script must say what it touches, and some role must run it."""
    assert {script.name for script in scripts.ALL} == set(SCRIPTS)
    assert {script for name, role in ROLES.items() if name != "operator" for script in role.scripts} >= set(SCRIPTS) - {
        "dead_letters/redrive"
    }


def test_every_key_of_the_protocol_is_some_roles() -> None:
    """A new key belongs to a role, or nobody with a role can use what needs it; and no role has rights for another one."""
    families = {key.removeprefix(_KEYS.prefix) for key in _KEYS.shared_by_all()}
    touched = [*SCRIPTS.values(), *(each for role in ROLES.values() for each in role.commands.values())]
    named = {word for each in touched for word in f"{each.given} {each.reads} {each.writes} {each.tells}".split()} | _USED
    assert families <= named
    made = [getattr(_KEYS, name) for name in KEY_NAMES]
    keys = [key if isinstance(key, str) else key(*["<x>"] * len(inspect.signature(key).parameters)) for key in made]
    known = {key.removeprefix(_KEYS.prefix).partition(":<")[0] for key in keys}
    assert named - known == set(), "the server's rights are for these, and Keys makes no such keys"


def test_the_command_offers_every_role() -> None:
    """A role that is added is offered by the command line, and every role has a list of what it must not do."""
    assert set(acl_command.params[0].type.choices) == set(ROLES) == set(_FORBIDDEN)


@pytest.mark.parametrize("role", ROLES)
def test_each_role_is_refused_what_it_must_not_do(users: Users, namespace: str, role: str) -> None:
    """Forged registry entries, others' tokens and states, the server itself, and other namespaces are out of reach."""
    settings = users.settings(role)
    with redis.Redis.from_url(settings.url) as client:
        for command in (*_FORBIDDEN[role], *_OTHERS, *_SERVERS):
            words = [word.replace("tb:{walled}:", f"tb:{{{namespace}}}:") for word in command]
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)


# Commands that read a key of some type, and that change or make one.
_READING = (
    ("GET",), ("HGET", "f"), ("HMGET", "f"), ("HGETALL",), ("HSCAN", "0"), ("XRANGE", "-", "+"), ("XREVRANGE", "+", "-"),
    ("ZRANGE", "0", "-1"), ("ZREVRANGE", "0", "-1"), ("ZSCAN", "0"), ("LRANGE", "0", "-1"), ("SMEMBERS",), ("XLEN",),
)  # fmt: skip
_WRITING = (
    ("SET", "x"), ("HSET", "f", "x"), ("HDEL", "f"), ("XADD", "*", "f", "x"), ("XDEL", "1-1"), ("XTRIM", "MAXLEN", "0"), ("ZADD", "1", "m"),
    ("ZREM", "m"), ("SADD", "m"), ("SREM", "m"), ("RPUSH", "x"), ("PEXPIRE", "1"), ("DEL",),
)  # fmt: skip


@pytest.mark.usefixtures("slow")
def test_each_role_can_do_what_its_row_says(users: Users, namespace: str, server: str) -> None:
    """The table of rights is what the server allows to a user of the role who sends commands by hand, family of keys by family."""
    page = Path(__file__).with_name("rights.md").read_text("utf-8")
    families = sorted(
        {key for each in SCRIPTS.values() for key in f"{each.given} {each.reads} {each.writes}".split()} | _OF_COMMANDS | _USED
    )
    keys = Keys(namespace)
    whole = {key.removeprefix(keys.prefix) for key in keys.shared_by_all()}
    with redis.Redis.from_url(server, decode_responses=True) as client:
        for role in ROLES:
            user = users.settings(role).url.partition("://")[2].partition(":")[0]

            def may(command: tuple[str, ...], family: str, user: str = user) -> bool:
                key = keys.prefix + (family if family in whole else f"{family}:x")
                return bool(client.execute_command("ACL", "DRYRUN", user, command[0], key, *command[1:]) == "OK")

            writes = [family for family in families if any(may(each, family) for each in _WRITING)]
            assert writes == [family for family in families if may(("DEL",), family)]
            reads = [family for family in families if family not in writes and any(may(each, family) for each in _READING)]
            row = " | ".join(", ".join(f"`{family}`" for family in each) or "nothing" for each in (writes, reads))
            assert f"| `{role}` | {row} |" in page, f"| `{role}` | {row} |"


@pytest.mark.anyio
@pytest.mark.parametrize("role", [name for name, role in ROLES.items() if role.checks])
async def test_a_process_finds_out_its_roles(users: Users, role: str) -> None:
    """An operator's check names the role of the user, under every role."""
    async with Admin(users.settings(role)) as admin:
        assert await admin.roles() == [role]
        await admin.snapshot()
        assert (await admin.health()).latency_ms > 0


def test_a_scaler_counts_what_waits(users: Users, namespace: str, server: str) -> None:
    """It begins a connection as the client of KEDA does, and sees the length of a service's queue."""
    queue = Keys(namespace).queue("s")
    with redis.Redis.from_url(server) as client, redis.Redis.from_url(users.settings("scaler").url, protocol=3) as scaler:
        client.xadd(queue, {"r": "x"})
        client.expire(queue, 60)
        assert scaler.ping()
        assert scaler.client_setname("keda")
        assert scaler.command_count() > 100
        assert scaler.xlen(queue) == 1


@pytest.mark.anyio
async def test_a_user_with_all_rights_has_no_role(server: str, namespace: str) -> None:
    """The server's default user is told from one that has every role."""
    async with Admin(Settings.load({}, url=server, namespace=namespace)) as admin:
        assert await admin.roles() is None


@pytest.mark.anyio
async def test_an_operator_looks_after_everything(users: Users) -> None:
    """Commands of operators work with the operator's role, and watching with the monitor's."""
    async with Worker(walled_echo, settings=users.settings("worker")), ToolBus(settings=users.settings("agent")) as bus:
        assert (await bus.call("walled_echo", {"text": "a"})).output == "a"
        async with Admin(users.settings("operator")) as admin:
            await admin.pause("walled")
            await admin.resume("walled")
            await admin.put(
                "tool/walled_other", b'{"type": "tool-service", "name": "walled_other", "description": "x", "service": "walled"}'
            )
            assert await admin.delete("tool/walled_other")
            assert await admin.dead_letters.queues() == []
            assert await admin.purge("walled") == 0
            assert await admin.confirmations.pending() == []
            assert await admin.conversations.newest(5) == []
            assert await admin.tallies.usage(2) == []
            assert (await admin.statistics()).answers
        async with Admin(users.settings("monitor")) as watcher:
            [seen] = await watcher.services()
            assert (seen.workers, seen.dead) == (1, 0)
            assert (await watcher.statistics()).answers
            assert isinstance(await watcher.recent(), list)


@pytest.mark.anyio
async def test_a_missing_right_is_named(users: Users) -> None:
    """The error says which role has the right, which script or command lacks which keys, and how to print the rights."""
    needed = "the script registry/pause needs reading and writing reg:paused"
    said = rf"^ERR .*the role worker, platform or operator; {needed}.*`toolbus secure acl`"
    async with Admin(users.settings("monitor")) as admin:
        with pytest.raises(Exception, match=said):
            await admin.pause("walled")


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (("HSCAN", _KEYS.services, "0"), "agent, worker, nested, platform, approver, messenger, gateway, monitor or operator"),
        (("HSET", _KEYS.tokens, "id", "x"), "operator"),
        (("EVALSHA", scripts.OVERVIEW.sha, "1", _KEYS.queue("s")), "gateway, monitor or operator"),
        (("EVALSHA", scripts.CHANGE.sha, "2", _KEYS.services, _KEYS.recorded, "x"), "approver or operator"),
        (("EVALSHA", scripts.CHANGE.sha, "2", _KEYS.services, _KEYS.groups, "x"), "approver, gateway or operator"),
    ],
)
def test_the_roles_with_a_right_are_named(command: tuple[str, ...], needed: str) -> None:
    """The most powerful one is named last."""
    said = wanted(pack(command))
    assert said.startswith(f"it needs the role {needed}; ")


def test_a_repair_names_its_keys() -> None:
    """It is given keys of any kind, so no table has them; the roles that have rights on these keys may do it."""
    said = wanted(pack(("EVALSHA", scripts.MEND.sha, "1", _KEYS.live, "x")))
    assert f"the script recover/mend needs reading and writing {_KEYS.live}," in said
    assert said.startswith("it needs the role worker, platform, gateway or operator; ")


def test_a_refusal_is_told_with_the_roles_of_its_user() -> None:
    """One without any role has the wrong namespace; one with the role has rights of an older release."""
    text = f"NOPERM no; {wanted(pack(('HSET', _KEYS.tokens, 'id', 'x')))}; more"
    assert "it needs the role operator (this user is: agent, worker); " in with_roles(text, ["agent", "worker"], "n")
    assert with_roles(text, [], "other").startswith(
        "the user of this process has no rights in the namespace 'other': set TOOLBUS_NAMESPACE"
    )
    assert "set them again with `toolbus secure acl operator`" in with_roles(text, ["operator"], "n")


def test_a_worker_under_another_role_is_told_which_one_it_lacks() -> None:
    """Every role may repair keys, each its own: an agent's rights are not old because it may not repair those of a worker."""
    keys = [*_KEYS.of_workers(), *_KEYS.of_service("pool", _KEYS.queue("pool"))]
    text = f"NOPERM no; {wanted(pack(('EVALSHA', scripts.MEND.sha, str(len(keys)), *keys)))}; more"
    assert "it needs the role worker, platform or operator (this user is: agent); " in with_roles(text, ["agent"], "n")
    assert "set them again with `toolbus secure acl worker`" in with_roles(text, ["worker"], "n")
