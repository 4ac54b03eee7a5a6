"""A second service of the worker with planted faults, ``planted_worker.py``, which shares its reads and its slots."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from typing import Any

from tests.conformance.planted_calls import COUNTED, KEYS_TTL, LEASE_MS, LIVE, PREFIX, REGISTRY, SERVICE, SLOTS, epoch_of, has
from tests.conformance.planted_sessions import Sessions

BESIDE = f"{SERVICE}-beside"
QUEUE, FENCE, CANCELLED, TABLE = (f"{PREFIX}{name}:{BESIDE}" for name in ("q", "fence", "cancelled", "reg:s"))
SHARED = REGISTRY[:6]


class Beside:
    """Counts, as the first service does, and nothing else."""

    def __init__(self, worker: Sessions) -> None:
        self.worker = worker
        self.start: Any = 0
        self.fence: tuple[Any, Any] = (b"", b"0")
        self.running: set[asyncio.Task[None]] = set()

    async def register(self) -> None:
        tool = {"name": f"{BESIDE}-count", "description": "x", "service": BESIDE, "parameters": COUNTED, "effect": "read"}
        document = json.dumps({"service": {"id": BESIDE}, "tools": [tool], "owner": "planted", "digest": "b"})
        common = (PREFIX, uuid.uuid4().hex, KEYS_TTL, 60_000)
        args = (BESIDE, self.worker.me, "planted", "b", document, LEASE_MS, uuid.uuid4().hex, "", BESIDE, self.start, tool["name"])
        found = await self.worker.script("registry/register", [*SHARED, TABLE, QUEUE, FENCE, CANCELLED], *common, *args)
        assert found[0] == b"ok", found
        self.start, self.fence = found[1], (found[2], found[3])

    async def leave(self) -> None:
        """Unregister, and retire; what still runs is lost."""
        keys = [*SHARED, TABLE, QUEUE, FENCE, CANCELLED]
        if not has("leaves-one-service"):
            await self.worker.script("registry/unregister", keys, PREFIX, uuid.uuid4().hex, KEYS_TTL, 60_000, f"{BESIDE}/{self.worker.me}")
        await self.worker.script("recover/retire", [QUEUE, FENCE, CANCELLED, TABLE, LIVE], self.worker.me, BESIDE)

    def begin(self, entry: bytes, fields: dict[bytes, bytes]) -> None:
        task = asyncio.get_running_loop().create_task(self.answer(entry.decode(), json.loads(fields[b"r"]), int(fields[b"d"])))
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def answer(self, entry: str, request: dict[str, Any], deadline_ms: int) -> None:
        # What was taken beyond the slots waits here, and keeps it from other workers.
        while has("slots-for-each-stream") and len(self.worker.calls) > SLOTS // 2:  # noqa: ASYNC110 - the slots have no event
            await asyncio.sleep(0.01)
        replies, run = f"{PREFIX}rsp:{request['agent']}", {"id": request["id"], "run": uuid.uuid4().hex, "epoch": epoch_of(self.fence)}
        arguments, error = request["arguments"], None
        frames = [{"kind": "start"}, *({"response": f"{number} "} for number in range(1, int(arguments["to"]) + 1))]
        if deadline_ms <= time.time() * 1000:
            frames, error = [], {"type": "deadline_exceeded", "message": "too late", "retryable": True}
        for seq, frame in enumerate(frames):
            await self.worker.script("finish/send", [LIVE], replies, json.dumps([{**run, "seq": seq, **frame}]))
            await asyncio.sleep(float(arguments["delay"]) if seq else 0)
        end = {**run, "seq": len(frames), "kind": "end", "end_of_stream": True, "error": error}
        args = (self.worker.me, *self.fence, 1, entry, replies, json.dumps([end]))
        await self.worker.script("finish/finish", [QUEUE, FENCE], *args)
