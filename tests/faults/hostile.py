"""Values that nothing of toolbus writes, for every key and every field of the protocol."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import redis

from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.envelope import Frame, Request

HIGHEST = "18446744073709551615-18446744073709551615"
LONG = b"x" * 100_000
BYTES = (
    b"", b"\xff", b"\xff\xfe\x00", b"\x1b]52;c;aGk=\x07", b"nan", b"-nan", b"inf", b"-inf", b"1e999", b"-1", b"0x10", b"1_000", b"9" * 400,
    b"9" * 5_000, b"9223372036854775807", b"1.5", b"null", b"[]", b"{}", b'"\\ud800"', b"[" * 20_000, b"a b c d", b"1 2 3", b"nan nan nan",
    b"\n\n", LONG,
)  # fmt: skip
"""What may stand where a text, a number or an id is expected."""

JSON = (
    b"null", b"true", b"-1", b"0", b"1.5", b"1e308", b"1e999", b"-1e999", b"NaN", b"Infinity", b"9" * 400, b"9" * 5_000, b'""', b'"\xff"',
    b'"\\ud800"', b'"\\u0000"', b'"../x"', b'"' + LONG + b'"', b"[]", b"{}", b"[null]", b'{"a": 1}', b"[" * 20_000, b"[" * 900 + b"]" * 900,
)  # fmt: skip
"""What may stand where a value of a document is expected."""


# Makers of names, and not names.
_NO_KEYS = {
    "namespace", "prefix", "call_prefix", "reply_prefix", "queue_prefix", "shared_by_all", "of_workers", "of_service", "of_agent", "tables",
    "table",
}  # fmt: skip
KEY_NAMES = sorted(
    {name for name in (*dict(inspect.getmembers(Keys, inspect.isfunction)), *vars(Keys("x"))) if not name.startswith("_")} - _NO_KEYS
)
"""What ``Keys`` names a key or a channel by."""


class Place(NamedTuple):
    """A key of the protocol in the canary's namespace, its type, and the fields or words that are read of it."""

    key: str
    kind: str
    fields: tuple[str, ...] = ()


class Names(NamedTuple):
    """The names from which the canary's keys are made."""

    service: str
    agent: str
    instance: str
    call: str
    digest: str
    day: str


def places(keys: Keys, names: Names) -> dict[str, Place]:
    """Every key of ``Keys``, by its name there."""
    service, instance = names.service, names.instance
    return {
        "live": Place(keys.live, "zset", (f"{service}/{instance}",)),
        "pulse": Place(keys.pulse, "string"),
        "log": Place(keys.log, "stream", ("op", "key", "doc", "token", "prev")),
        "services": Place(keys.services, "hash", (service,)),
        "names": Place(keys.names, "hash", (f"s:{service}", f"q:{service}", "t:canary_echo")),
        "meta": Place(keys.meta, "hash", ("token", "start")),
        "items": Place(keys.items, "hash", ("tool/other", "tool-service/other", "toolkit/other", "pin/other")),
        "format": Place(keys.format, "hash", ("version", "raising")),
        "recorded": Place(keys.recorded, "hash", ("recorded/other", "pin/other")),
        "pending": Place(keys.pending, "hash", ("pending/other",)),
        "groups": Place(keys.groups, "hash", ("group/other", "backend-runtime/other")),
        "pins": Place(keys.pins, "hash", ("pin/other",)),
        "tokens": Place(keys.tokens, "hash", ("000000000000",)),
        "results": Place(keys.results(names.digest), "list"),
        "messenger": Place(keys.messenger, "string"),
        "task": Place(keys.task(names.digest), "string"),
        "mcp_session": Place(keys.mcp_session(names.digest), "hash", ("session", "holder", "until", "lease", "first", "next")),
        "mcp_sessions": Place(keys.mcp_sessions(names.digest), "zset", (names.digest,)),
        "mcp_request": Place(keys.mcp_request(names.digest), "hash", ("request", "question", "allowed", "cancelled", "answer", "holder")),
        "paused": Place(keys.paused, "set"),
        "confirmations": Place(keys.confirmations, "zset"),
        "confirmed": Place(keys.confirmed, "channel", ("asked", "closed")),
        "creations_queued": Place(keys.creations_queued, "zset", ("create_00000000",)),
        "creations_running": Place(keys.creations_running, "zset", ("create_00000000",)),
        "creations_ended": Place(keys.creations_ended, "zset", ("create_00000000",)),
        "creations_told": Place(keys.creations_told, "channel", ("queued", "running", "cancel", "ended")),
        "creation": Place(
            keys.creation("create_00000000"),
            "hash",
            ("token", "spec", "status", "created", "claim", "until", "lease", "attempts", "lines", "l:0", "price", "cancel"),
        ),
        "recent": Place(keys.recent, "stream", ("c",)),
        "ended": Place(keys.ended, "stream", ("c",)),
        "hosts": Place(keys.hosts, "zset", ("other",)),
        "routes": Place(keys.routes("other"), "hash", ("other",)),
        "single": Place(keys.single("other"), "string"),
        "output": Place(keys.output("other"), "stream", ("h", "l")),
        "wake_all": Place(keys.wake_all, "channel", ("stats",)),
        "answers": Place(keys.answers(names.call), "stream", ("a",)),
        "queue": Place(keys.queue(service), "stream", ("r", "d", "s", "p")),
        "fence": Place(keys.fence(service), "hash", ("generation", f"c:{instance}", f"l:{instance}", "scan", "room", "moved")),
        "cancelled": Place(keys.cancelled(service), "zset"),
        "wake": Place(keys.wake(service), "channel", ("cancel", "confirm", "back", "to", "end", "left")),
        "dead_letters": Place(keys.dead_letters(service), "stream", ("reason", "attempts", "error", "r", "entry")),
        "replies": Place(keys.replies(names.agent), "stream", ("f", "c", "o")),
        "flushes": Place(keys.flushes(names.agent), "hash", tuple(map(str, range(64)))),
        "call": Place(keys.call(names.call), "stream", ("f", "o")),
        "shared": Place(keys.shared(names.digest), "hash", ("id", "digest", "entry", "c:other")),
        "session": Place(keys.session(service, names.digest), "string"),
        "snapshot": Place(keys.snapshot(service, names.digest), "hash", ("t", "c", "d")),
        "order": Place(keys.order(service), "hash", (names.digest,)),
        "started": Place(keys.started(names.call), "string"),
        "confirmation": Place(keys.confirmation(names.call), "hash", ("doc", "to", "asked", "expires", "answer", "token")),
        "conversations": Place(keys.conversations, "zset", (names.digest,)),
        "conversation": Place(
            keys.conversation(names.digest), "hash", ("name", "born", "holder", "until", "lease", "first", "next", "used", "m:0")
        ),
        "pause": Place(keys.pause(service, "1790000000000-0"), "string"),
        "rate": Place(keys.rate(names.digest), "string"),
        "quota": Place(keys.quota(names.digest), "hash", ("period", "used")),
        "usage": Place(keys.usage(names.day), "hash", ('calls["","canary_echo"]', 'ms["","canary_echo"]')),
        "instances": Place(keys.instances(service), "hash", (f"i:{instance}", "queue", "owner", "current", "scale_to_zero")),
    }


def fill(client: redis.Redis, place: Place) -> None:
    """Put everything hostile into one key, of its own type."""
    pipe: Any = client.pipeline(transaction=False)
    for value in BYTES:
        _put(pipe, place, value)
    pipe.execute(raise_on_error=False)


def _put(pipe: Any, place: Place, value: bytes) -> None:
    match place.kind:
        case "string":
            pipe.set(place.key, value, keepttl=True)
        case "set":
            pipe.sadd(place.key, value)
        case "zset":
            for score in ("1e15", "inf", "-inf", "0"):
                pipe.zadd(place.key, {value + score.encode(): score})
            for member in place.fields:
                pipe.zadd(place.key, {member: "inf"})
        case "list":
            pipe.rpush(place.key, value)
        case "channel":
            pipe.publish(place.key, value)
            for word in place.fields:
                pipe.publish(place.key, word.encode() + b" " + value)
        case "hash":
            pipe.hset(place.key, value, b"{}")
            for field in place.fields:
                pipe.hset(place.key, field, value)
        case _:
            pipe.xadd(place.key, {value: value})
            for field in place.fields:
                pipe.xadd(place.key, {field: value})
            pipe.xadd(place.key, dict.fromkeys(place.fields, value))


def replace(client: redis.Redis, place: Place) -> None:
    """Make one key a key of another type."""
    with client.pipeline() as pipe:
        pipe.delete(place.key)
        if place.kind == "string":
            pipe.rpush(place.key, "hostile")
        else:
            pipe.set(place.key, "hostile")
        pipe.execute()


def documents(struct: type[msgspec.Struct], good: Mapping[str, bytes]) -> Iterator[bytes]:
    """Documents of a struct with one field each replaced by something hostile, the fields of its structs among them."""
    for field in msgspec.structs.fields(struct):
        for value in (*JSON, *_nested(field.type)):
            said = {**good, field.encode_name: value}
            yield b"{" + b",".join(b'"%b":%b' % (name.encode(), each) for name, each in said.items()) + b"}"


def _nested(kind: Any) -> Iterator[bytes]:
    for part in (kind, *get_args(kind)):
        if get_origin(part) is None and isinstance(part, type) and issubclass(part, msgspec.Struct):
            hints = get_type_hints(part)
            usual = {name: b'"x"' if hints[name] is str else b"1" for name in part.__struct_fields__ if hints[name] in {str, float}}
            if "type" in hints:
                usual["type"] = b'"tool_error"'
            yield from documents(part, usual)


def requests(service: str) -> Iterator[bytes]:
    """Requests to a service."""
    good = {"id": b'"c1"', "agent": b'"a1"', "service": f'"{service}"'.encode(), "tool": b'"canary_echo"', "arguments": b'{"text":"x"}'}
    yield from documents(Request, good)


def frames(call: str) -> Iterator[bytes]:
    """Frames of a call, of every kind."""
    for kind in ("start", "text", "progress", "blob", "output", "data", "reset", "confirm", "end"):
        good = {"id": f'"{call}"'.encode(), "run": b'"r1"', "seq": b"0", "kind": f'"{kind}"'.encode()}
        yield from documents(Frame, good)
