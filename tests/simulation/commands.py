"""The commands of the simulated server: those that toolbus sends or that its scripts call, each as Redis 7.2 carries it out."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from random import Random
from typing import Any, NamedTuple

from tests.simulation.storage import LAST_ID, Elements, ErrorReply, Group, Hash, Id, Members, Pending, Scores, Status, Storage, Stream

OK = Status(b"OK")
BLOCKS = object()
"""The answer of a command that waits: it is carried out again when one of its keys changes."""

MOST = 2**63 - 1


class Streams(dict[bytes, Any]):
    """Entries found in streams: a map in RESP3, a list of pairs in scripts."""


class Pairs(list[Any]):
    """Names and values: a list of pairs in RESP3, a flat one in scripts."""


class Command(NamedTuple):
    """A command, and its flags.

    Attributes:
        run: called with the storage, the random numbers of the server, and the words after the name.
        writes: whether a replica refuses it.
        grows: whether it is refused when memory is full.
    """

    run: Callable[[Storage, Random, list[bytes]], Any]
    writes: bool = False
    grows: bool = False


COMMANDS: dict[bytes, Command] = {}


def _command(*names: str, writes: bool = False, grows: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            COMMANDS[name.encode()] = Command(run, writes or grows, grows)
        return run

    return add


def _integer(word: bytes) -> int:
    try:
        number = int(word)
    except ValueError:
        number = None
    if number is None or str(number).encode() != word or not -(2**63) <= number < 2**63:
        raise ErrorReply("ERR value is not an integer or out of range")
    return number


def _number(word: bytes) -> float:
    try:
        return float(word)
    except ValueError:
        raise ErrorReply("ERR value is not a valid float") from None


# -- keys and strings ---------------------------------------------------------------------------------


@_command("TIME")
def _time(db: Storage, random: Random, words: list[bytes]) -> Any:
    return [b"%d" % part for part in divmod(db.clock(), 1_000_000)]


@_command("DEL", "UNLINK", writes=True)
def _del(db: Storage, random: Random, words: list[bytes]) -> Any:
    return sum(db.find(key) is not None and db.remove(key) for key in words)


@_command("EXISTS")
def _exists(db: Storage, random: Random, words: list[bytes]) -> Any:
    return sum(db.find(key) is not None for key in words)


@_command("TYPE")
def _type(db: Storage, random: Random, words: list[bytes]) -> Any:
    return Status(db.kind(words[0]).encode())


@_command("PEXPIRE", writes=True)
def _pexpire(db: Storage, random: Random, words: list[bytes]) -> Any:
    ttl = _integer(words[1])
    if db.find(words[0]) is None:
        return 0
    if ttl <= 0:
        db.remove(words[0])
    else:
        db.expires[words[0]] = db.now() + ttl
    return 1


@_command("PTTL")
def _pttl(db: Storage, random: Random, words: list[bytes]) -> Any:
    if db.find(words[0]) is None:
        return -2
    ends = db.expires.get(words[0])
    return -1 if ends is None else max(0, ends - db.now())


@_command("SCAN")
def _scan(db: Storage, random: Random, words: list[bytes]) -> Any:
    pattern = words[words.index(b"MATCH") + 1].decode("latin-1") if b"MATCH" in words else "*"
    return [b"0", [key for key in db.names() if fnmatchcase(key.decode("latin-1"), pattern)]]


@_command("FLUSHALL", writes=True)
def _flushall(db: Storage, random: Random, words: list[bytes]) -> Any:
    db.restore(({}, {}))
    return OK


@_command("GET")
def _get(db: Storage, random: Random, words: list[bytes]) -> Any:
    return db.get(words[0], bytes)


@_command("SET", grows=True)
def _set(db: Storage, random: Random, words: list[bytes]) -> Any:
    key, value, *rest = words
    options = [word.upper() for word in rest]
    ttl = _integer(rest[options.index(b"PX") + 1]) if b"PX" in options else None
    if ttl is not None and b"KEEPTTL" in options:
        raise ErrorReply("ERR syntax error")
    if ttl is not None and ttl <= 0:
        raise ErrorReply("ERR invalid expire time in 'set' command")
    there = db.find(key) is not None
    if (b"NX" in options and there) or (b"XX" in options and not there):
        return None
    db.values[key] = value
    db.changed.add(key)
    if b"KEEPTTL" not in options:
        db.expires.pop(key, None)
    if ttl is not None:
        db.expires[key] = db.now() + ttl
    return OK


# -- hashes -------------------------------------------------------------------------------------------


@_command("HGET")
def _hget(db: Storage, random: Random, words: list[bytes]) -> Any:
    return (db.get(words[0], Hash) or Hash()).get(words[1])


@_command("HMGET")
def _hmget(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Hash) or Hash()
    return [found.get(name) for name in words[1:]]


@_command("HGETALL")
def _hgetall(db: Storage, random: Random, words: list[bytes]) -> Any:
    return dict(db.get(words[0], Hash) or Hash())


@_command("HKEYS")
def _hkeys(db: Storage, random: Random, words: list[bytes]) -> Any:
    return list(db.get(words[0], Hash) or Hash())


@_command("HLEN")
def _hlen(db: Storage, random: Random, words: list[bytes]) -> Any:
    return len(db.get(words[0], Hash) or Hash())


@_command("HEXISTS")
def _hexists(db: Storage, random: Random, words: list[bytes]) -> Any:
    return int(words[1] in (db.get(words[0], Hash) or Hash()))


@_command("HSTRLEN")
def _hstrlen(db: Storage, random: Random, words: list[bytes]) -> Any:
    return len((db.get(words[0], Hash) or Hash()).get(words[1], b""))


@_command("HSET", grows=True)
def _hset(db: Storage, random: Random, words: list[bytes]) -> Any:
    if len(words) < 3 or len(words) % 2 == 0:
        raise ErrorReply("ERR wrong number of arguments for 'hset' command")
    found = db.make(words[0], Hash)
    before = len(found)
    found.update(zip(words[1::2], words[2::2], strict=True))
    return len(found) - before


@_command("HSETNX", grows=True)
def _hsetnx(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.make(words[0], Hash)
    if words[1] in found:
        return 0
    found[words[1]] = words[2]
    return 1


@_command("HDEL", writes=True)
def _hdel(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Hash)
    if found is None:
        return 0
    count = sum(found.pop(name, None) is not None for name in words[1:])
    db.tidy(words[0], found)
    return count


@_command("HINCRBY", grows=True)
def _hincrby(db: Storage, random: Random, words: list[bytes]) -> Any:
    by = _integer(words[2])
    known = (db.get(words[0], Hash) or Hash()).get(words[1], b"0")
    try:
        number = _integer(known) + by
    except ErrorReply:
        raise ErrorReply("ERR hash value is not an integer") from None
    if not -(2**63) <= number < 2**63:
        raise ErrorReply("ERR increment or decrement would overflow")
    db.make(words[0], Hash)[words[1]] = b"%d" % number
    return number


@_command("HRANDFIELD")
def _hrandfield(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Hash) or Hash()
    names = list(found)
    chosen = names if len(names) <= _integer(words[1]) else random.sample(names, _integer(words[1]))
    return Pairs([name, found[name]] for name in chosen) if len(words) > 2 else chosen


@_command("HSCAN")
def _hscan(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Hash) or Hash()
    return [b"0", [word for pair in found.items() for word in pair]]


# -- sets and lists -----------------------------------------------------------------------------------


@_command("SADD", grows=True)
def _sadd(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.make(words[0], Members)
    before = len(found)
    found.update(dict.fromkeys(words[1:]))
    return len(found) - before


@_command("SREM", writes=True)
def _srem(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Members)
    if found is None:
        return 0
    before = len(found)
    for member in words[1:]:
        found.pop(member, None)
    count = before - len(found)
    db.tidy(words[0], found)
    return count


@_command("SISMEMBER")
def _sismember(db: Storage, random: Random, words: list[bytes]) -> Any:
    return int(words[1] in (db.get(words[0], Members) or Members()))


@_command("RPUSH", grows=True)
def _rpush(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.make(words[0], Elements)
    found.extend(words[1:])
    return len(found)


def _slice(size: int, bounds: tuple[int, int]) -> slice:
    start, stop = (max(0, number + size) if number < 0 else number for number in bounds)
    return slice(0, 0) if bounds[1] + size < 0 else slice(start, stop + 1)


def _places(words: list[bytes]) -> tuple[int, int]:
    return _integer(words[1]), _integer(words[2])


@_command("LINDEX")
def _lindex(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Elements)
    if found is None:
        return None
    index = _integer(words[1])
    return found[index] if -len(found) <= index < len(found) else None


@_command("LRANGE")
def _lrange(db: Storage, random: Random, words: list[bytes]) -> Any:
    places, found = _places(words), db.get(words[0], Elements) or Elements()
    return list(found[_slice(len(found), places)])


@_command("LTRIM", writes=True)
def _ltrim(db: Storage, random: Random, words: list[bytes]) -> Any:
    places, found = _places(words), db.get(words[0], Elements)
    if found is not None:
        found[:] = found[_slice(len(found), places)]
        db.tidy(words[0], found)
    return OK


# -- sorted sets --------------------------------------------------------------------------------------


@_command("ZADD", grows=True)
def _zadd(db: Storage, random: Random, words: list[bytes]) -> Any:
    key, *rest = words
    options: set[bytes] = set()
    while rest and rest[0].upper() in {b"NX", b"XX", b"GT", b"LT", b"CH"}:
        options.add(rest.pop(0).upper())
    scores = [_number(word) for word in rest[::2]]
    found = db.get(key, Scores)
    if found is None and b"XX" in options:
        return 0
    found, added = db.make(key, Scores), 0
    for score, member in zip(scores, rest[1::2], strict=True):
        if member in found:
            if b"NX" not in options:
                found[member] = score
        elif b"XX" not in options:
            found[member] = score
            added += 1
    return added


@_command("ZREM", writes=True)
def _zrem(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Scores)
    if found is None:
        return 0
    count = sum(found.pop(member, None) is not None for member in words[1:])
    db.tidy(words[0], found)
    return count


@_command("ZSCORE")
def _zscore(db: Storage, random: Random, words: list[bytes]) -> Any:
    return (db.get(words[0], Scores) or Scores()).get(words[1])


@_command("ZCARD")
def _zcard(db: Storage, random: Random, words: list[bytes]) -> Any:
    return len(db.get(words[0], Scores) or Scores())


def _bounds(low: bytes, high: bytes) -> Callable[[float], bool]:
    def bound(word: bytes) -> tuple[float, bool]:
        try:
            return float(word.lstrip(b"(")), word.startswith(b"(")
        except ValueError:
            raise ErrorReply("ERR min or max is not a float") from None

    (first, first_open), (last, last_open) = bound(low), bound(high)
    return lambda score: (first < score or (score == first and not first_open)) and (score < last or (score == last and not last_open))


@_command("ZCOUNT")
def _zcount(db: Storage, random: Random, words: list[bytes]) -> Any:
    inside = _bounds(words[1], words[2])
    return sum(map(inside, (db.get(words[0], Scores) or Scores()).values()))


@_command("ZRANGE")
def _zrange(db: Storage, random: Random, words: list[bytes]) -> Any:
    options = [word.upper() for word in words[3:]]
    if b"BYSCORE" not in options:
        places, found = _places(words), db.get(words[0], Scores) or Scores()
        return found.ranked()[_slice(len(found), places)]
    inside, found = _bounds(words[1], words[2]), db.get(words[0], Scores) or Scores()
    members = [member for member in found.ranked() if inside(found[member])]
    if b"LIMIT" in options:
        at = options.index(b"LIMIT") + 3
        first, count = _integer(words[at + 1]), _integer(words[at + 2])
        members = members[first:] if count < 0 else members[first : first + count]
    return members


@_command("ZREVRANGE")
def _zrevrange(db: Storage, random: Random, words: list[bytes]) -> Any:
    places, found = _places(words), db.get(words[0], Scores) or Scores()
    return found.ranked()[::-1][_slice(len(found), places)]


@_command("ZSCAN")
def _zscan(db: Storage, random: Random, words: list[bytes]) -> Any:
    found = db.get(words[0], Scores) or Scores()
    pattern = words[words.index(b"MATCH") + 1].decode("latin-1") if b"MATCH" in words else "*"
    chosen = [member for member in found.ranked() if fnmatchcase(member.decode("latin-1"), pattern)]
    return [b"0", [word for member in chosen for word in (member, decimal(found[member]))]]


@_command("ZREMRANGEBYSCORE", writes=True)
def _zremrangebyscore(db: Storage, random: Random, words: list[bytes]) -> Any:
    inside, found = _bounds(words[1], words[2]), db.get(words[0], Scores)
    if found is None:
        return 0
    gone = [member for member, score in found.items() if inside(score)]
    for member in gone:
        del found[member]
    db.tidy(words[0], found)
    return len(gone)


@_command("ZREMRANGEBYRANK", writes=True)
def _zremrangebyrank(db: Storage, random: Random, words: list[bytes]) -> Any:
    places, found = _places(words), db.get(words[0], Scores)
    if found is None:
        return 0
    gone = found.ranked()[_slice(len(found), places)]
    for member in gone:
        del found[member]
    db.tidy(words[0], found)
    return len(gone)


def decimal(number: float) -> bytes:
    """Return a number as Redis writes it."""
    if math.isinf(number):
        return b"inf" if number > 0 else b"-inf"
    return b"%d" % number if number == int(number) and abs(number) < 2**53 else repr(number).encode()


# -- streams ------------------------------------------------------------------------------------------


def id_of(word: bytes, missing: int = 0) -> Id:
    """Return an id as it is written; ``missing`` stands for a sequence number that is left out."""
    ms, dash, number = word.partition(b"-")
    if not ms.isdigit() or (dash and not number.isdigit()) or int(ms) >= 2**64 or (dash and int(number) >= 2**64):
        raise ErrorReply("ERR Invalid stream ID specified as stream command argument")
    return int(ms), int(number) if dash else missing


def shown(id: Id) -> bytes:
    """Return an id as it is written."""
    return b"%d-%d" % id


def _after(id: Id) -> Id:
    return (id[0], id[1] + 1) if id[1] < 2**64 - 1 else (id[0] + 1, 0)


def _before(id: Id) -> Id:
    return (id[0], id[1] - 1) if id[1] else (id[0] - 1, 2**64 - 1)


def _range(first: bytes, last: bytes) -> tuple[Id, Id]:
    ends: dict[bytes, Id] = {b"-": (0, 0), b"+": LAST_ID}
    low = ends[first] if first in ends else _after(id_of(first[1:])) if first[:1] == b"(" else id_of(first)
    high = ends[last] if last in ends else _before(id_of(last[1:], 2**64 - 1)) if last[:1] == b"(" else id_of(last, 2**64 - 1)
    return low, high


def _shown(stream: Stream, ids: list[Id]) -> list[Any]:
    return [[shown(each), list(stream.entries[each])] for each in ids]


_NODE = 100


def _trim(stream: Stream, how: bytes, about: bool, limit: bytes) -> int:
    ids = list(stream.entries)
    if how == b"MAXLEN":
        gone = ids[: max(0, len(ids) - _integer(limit))]
    else:
        least = id_of(limit)
        gone = [each for each in ids if each < least]
    if about:
        gone = gone[: len(gone) // _NODE * _NODE]
    for each in gone:
        del stream.entries[each]
    return len(gone)


def _trimming(words: list[bytes]) -> tuple[bytes, bool, bytes]:
    how, about = words.pop(0).upper(), False
    if words[0] in {b"~", b"="}:
        about = words.pop(0) == b"~"
    return how, about, words.pop(0)


@_command("XADD", grows=True)
def _xadd(db: Storage, random: Random, words: list[bytes]) -> Any:
    key, *rest = words
    make, trimming = True, None
    while rest[0].upper() in {b"NOMKSTREAM", b"MAXLEN", b"MINID"}:
        if rest[0].upper() == b"NOMKSTREAM":
            make = bool(rest.pop(0)) and False
        else:
            trimming = _trimming(rest)
    stream = db.get(key, Stream)
    if stream is None and not make:
        return None
    word = rest.pop(0)
    made = (stream or Stream()).next_id(db.now()) if word == b"*" else id_of(word)
    if stream is not None and made <= stream.last:
        raise ErrorReply("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    stream = db.make(key, Stream)
    stream.entries[made] = rest
    stream.last = made
    if trimming is not None:
        _trim(stream, *trimming)
    return shown(made)


@_command("XTRIM", writes=True)
def _xtrim(db: Storage, random: Random, words: list[bytes]) -> Any:
    stream = db.get(words[0], Stream)
    return 0 if stream is None else _trim(stream, *_trimming(words[1:]))


@_command("XLEN")
def _xlen(db: Storage, random: Random, words: list[bytes]) -> Any:
    stream = db.get(words[0], Stream)
    return 0 if stream is None else len(stream.entries)


@_command("XDEL", writes=True)
def _xdel(db: Storage, random: Random, words: list[bytes]) -> Any:
    stream = db.get(words[0], Stream)
    return 0 if stream is None else sum(stream.entries.pop(id_of(word), None) is not None for word in words[1:])


@_command("XRANGE")
def _xrange(db: Storage, random: Random, words: list[bytes]) -> Any:
    stream, (low, high) = db.get(words[0], Stream), _range(words[1], words[2])
    count = _integer(words[4]) if len(words) > 3 else MOST
    return [] if stream is None else _shown(stream, stream.between(low, high)[:count])


@_command("XREVRANGE")
def _xrevrange(db: Storage, random: Random, words: list[bytes]) -> Any:
    stream, (low, high) = db.get(words[0], Stream), _range(words[2], words[1])
    count = _integer(words[4]) if len(words) > 3 else MOST
    return [] if stream is None else _shown(stream, stream.between(low, high)[::-1][:count])


class Reading(NamedTuple):
    """The words of an XREAD or XREADGROUP after its name, read.

    Attributes:
        positions: the keys, and after which entry each is read.
        most: entries of each.
        block: milliseconds for which it may wait; None when it may not.
    """

    positions: list[tuple[bytes, bytes]]
    most: int
    block: int | None

    @classmethod
    def of(cls, words: list[bytes]) -> Reading:
        """Read the words."""
        upper = [word.upper() for word in words]
        at = upper.index(b"STREAMS")
        options, half = upper[:at], at + 1 + (len(words) - at - 1) // 2
        most = _integer(words[options.index(b"COUNT") + 1]) if b"COUNT" in options else MOST
        block = _integer(words[options.index(b"BLOCK") + 1]) if b"BLOCK" in options else None
        return cls(list(zip(words[at + 1 : half], words[half:], strict=True)), most, block)


@_command("XREAD")
def _xread(db: Storage, random: Random, words: list[bytes]) -> Any:
    found, reading = Streams(), Reading.of(words)
    for key, position in reading.positions:
        stream = db.get(key, Stream)
        if stream is None:
            continue
        ids = stream.between(_after(id_of(position)), LAST_ID)[: reading.most]
        if ids:
            found[key] = _shown(stream, ids)
    return found or (None if reading.block is None else BLOCKS)


def _no_group(key: bytes, group: bytes) -> ErrorReply:
    return ErrorReply(f"NOGROUP No such key '{key.decode('latin-1')}' or consumer group '{group.decode('latin-1')}'")


@_command("XREADGROUP", writes=True)
def _xreadgroup(db: Storage, random: Random, words: list[bytes]) -> Any:
    name, consumer, reading = words[1], words[2], Reading.of(words)
    groups: list[tuple[bytes, bytes, Stream, Group]] = []
    for key, position in reading.positions:
        stream = db.get(key, Stream)
        group = None if stream is None else stream.groups.get(name)
        if stream is None or group is None:
            raise ErrorReply(f"{_no_group(key, name)} in XREADGROUP with GROUP option")
        groups.append((key, position, stream, group))
    found = Streams()
    for key, position, stream, group in groups:
        group.consumers[consumer] = db.now()
        if position != b">":
            ids = [each for each in group.between(_after(id_of(position)), LAST_ID) if group.pending[each].consumer == consumer]
            found[key] = [[shown(each), list(stream.entries[each]) if each in stream.entries else None] for each in ids[: reading.most]]
            continue
        ids = stream.between(_after(group.last), LAST_ID)[: reading.most]
        for each in ids:
            group.pending[each] = Pending(consumer, db.now())
            group.last = each
        if ids:
            found[key] = _shown(stream, ids)
    return found or (None if reading.block is None else BLOCKS)


@_command("XGROUP", grows=True)
def _xgroup(db: Storage, random: Random, words: list[bytes]) -> Any:
    what, key, name, *rest = words
    what = what.upper()
    stream = db.get(key, Stream)
    if stream is None:
        if what != b"CREATE" or b"MKSTREAM" not in [word.upper() for word in rest]:
            raise ErrorReply(
                "ERR The XGROUP subcommand requires the key to exist."
                " Note that for CREATE you may want to use the MKSTREAM option to create an empty stream automatically."
            )
        stream = db.make(key, Stream)
    if what == b"CREATE":
        if name in stream.groups:
            raise ErrorReply("BUSYGROUP Consumer Group name already exists")
        stream.groups[name] = Group(stream.last if rest[0] == b"$" else id_of(rest[0]))
        return OK
    group = stream.groups.get(name)
    if what == b"DESTROY":
        db.changed.add(key)
        return int(stream.groups.pop(name, None) is not None)
    if group is None:
        raise ErrorReply(f"NOGROUP No such consumer group '{name.decode('latin-1')}' for key name '{key.decode('latin-1')}'")
    db.changed.add(key)
    if what == b"SETID":
        group.last = stream.last if rest[0] == b"$" else id_of(rest[0])
        return OK
    if what == b"DELCONSUMER":
        gone = [each for each, pending in group.pending.items() if pending.consumer == rest[0]]
        for each in gone:
            del group.pending[each]
        group.consumers.pop(rest[0], None)
        return len(gone)
    raise ErrorReply(f"ERR unknown subcommand '{what.decode()}'.")


@_command("XACK", writes=True)
def _xack(db: Storage, random: Random, words: list[bytes]) -> Any:
    stream = db.get(words[0], Stream)
    group = None if stream is None else stream.groups.get(words[1])
    return 0 if group is None else sum(group.pending.pop(id_of(word), None) is not None for word in words[2:])


def _group(db: Storage, key: bytes, name: bytes) -> tuple[Stream, Group]:
    stream = db.get(key, Stream)
    group = None if stream is None else stream.groups.get(name)
    if stream is None or group is None:
        raise _no_group(key, name)
    return stream, group


@_command("XPENDING")
def _xpending(db: Storage, random: Random, words: list[bytes]) -> Any:
    _, group = _group(db, words[0], words[1])
    rest = words[2:]
    if not rest:
        ids = sorted(group.pending)
        if not ids:
            return [0, None, None, None]
        counts: dict[bytes, int] = {}
        for pending in group.pending.values():
            counts[pending.consumer] = counts.get(pending.consumer, 0) + 1
        return [len(ids), shown(ids[0]), shown(ids[-1]), [[name, b"%d" % counts[name]] for name in sorted(counts)]]
    idle = 0
    if rest[0].upper() == b"IDLE":
        idle, rest = _integer(rest[1]), rest[2:]
    low, high = _range(rest[0], rest[1])
    consumer = rest[3] if len(rest) > 3 else None
    ids = [low] if low == high and low in group.pending else [] if low == high else group.between(low, high)
    found = []
    for each in ids:
        pending = group.pending[each]
        # The clock may have been set back, and then nothing is excluded that does not ask for idle entries.
        if (consumer is None or pending.consumer == consumer) and (not idle or db.now() - pending.since >= idle):
            found.append([shown(each), pending.consumer, max(0, db.now() - pending.since), pending.count])
    return found[: _integer(rest[2])]


@_command("XCLAIM", writes=True)
def _xclaim(db: Storage, random: Random, words: list[bytes]) -> Any:
    key, name, consumer, least, *rest = words
    stream, group = _group(db, key, name)
    ids: list[Id] = []
    while rest and rest[0][:1].isdigit():
        ids.append(id_of(rest.pop(0)))
    options = [word.upper() for word in rest]
    count = _integer(rest[options.index(b"RETRYCOUNT") + 1]) if b"RETRYCOUNT" in options else None
    only_ids, now, claimed = b"JUSTID" in options, db.now(), []
    group.consumers[consumer] = now
    for each in ids:
        pending = group.pending.get(each)
        if each not in stream.entries:
            group.pending.pop(each, None)
            continue
        if pending is None:
            if b"FORCE" not in options:
                continue
            pending = group.pending[each] = Pending(consumer, now)
        elif _integer(least) and now - pending.since < _integer(least):
            continue
        pending.consumer, pending.since = consumer, now
        if count is not None:
            pending.count = count
        elif not only_ids:
            pending.count += 1
        claimed.append(each)
    return [shown(each) for each in claimed] if only_ids else _shown(stream, claimed)


@_command("XINFO")
def _xinfo(db: Storage, random: Random, words: list[bytes]) -> Any:
    what, stream = words[0].upper(), db.get(words[1], Stream)
    if stream is None:
        raise ErrorReply("ERR no such key")
    if what == b"STREAM":
        ids = list(stream.entries)
        first, last = (_shown(stream, ids[at : at + 1] if at else ids[:1])[0] if ids else None for at in (0, len(ids) - 1))
        return {
            b"length": len(ids),
            b"last-generated-id": shown(stream.last),
            b"groups": len(stream.groups),
            b"first-entry": first,
            b"last-entry": last,
        }
    if what == b"GROUPS":
        return [
            {
                b"name": name,
                b"consumers": len(group.consumers),
                b"pending": len(group.pending),
                b"last-delivered-id": shown(group.last),
                b"entries-read": None,
                b"lag": len(stream.between(_after(group.last), LAST_ID)),
            }
            for name, group in sorted(stream.groups.items())
        ]
    group = stream.groups.get(words[2])
    if group is None:
        raise ErrorReply(f"NOGROUP No such consumer group '{words[2].decode()}' for key name '{words[1].decode('latin-1')}'")
    held = [pending.consumer for pending in group.pending.values()]
    return [
        {b"name": name, b"pending": held.count(name), b"idle": max(0, db.now() - seen), b"inactive": max(0, db.now() - seen)}
        for name, seen in sorted(group.consumers.items())
    ]
