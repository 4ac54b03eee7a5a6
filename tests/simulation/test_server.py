"""The simulated server against a real one: the same commands have the same answers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import urlsplit

import hiredis
import pytest

from tests.simulation.commands import COMMANDS
from tests.simulation.server import Server, encoded
from tests.simulation.storage import ErrorReply
from toolbus.bus.broker.transport.embedded import EmbeddedServer

Words = list[bytes]

_FIELDS = [b"a", b"b", b"c"]
_VALUES = [b"x", b"7", b"-3", b"9223372036854775807", b""]
_IDS = [b"1-1", b"1-2", b"2-0", b"3", b"5-7", b"9-1"]
_GROUPS, _CONSUMERS = [b"g", b"h"], [b"me", b"you", b"~back"]
_RANGES = [b"-", b"+", b"0", b"2", b"(1-1", b"5-7"]
_SCORES = [b"1", b"2.5", b"-inf", b"1800000000000", b"(2"]
_NUMBERS = [b"0", b"1", b"-1", b"2", b"100", b"x"]


def _given(random: Random) -> dict[str, Callable[[bytes], Words]]:
    """Return for each command a function that draws its words after the name, for a key."""

    def one(choices: Words) -> bytes:
        return random.choice(choices)

    def some(choices: Words) -> Words:
        return [one(choices) for _ in range(random.randint(1, 3))]

    def pairs(names: Words, values: Words) -> Words:
        return [word for _ in range(random.randint(1, 2)) for word in (one(names), one(values))]

    def maybe(*words: bytes) -> Words:
        return list(words) if random.random() < 0.4 else []

    return {
        "TIME": lambda key: [],
        "DEL": lambda key: [key],
        "UNLINK": lambda key: [key],
        "EXISTS": lambda key: [key],
        "TYPE": lambda key: [key],
        "PEXPIRE": lambda key: [key, one([b"100000", b"-1", b"x"])],
        "PTTL": lambda key: [key],
        "GET": lambda key: [key],
        "SET": lambda key: [key, one(_VALUES), *maybe(one([b"NX", b"XX", b"KEEPTTL"])), *maybe(b"PX", one([b"90000", b"0"]))],
        "HGET": lambda key: [key, one(_FIELDS)],
        "HMGET": lambda key: [key, *some(_FIELDS)],
        "HGETALL": lambda key: [key],
        "HKEYS": lambda key: [key],
        "HLEN": lambda key: [key],
        "HEXISTS": lambda key: [key, one(_FIELDS)],
        "HSTRLEN": lambda key: [key, one(_FIELDS)],
        "HSET": lambda key: [key, *pairs(_FIELDS, _VALUES)],
        "HSETNX": lambda key: [key, one(_FIELDS), one(_VALUES)],
        "HDEL": lambda key: [key, *some(_FIELDS)],
        "HINCRBY": lambda key: [key, one(_FIELDS), one([b"1", b"-5", b"9223372036854775807", b"x"])],
        "HRANDFIELD": lambda key: [key, b"10", *maybe(b"WITHVALUES")],
        "HSCAN": lambda key: [key, b"0", b"COUNT", b"100"],
        "SADD": lambda key: [key, *some(_FIELDS)],
        "SREM": lambda key: [key, *some(_FIELDS)],
        "SISMEMBER": lambda key: [key, one(_FIELDS)],
        "RPUSH": lambda key: [key, *some(_VALUES)],
        "LINDEX": lambda key: [key, one(_NUMBERS)],
        "LRANGE": lambda key: [key, one(_NUMBERS), one(_NUMBERS)],
        "LTRIM": lambda key: [key, one(_NUMBERS), one(_NUMBERS)],
        "ZADD": lambda key: [key, *maybe(one([b"NX", b"XX"])), *pairs([b"1", b"2.5", b"-inf", b"1800000000000", b"x"], _FIELDS)],
        "ZREM": lambda key: [key, *some(_FIELDS)],
        "ZSCORE": lambda key: [key, one(_FIELDS)],
        "ZCARD": lambda key: [key],
        "ZCOUNT": lambda key: [key, one(_SCORES), one([b"+inf", *_SCORES])],
        "ZRANGE": lambda key: random.choice(
            [
                [key, one(_NUMBERS), one(_NUMBERS)],
                [key, one(_SCORES), b"+inf", b"BYSCORE", *maybe(b"LIMIT", b"0", one([b"1", b"-1"]))],
            ]
        ),
        "ZREVRANGE": lambda key: [key, one(_NUMBERS), one(_NUMBERS)],
        "ZSCAN": lambda key: [key, b"0", *maybe(b"MATCH", b"*a"), b"COUNT", b"100"],
        "ZREMRANGEBYSCORE": lambda key: [key, one(_SCORES), one(_SCORES)],
        "ZREMRANGEBYRANK": lambda key: [key, one(_NUMBERS), one(_NUMBERS)],
        "XADD": lambda key: [key, *maybe(b"NOMKSTREAM"), *maybe(b"MAXLEN", b"2"), one(_IDS), *pairs(_FIELDS, _VALUES)],
        "XTRIM": lambda key: [key, *random.choice([[b"MAXLEN", b"1"], [b"MINID", one(_IDS)], [b"MAXLEN", b"~", b"1"]])],
        "XLEN": lambda key: [key],
        "XDEL": lambda key: [key, *some(_IDS)],
        "XRANGE": lambda key: [key, one(_RANGES), one(_RANGES), *maybe(b"COUNT", b"1")],
        "XREVRANGE": lambda key: [key, one(_RANGES), one(_RANGES), *maybe(b"COUNT", b"2")],
        "XREAD": lambda key: [*maybe(b"COUNT", b"1"), b"STREAMS", key, one(_IDS)],
        "XREADGROUP": lambda key: [b"GROUP", one(_GROUPS), one(_CONSUMERS), *maybe(b"COUNT", b"1"), b"STREAMS", key, one([b">", b"0"])],
        "XGROUP": lambda key: random.choice(
            [
                [b"CREATE", key, one(_GROUPS), one([b"0", b"$", b"2-0"]), *maybe(b"MKSTREAM")],
                [b"DESTROY", key, one(_GROUPS)],
                [b"SETID", key, one(_GROUPS), one(_IDS)],
                [b"DELCONSUMER", key, one(_GROUPS), one(_CONSUMERS)],
            ]
        ),
        "XACK": lambda key: [key, one(_GROUPS), *some(_IDS)],
        "XPENDING": lambda key: random.choice(
            [
                [key, one(_GROUPS)],
                [key, one(_GROUPS), *maybe(b"IDLE", b"0"), one(_RANGES), one(_RANGES), b"5", *maybe(one(_CONSUMERS))],
            ]
        ),
        "XCLAIM": lambda key: [
            key, one(_GROUPS), one(_CONSUMERS), one([b"0", b"100000"]), *some(_IDS),
            *maybe(b"RETRYCOUNT", b"3"), *maybe(b"FORCE"), *maybe(b"JUSTID"),
        ],
        "XINFO": lambda key: random.choice([[b"STREAM", key], [b"GROUPS", key], [b"CONSUMERS", key, one(_GROUPS)]]),
    }  # fmt: skip


# They concern all keys of a server.
_OF_ALL_KEYS = frozenset({"FLUSHALL", "SCAN"})
_INFO = ("length", "last-generated-id", "groups", "name", "consumers", "pending", "last-delivered-id")


def test_every_command_is_compared() -> None:
    """Each command of the simulated server is drawn, but for those that concern all keys."""
    assert {*_given(Random(1)), *_OF_ALL_KEYS} == {name.decode() for name in COMMANDS}


@pytest.mark.parametrize("seed", range(12))
def test_commands_have_the_answers_of_a_real_server(seed: int, server: str, namespace: str) -> None:
    """Random commands on a few keys have the same answers, errors included; what depends on the moment is left out."""
    random = Random(seed)
    given, keys = _given(random), [f"tb:{{{namespace}}}:{name}".encode() for name in "pqr"]
    simulated = Server(lambda: 1_800_000_000_000_000, lambda *_: None, random)
    real = Real(server)
    # Most commands on a key are for one type, so that it comes to hold something.
    families = [[name for name in given if name[0] == letter] for letter in "XHXZLS"]
    try:
        for number in range(250):
            family = families[(number // 25) % len(families)]
            name = random.choice(family if random.random() < 0.9 else list(given))
            words = [name.encode(), *given[name](random.choice(keys))]
            assert (number, words, _masked(words, _answer(simulated, words))) == (number, words, _masked(words, real.ask(words)))
    finally:
        real.ask([b"DEL", *keys])
        real.close()


_READ, _GROW, _SHRINK = "redis.call('GET', KEYS[1])", "redis.call('SET', KEYS[1], 'x')", "redis.call('PEXPIRE', KEYS[1], 100000)"
_SCRIPTS = [
    (flags, " ".join(steps) + " return 1")
    for flags in ("", "#!lua\n", "#!lua flags=allow-oom\n", "#!lua flags=no-writes\n")
    for steps in ([_READ], [_GROW], [_SHRINK], [_SHRINK, _GROW], [_READ, _GROW])
    if "no-writes" not in flags or steps == [_READ]
]


def test_scripts_are_refused_as_by_a_full_server(fresh_server: Callable[..., EmbeddedServer]) -> None:
    """One with flags as a whole, and one without at its first command that takes memory, unless it has written before."""
    simulated, real = Server(lambda: 1_800_000_000_000_000, lambda *_: None, Random(1)), Real(fresh_server().url)
    set_up = [b"SET", b"k", b"v"]
    assert simulated.carry_out(set_up) == real.ask(set_up)
    real.ask([b"CONFIG", b"SET", b"maxmemory", b"1"])
    simulated.refusals.append(lambda name, writes, grows: "OOM command not allowed" if grows else "")
    found, seen = [], []
    for flags, body in _SCRIPTS:
        source = (flags + body).encode()
        try:
            answer: Any = simulated.run_script(source, [b"1", b"k"])
        except ErrorReply as error:
            answer = error
        found.append(_masked([b"EVAL"], answer))
        seen.append(_masked([b"EVAL"], real.ask([b"EVAL", source, b"1", b"k"])))
    real.close()
    assert found == seen
    assert set(found) == {1, "OOM"}


class Real:
    """A connection to a real server, without a client's opinion on answers."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=10)
        self._reader = hiredis.Reader(replyError=ErrorReply)
        self.ask([b"HELLO", b"3", *([b"AUTH", b"default", parts.password.encode()] if parts.password else [])])

    def ask(self, words: Words) -> Any:
        """Return the answer to a command."""
        self._socket.sendall(hiredis.pack_command(tuple(words)))
        while (answer := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        return answer

    def close(self) -> None:
        """Close it."""
        self._socket.close()


def _answer(server: Server, words: Words) -> Any:
    try:
        answer = server.carry_out(words)
    except ErrorReply as error:
        answer = error
    reader = hiredis.Reader(replyError=ErrorReply)
    reader.feed(encoded(answer))
    return reader.gets()


def _masked(words: Words, answer: Any) -> Any:
    """Return an answer without what depends on the moment, and the code of an error."""
    if isinstance(answer, ErrorReply):
        return str(answer).partition(" ")[0]
    match words[0]:
        case b"TIME":
            return None
        case b"PTTL":
            return min(answer, 1)
        case b"XPENDING" if len(words) > 3:
            return [[entry, consumer, count] for entry, consumer, _, count in answer]
        case b"XINFO":
            about = [answer] if isinstance(answer, dict) else answer
            return [{name: each[name.encode()] for name in _INFO if name.encode() in each} for each in about]
        case b"HGETALL" | b"HKEYS" | b"HRANDFIELD":
            return sorted(answer.items()) if isinstance(answer, dict) else sorted(answer, key=repr)
        case _:
            return answer
