"""Calls of the worker with planted faults, ``planted_worker.py``, and the names and numbers that it knows of the protocol."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

FAULTS = frozenset(sys.argv[1].split(",") if len(sys.argv) > 1 else ())
SCRIPTS = Path(sys.argv[2] if len(sys.argv) > 2 else "scripts")
SERVICE = "conformance"
PREFIX = f"tb:{{{os.environ.get('TOOLBUS_NAMESPACE', 'default')}}}:"
LEASE_MS = int(float(os.environ.get("TOOLBUS_LEASE", "30")) * 1000)
GRACE = float(os.environ.get("TOOLBUS_GRACE", "30"))
SLOTS = 64
HOUR = 3_600_000
MOST_DELIVERIES, ALONE_FROM = 5, 4
REPLY_LIMIT, LOOK_EVERY = 10_000, 64
MOST_PIECE = 60_000
MOST_OUTPUT = 16 * 1_048_576

QUEUE, FENCE, CANCELLED = (f"{PREFIX}{name}:{SERVICE}" for name in ("q", "fence", "cancelled"))
LIVE, TABLE, WAKE, NAMES, META = (f"{PREFIX}{name}" for name in ("live", f"reg:s:{SERVICE}", f"wake:{SERVICE}", "reg:names", "reg:meta"))
PULSE, PAUSED, SERVICES = (f"{PREFIX}{name}" for name in ("pulse", "reg:paused", "reg:services"))
REGISTRY = [SERVICES, NAMES, META, f"{PREFIX}reg:items", LIVE, f"{PREFIX}log", TABLE, QUEUE, FENCE, CANCELLED]

TEXT, NUMBER = {"type": "string"}, {"type": "number"}
COUNTED = {"type": "object", "properties": {"to": {"type": "integer"}, "delay": NUMBER}, "required": ["to"]}
SCHEMAS = {
    "echo": {"type": "object", "properties": {"text": TEXT}, "required": ["text"]},
    "count": COUNTED,
    "data": {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]},
    "once": COUNTED,
    "private": {"type": "object", "properties": {"text": TEXT}, "required": ["text"]},
    "large": {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]},
    "block": {"type": "object", "properties": {"seconds": NUMBER}, "required": ["seconds"]},
    "retry": COUNTED,
    "ask": {"type": "object", "properties": {"question": TEXT, "delay": NUMBER}, "required": ["question"]},
    "cleaned": {"type": "object", "properties": {}},
}

KNOWN_FIELDS = {
    "id", "agent", "service", "tool", "user", "session", "config", "arguments", "timeout", "effect", "digest", "events", "priority",
    "idempotency_key", "shared", "metadata", "traceparent", "v", "confirmed", "ordered", "state", "initial",
}  # fmt: skip
TYPES = {"tool": str, "user": str, "session": str, "config": dict, "arguments": dict, "timeout": (int, float), "metadata": dict, "v": int}
CANCELLED_ERROR = {"type": "cancelled", "message": "stopped"}


def has(fault: str) -> bool:
    """Return whether a fault is planted."""
    return fault in FAULTS


def number_of(entry: str) -> tuple[int, int]:
    """Return what an entry id is ordered by."""
    milliseconds, _, number = entry.partition("-")
    return int(milliseconds), int(number)


def epoch_of(fence: tuple[bytes, bytes]) -> int:
    """Return how often the group has been made anew."""
    return int(fence[0].partition(b".")[0])


def digest(*parts: Any, size: int = 16) -> str:
    """Return the digest of a list."""
    whole = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    return hashlib.blake2b(whole, digest_size=size).hexdigest()


def pieces(text: str) -> list[str]:
    """Cut a text into pieces of at most 65,536 bytes, between characters."""
    if has("huge-pieces"):
        return [text]
    if has("splits-utf8"):
        data = text.encode()
        return [data[at : at + MOST_PIECE].decode("utf-8", "replace") for at in range(0, len(data), MOST_PIECE)] or [""]
    return [text[at : at + MOST_PIECE // 4] for at in range(0, len(text), MOST_PIECE // 4)] or [""]


class Stop(Exception):
    """Ends a call with an error; without one its request is somebody else's, and nothing is sent."""

    def __init__(self, error: dict[str, Any] | None) -> None:
        super().__init__()
        self.error = error


def failed(kind: str, message: str, **more: Any) -> Stop:
    """Return what ends a call with an error."""
    return Stop({"type": kind, "message": message, **more})


class Failed(Exception):
    """Fails an attempt after which there is another one."""


class Call:
    """One start of a handler."""

    def __init__(self, entry: str, fields: dict[str, str], request: dict[str, Any], deadline: float, attempt: int, fence: Any) -> None:
        self.entry, self.fields, self.request, self.deadline, self.attempt = entry, fields, request, deadline, attempt
        # The fence as it was known when the entry came: one that is learned later may have moved past it.
        self.fence = fence
        self.run = "one" if has("one-run") else uuid.uuid4().hex
        self.seq = 1 if has("seq-from-one") else 0
        self.sent = self.size = 0
        # How many of its attempts leaving workers have cut off.
        self.cut_off = 0
        self.asks = False
        self.alone = self.begun = self.began_once = self.restarted = False
        self.token = ""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.Timeout | None = None
        self.why: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return str(self.request["id"])

    @property
    def session(self) -> tuple[str, str] | None:
        named = (self.request.get("user", ""), self.request.get("session", ""))
        return named if any(named) else None

    @property
    def replies(self) -> str:
        if self.request.get("shared") and not has("shared-to-agent"):
            return f"{PREFIX}call:{self.id}"
        return f"{PREFIX}rsp:{self.request['agent']}" if self.request["agent"] or has("answers-nobody") else ""

    def frame(self, **rest: Any) -> dict[str, Any]:
        attempt = 1 if has("same-attempt") else self.attempt
        call = uuid.uuid4().hex if has("wrong-id") else self.id
        epoch = 0 if has("no-epoch") else epoch_of(self.fence)
        frame = {"id": call, "run": self.run, "epoch": epoch, "attempt": attempt, "seq": self.seq, **rest}
        self.seq += 2 if has("skips-seq") and self.seq == 2 else 1
        return frame

    def stop(self, why: dict[str, Any] | None) -> None:
        """End it with an error; without one nothing more of it is sent."""
        if self.task is not None and not self.task.done():
            self.why = why
            self.task.cancel()
