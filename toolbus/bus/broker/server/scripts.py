"""The Lua scripts, one per atomic step, and the forms of the server's answers to them and to commands."""

from __future__ import annotations

import hashlib
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

_INCLUDE = re.compile(r"^-- include ([\w/]+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)

Form = type[msgspec.Struct]
"""A form, against which ``msgspec.convert((reply,), form)`` checks an answer without a call of Python code; its name is for people."""

_OTHERS: dict[Form, Form] = {}

Flat = list[bytes]
Entries = list[tuple[bytes, Flat | None]]
Found = dict[bytes, Entries] | None
Some = Annotated[Flat, msgspec.Meta(min_length=1)]


def fits(reply: object, form: Form) -> bool:
    """Return whether an answer has a form, or one of its alternatives."""
    wanted: Form | None = form
    while wanted is not None:
        try:
            msgspec.convert((reply,), wanted)
        except msgspec.ValidationError:
            wanted = _OTHERS.get(wanted)
        else:
            return True
    return False


def _form(name: str, kind: Any) -> Form:
    """Return the form of a type; of a list of types, the first is the usual one."""
    usual, *others = kind if isinstance(kind, list) else [kind]
    made = msgspec.defstruct(name, [("answer", usual)], array_like=True)
    if others:
        _OTHERS[made] = _form(name, others)
    return made


class Touched(msgspec.Struct, frozen=True):
    """The keys that a script or command touches, as names of families (``q`` is ``q:…``), separated by spaces.

    Attributes:
        given: keys that a script is given: the server wants reading and writing for these.
        reads, writes: keys that are read, or written.
        tells: channels that it publishes to.
    """

    given: str = ""
    reads: str = ""
    writes: str = ""
    tells: str = ""


class Script:
    """A script's source, the digest under which the server caches it, the form of its answer, and the keys that it touches.

    Args:
        name: its folder and name.
        answer: the type of its answer; of a list of types, the first is the usual one.
        touched: see ``Touched``. Scripts without any are given keys of the role that runs them.
    """

    __slots__ = ("form", "name", "sha", "source", "touched")

    def __init__(self, name: str, answer: Any, **touched: str) -> None:
        self.name = name
        self.form = _form(name.rpartition("/")[2], answer)
        self.touched = Touched(**touched)
        self.source = _whole(name)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


def _read(name: str) -> str:
    # A few times as fast as importlib.resources, which counts when a worker starts.
    found = pkgutil.get_data("toolbus.bus.broker.server", f"lua/{name}.lua")
    if found is None:
        raise FileNotFoundError(f"{name}.lua")
    return found.decode()


def _whole(name: str) -> str:
    """Return a script with the files that it includes: first its flags and all that is said of KEYS and ARGV, then code."""
    top, code = _divided(_read(name))
    flags = [line for line in top if line.startswith("#!")]
    header = [line for line in top if line not in flags and not _INCLUDE.match(line)]
    included = [_divided(_read(file)) for file in _INCLUDE.findall("".join(top))]
    common = [line for comments, _ in included if any(re.search("KEYS.*: 1", line) for line in comments) for line in comments]
    # Comments of files that many scripts include are no news in each of them.
    return "".join([*flags, *header, *common, *(_COMMENT.sub("", part) for _, part in included), code])


def _divided(source: str) -> tuple[list[str], str]:
    """Return the flags, includes and comments with which a file begins, and its code."""
    lines = source.splitlines(keepends=True)
    at = next((index for index, line in enumerate(lines) if not line.startswith(("#!", "--"))), len(lines))
    return lines[:at], "".join(lines[at:])


_REGISTRY = "reg:services reg:names reg:meta reg:items live log"
_SERVICES = f"{_REGISTRY} reg:s q fence cancelled"
_Change = tuple[bytes, int, int, int, list[bytes | None]]

# Calls.
PUBLISH = Script("publish/publish", bytes, given="q pub order")
CANCEL = Script("publish/cancel", bytes, given="key q cancelled", reads="rsp started", tells="wake")
SHARE = Script(
    "publish/share", [tuple[bytes, bytes | int], tuple[bytes, bytes, bytes], tuple[bytes]], given="key q call order", tells="wake"
)
LISTEN = Script("publish/listen", int, given="rsp")
TAKE = Script("take/take", Annotated[list[int | bytes | Entries], msgspec.Meta(min_length=2)], given="q")
START = Script("take/start", Flat, given="q fence started")
COUNT = Script("take/count", int, given="q fence")
SEND = Script("finish/send", list[int], given="live", writes="rsp call")
FINISH = Script("finish/finish", [tuple[bytes, bytes, list[int], Flat, int], tuple[bytes, bytes]], given="q fence", writes="rsp call")
FINISH_EACH = Script("finish/finish_each", tuple[bytes, bytes, list[int], Flat, int], given="q fence key started", writes="rsp call")
BURY = Script("dead_letters/bury", int, given="q fence dlq key started", writes="rsp call")
REDRIVE = Script("dead_letters/redrive", [tuple[bytes, bytes | int], tuple[bytes]], given="dlq q")

# Leases, and what workers leave.
BEAT = Script("lease/beat", tuple[bytes, list[int], Flat], given="q fence live pulse reg:paused")
RENEW = Script("lease/renew", tuple[bytes, bytes, Flat], given="q fence")
REAP = Script(
    "recover/reap", tuple[bytes, bytes, list[tuple[bytes, int, int, Flat | None, bytes, bytes]], int, bytes],
    given="q fence live pulse", reads="pause",
)  # fmt: skip
RESCUE = Script("recover/rescue", tuple[int, bytes], given="q", tells="wake")
HAND_BACK = Script("recover/hand_back", int, given="q fence pause", tells="wake")
HAND_OVER = Script("recover/hand_over", int, given="q fence live reg:s", tells="wake")
OUTLIVE = Script("recover/outlive", tuple[int, bytes, int], reads="q fence live reg:s")
RETIRE = Script("recover/retire", int, given="q fence cancelled reg:s live")
MEND = Script("recover/mend", list[int | bytes])

# Sessions.
OWN = Script("sessions/own", tuple[bytes, bytes, bytes, Flat], given="q fence live pulse reg:s sess", tells="wake")
DISOWN = Script("sessions/disown", int, given="sess snap")
LINE = Script("sessions/line", Flat, given="q order fence live")
SAVE = Script("sessions/save", int, given="q fence sess snap")
LOAD = Script("sessions/load", Flat, given="snap")

# The registry.
REGISTER = Script("registry/register", [tuple[bytes, int, bytes, bytes], Some], given=_SERVICES)
UNREGISTER = Script("registry/unregister", int, given=_SERVICES)
CHANGE = Script("registry/change", tuple[bytes, bytes | int], given=f"{_REGISTRY} reg:s")
PAUSE = Script("registry/pause", bytes, given="reg:paused")
OVERVIEW = Script("registry/overview", list[tuple[int, int, int, int, int]], given="q dlq reg:paused reg:s live fence")
PROBE = Script("registry/probe", int)

# What features keep.
WRITE = Script("held/write", _Change)
SETTLE = Script("held/settle", _Change)
ROUTES = Script("held/routes", tuple[int, list[int]], given="hosts routes single")
APPEND = Script("streams/append", int)
COUNT_USES = Script("limits/count", int, given="rate quota usage")
ASK = Script("confirmations/ask", [tuple[bytes], tuple[bytes, bytes | int]], given="confirm confirms", tells="confirmed")
ANSWER = Script("confirmations/answer", [tuple[bytes], tuple[bytes, bytes]], given="confirm confirms", writes="rsp", tells="confirmed wake")
EXTEND = Script("confirmations/extend", bytes, given="pause started call key")

ALL = tuple(each for each in tuple(globals().values()) if isinstance(each, Script))
"""Every script."""


def write_scripts(folder: Path) -> None:
    """Write each script whole, in a folder for each step, and index.json with their SHA-1 digests.

    Raises:
        OSError: a file can't be written.
    """
    for script in ALL:
        path = folder / f"{script.name}.lua"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script.source, encoding="utf-8")
    index = {script.name: script.sha for script in ALL}
    (folder / "index.json").write_bytes(msgspec.json.format(msgspec.json.encode(index)) + b"\n")


_EVALSHA = b"\r\n$7\r\nEVALSHA\r\n$40\r\n"
_SOURCES = {script.sha.encode(): script.source.encode() for script in ALL}


def with_source(packed: bytes) -> bytes | None:
    """Return a packed ``EVALSHA`` as an ``EVAL``, which no server can answer with ``NOSCRIPT``; None when it is no script of ours."""
    head, found, rest = packed.partition(_EVALSHA)
    source = _SOURCES.get(rest[:40])
    # The number of words stands before the first one; a value further on that looks like a command is none.
    if not found or source is None or not head[1:].isdigit():
        return None
    return b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b%b" % (head, len(source), source, rest[40:])


ANYTHING = _form("the command", Any)
"""The form of every answer."""

PUSHED = _form("SUBSCRIBE", Literal["its answer is pushed"])
"""The form of what no reply is the answer to."""

_ANSWERS: tuple[tuple[Any, str], ...] = (
    (int, "CLIENT DEL EXISTS HDEL HSET PTTL PUBLISH SISMEMBER SREM WAIT XDEL XLEN XTRIM"),
    (bytes, "INFO"),
    (bytes | None, "GET HGET SET XADD"),
    (list, "ROLE"),
    (Flat, "LRANGE ZRANGE ZREVRANGE"),
    (list[bytes | None], "HMGET"),
    (tuple[bytes, bytes], "TIME"),
    (dict[bytes, bytes], "CONFIG"),
    (tuple[bytes, Flat], "HSCAN SCAN"),
    (tuple[bytes, list[bytes | float]], "ZSCAN"),
    (list[tuple[bytes, Flat]], "XRANGE XREVRANGE"),
    (Found, "XREAD XREADGROUP"),
)
COMMANDS: Mapping[str, Form] = MappingProxyType({name: _form(name, kind) for kind, names in _ANSWERS for name in names.split()})
"""The form of the answer to each command that goes out alone."""
