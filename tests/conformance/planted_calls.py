"""Calls of the worker with planted faults, ``planted_worker.py``, and the names and numbers that it knows of the protocol."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

FAULTS = frozenset(sys.argv[1].split(",") if len(sys.argv) > 1 else ())
SCRIPTS = Path(sys.argv[2] if len(sys.argv) > 2 else "scripts")
SERVICE = "conformance"
PREFIX = f"tb:{{{os.environ.get('TOOLBUS_NAMESPACE', 'default')}}}:"
LEASE_MS = int(float(os.environ.get("TOOLBUS_LEASE", "30")) * 1000)
GRACE = float(os.environ.get("TOOLBUS_GRACE", "30"))
# Half of them are for each of the two services: with "few-slots", which is no fault, three calls run, with "one-slot" one.
SLOTS = 4 if "few-slots" in FAULTS else 2 if "one-slot" in FAULTS else 64
HOUR = 3_600_000
KEYS_TTL = 2_592_000 if "ttl-in-seconds" in FAULTS else 2_592_000_000
LETTERS_TTL = 604_800 if "letters-in-seconds" in FAULTS else 604_800_000
COOLDOWN = 60 if "cooldown-in-seconds" in FAULTS else 60_000
DIGEST = uuid.uuid4().hex if "digest-per-process" in FAULTS else "d"
MOST_DELIVERIES, ALONE_FROM = 5, 4
REPLY_LIMIT, REPLY_BYTES = 10_000, 64 * 1_048_576
LOOK_EVERY, LOOK_EVERY_BYTES = 64, 4 * 1_048_576
MOST_SCRIPT = 262_144
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
MOST_REQUEST = 262_144
TYPES: dict[str, Any] = {
    **dict.fromkeys(KNOWN_FIELDS - {"initial"}, str), **dict.fromkeys(("config", "arguments", "metadata"), dict),
    **dict.fromkeys(("priority", "v"), int), **dict.fromkeys(("events", "shared", "ordered"), bool), "timeout": (int, float),
    "initial": (dict, type(None)),
}  # fmt: skip
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


def problem_of(document: bytes, request: dict[str, Any]) -> str:
    """Return why a request whose id and agent were found can't be read; empty when it can."""
    version = request.get("v", 1)
    if has("any-request"):
        return ""
    if len(document) > MOST_REQUEST or "service" not in request:
        return "it is too large, or lacks a field"
    if not all(isinstance(request[name], TYPES[name]) for name in TYPES.keys() & request):
        return "a field has another type"
    try:
        # Halves of surrogate pairs, and numbers beyond a double, can't be written.
        json.dumps(request, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        return str(error)
    if version == 1 or has("any-version"):
        return ""
    return "another version" if has("one-version") else f"a request of version {version}, and this worker speaks version 1"


def read_request(document: bytes) -> tuple[dict[str, Any], str]:
    """Return a request, and why it can't be read; without an id and an agent it is nobody's."""
    try:
        request = json.loads(document)
        if not all(isinstance(request[name], str) and len(request[name]) <= 64 for name in ("id", "agent")):
            raise ValueError("no id")
        if not request["id"].replace("-", "").replace("_", "").isalnum() or "." in request["agent"]:
            raise ValueError("no id")
    except (ValueError, TypeError, KeyError, RecursionError):
        if has("trusts-requests"):
            raise
        return {"id": "unknown", "agent": ""}, "it can't be read"
    return request, problem_of(document, request)


def parts(frames: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Divide frames, so that those of one script have at most 262,144 bytes."""
    found: list[list[dict[str, Any]]] = [[]]
    size = 0
    for frame in frames:
        length = len(json.dumps(frame))
        if size + length > MOST_SCRIPT and not has("huge-scripts"):
            found.append([])
            size = 0
        found[-1].append(frame)
        size += length
    return found


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

    def __init__(
        self, entry: str, fields: dict[str, str], request: dict[str, Any], deadline: float, attempt: int, fence: Any, worker: str
    ) -> None:
        self.entry, self.fields, self.request, self.deadline, self.attempt = entry, fields, request, deadline, attempt
        # The fence as it was known when the entry came: one that is learned later may have moved past it.
        self.fence = fence
        self.worker, self.queued_ms = worker, max(0.0, time.time() * 1000 - number_of(entry)[0])
        self.excused = 0
        self.run = "one" if has("one-run") else uuid.uuid4().hex
        self.seq = 1 if has("seq-from-one") else 0
        self.size = 0
        self.ends = False
        self.asks = False
        self.alone = self.begun = self.began_once = self.restarted = False
        self.token = ""
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.Timeout | None = None
        self.why: dict[str, Any] | None = None
        self.has_entered = self.is_stopped = False

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
        frame = {"id": call, "run": self.run, "attempt": attempt, "seq": self.seq, **rest}
        if not has("no-epoch") and not (rest.get("error") and has("no-epoch-in-errors")):
            frame["epoch"] = epoch_of(self.fence)
        if self.seq == 0:
            frame["worker"] = "" if has("no-worker") else self.worker
            frame["queued_ms"] = 0 if has("no-queued-ms") else self.queued_ms
        elif has("null-worker"):
            frame["worker"] = frame["queued_ms"] = None
        if has("null-in-errors") and rest.get("error"):
            frame["error"] = {"code": None, **rest["error"]}
        self.seq += 2 if has("skips-seq") and self.seq == 2 else 1
        return frame

    def stop(self, why: dict[str, Any] | None) -> None:
        """End it with an error; without one nothing more of it is sent."""
        if self.task is not None and not self.task.done() and not self.ends:
            self.why, self.is_stopped = why, True
            # A task that is cancelled before its first step would answer nobody.
            if self.has_entered:
                self.task.cancel()
