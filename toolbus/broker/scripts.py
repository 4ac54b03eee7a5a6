"""The Lua scripts: one per atomic step, with shared parts put in where a script includes them."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

_INCLUDE = re.compile(r"^-- include (\w+)$", re.MULTILINE)


class Script:
    """A script's source and the digest under which the server caches it."""

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str) -> None:
        folder = resources.files("toolbus.broker").joinpath("lua")
        text = folder.joinpath(f"{name}.lua").read_text("utf-8")
        self.name = name
        self.source = _INCLUDE.sub(lambda found: folder.joinpath(f"{found[1]}.lua").read_text("utf-8"), text)
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


PUBLISH = Script("publish")
CANCEL = Script("cancel")
SHARE = Script("share")
LEAVE = Script("leave")
SEND = Script("send")
FINISH = Script("finish")
FINISH_EACH = Script("finish_each")
RENEW = Script("renew")
REAP = Script("reap")
START = Script("start")
BURY = Script("bury")
REDRIVE = Script("redrive")
COUNT = Script("count")
HAND_BACK = Script("hand_back")
RETIRE = Script("retire")
OWN = Script("own")
DISOWN = Script("disown")
PASS_ON = Script("pass_on")
REGISTER = Script("register")
UNREGISTER = Script("unregister")
SWEEP = Script("sweep")
BEAT = Script("beat")
ITEM = Script("item")
TRANSFER = Script("transfer")
OVERVIEW = Script("overview")
PURGE = Script("purge")
SPEND = Script("spend")
QUOTA = Script("quota")
USAGE = Script("usage")
ASK = Script("ask")
ANSWER = Script("answer")
WITHDRAW = Script("withdraw")
EXTEND = Script("extend")
LISTEN = Script("listen")
PAUSE = Script("pause")

ALL = (
    PUBLISH, CANCEL, SHARE, LEAVE, SEND, FINISH, FINISH_EACH, RENEW, REAP, START, BURY, REDRIVE, COUNT, HAND_BACK, RETIRE,
    REGISTER, UNREGISTER, SWEEP, BEAT, ITEM, TRANSFER, OVERVIEW, PURGE, SPEND, QUOTA, USAGE,
    ASK, ANSWER, WITHDRAW, EXTEND,
    OWN, DISOWN, PASS_ON, LISTEN, PAUSE,
)  # fmt: skip
