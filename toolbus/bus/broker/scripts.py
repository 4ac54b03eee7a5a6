"""The Lua scripts: one per atomic step, with shared parts put in where a script includes them."""

from __future__ import annotations

import hashlib
import pkgutil
import re
from pathlib import Path

import msgspec

from toolbus.bus.broker import forms

_INCLUDE = re.compile(r"^-- include ([\w/]+)$", re.MULTILINE)


class Script:
    """A script's source, the digest under which the server caches it, and the form of its answer."""

    __slots__ = ("form", "name", "sha", "source")

    def __init__(self, name: str) -> None:
        self.name = name
        self.form = forms.SCRIPTS[name]
        self.source = _INCLUDE.sub(lambda found: _read(found[1]), _read(name))
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


def _read(name: str) -> str:
    # A few times as fast as importlib.resources, which counts when a worker starts.
    found = pkgutil.get_data("toolbus.bus.broker", f"lua/{name}.lua")
    if found is None:
        raise FileNotFoundError(f"{name}.lua")
    return found.decode()


PUBLISH = Script("publish/publish")
CANCEL = Script("publish/cancel")
SHARE = Script("publish/share")
LEAVE = Script("publish/leave")
SEND = Script("finish/send")
FINISH = Script("finish/finish")
FINISH_EACH = Script("finish/finish_each")
RENEW = Script("lease/renew")
REAP = Script("recover/reap")
START = Script("take/start")
BURY = Script("dead_letters/bury")
REDRIVE = Script("dead_letters/redrive")
COUNT = Script("take/count")
HAND_BACK = Script("recover/hand_back")
HAND_OVER = Script("recover/hand_over")
OUTLIVE = Script("recover/outlive")
RETIRE = Script("recover/retire")
OWN = Script("sessions/own")
DISOWN = Script("sessions/disown")
PASS_ON = Script("recover/pass_on")
LINE = Script("sessions/line")
SAVE = Script("sessions/save")
FORGET = Script("sessions/forget")
LOAD = Script("sessions/load")
ELSEWHERE = Script("sessions/elsewhere")
REGISTER = Script("registry/register")
UNREGISTER = Script("registry/unregister")
SWEEP = Script("registry/sweep")
BEAT = Script("lease/beat")
ITEM = Script("registry/item")
REPLACE = Script("registry/replace")
TRANSFER = Script("registry/transfer")
OVERVIEW = Script("registry/overview")
OVERVIEWS = Script("registry/overviews")
PURGE = Script("dead_letters/purge")
SPEND = Script("limits/spend")
QUOTA = Script("limits/quota")
USAGE = Script("limits/usage")
ASK = Script("confirmations/ask")
ANSWER = Script("confirmations/answer")
WITHDRAW = Script("confirmations/withdraw")
EXTEND = Script("confirmations/extend")
LISTEN = Script("publish/listen")
PAUSE = Script("confirmations/pause")
TAKE = Script("take/take")
MEND = Script("recover/mend")
RESCUE = Script("recover/rescue")
HOLD = Script("conversations/hold")
APPEND = Script("conversations/append")
RENEW_HOLD = Script("conversations/renew")
REMOVE = Script("conversations/remove")
NOTE = Script("recent/note")
TELL = Script("statistics/tell")
KEEP = Script("results/keep")
RENEW_ROUTES = Script("routes/renew")
RELEASE = Script("routes/release")
OUTPUT = Script("routes/output")
SUBMIT = Script("creations/submit")
CLAIM = Script("creations/claim")
WRITE_CREATION = Script("creations/write")
END_CREATION = Script("creations/end")
STOP_CREATION = Script("creations/stop")

ALL = (
    PUBLISH, CANCEL, SHARE, LEAVE, SEND, FINISH, FINISH_EACH, RENEW, REAP, START, BURY, REDRIVE, COUNT, HAND_BACK, HAND_OVER, OUTLIVE,
    RETIRE, REGISTER, UNREGISTER, SWEEP, BEAT, ITEM, REPLACE, TRANSFER, OVERVIEW, OVERVIEWS, PURGE, SPEND, QUOTA, USAGE,
    ASK, ANSWER, WITHDRAW, EXTEND,
    OWN, DISOWN, PASS_ON, LINE, SAVE, FORGET, LOAD, ELSEWHERE, LISTEN, PAUSE, TAKE, MEND, RESCUE,
    HOLD, APPEND, RENEW_HOLD, REMOVE, NOTE, TELL, KEEP,
    RENEW_ROUTES, RELEASE, OUTPUT,
    SUBMIT, CLAIM, WRITE_CREATION, END_CREATION, STOP_CREATION,
)  # fmt: skip


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
