"""A worker at level 2 of docs/protocol.md on redis-py alone, with one fault of a table planted into it on demand.

Run: ``python planted_worker.py FAULT SCRIPTS``; the fault ``none`` is the worker that keeps everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import redis.asyncio as redis

FAULT = sys.argv[1] if len(sys.argv) > 1 else "none"
SCRIPTS = Path(sys.argv[2] if len(sys.argv) > 2 else "scripts")
SERVICE = "conformance"
PREFIX = f"tb:{{{os.environ.get('TOOLBUS_NAMESPACE', 'default')}}}:"
LEASE_MS = int(float(os.environ.get("TOOLBUS_LEASE", "30")) * 1000)
GRACE = float(os.environ.get("TOOLBUS_GRACE", "30"))
SLOTS = 64
HOUR = 3_600_000
MOST_DELIVERIES = 5

QUEUE, FENCE, CANCELLED = (f"{PREFIX}{name}:{SERVICE}" for name in ("q", "fence", "cancelled"))
LIVE, TABLE, WAKE = f"{PREFIX}live", f"{PREFIX}reg:s:{SERVICE}", f"{PREFIX}wake:{SERVICE}"
REGISTRY = [PREFIX + name for name in ("reg:services", "reg:names", "reg:meta", "reg:items", "live", "log")] + [
    TABLE,
    QUEUE,
    FENCE,
    CANCELLED,
]


class Call:
    """One start of a handler."""

    def __init__(self, entry: str, request: dict[str, Any], deadline: float, attempt: int, fence: tuple[Any, Any]) -> None:
        self.entry, self.request, self.deadline, self.attempt = entry, request, deadline, attempt
        # The fence as it was known when the entry came: one that is learned later may have moved past it.
        self.fence = fence
        self.run = "one" if FAULT == "one-run" else uuid.uuid4().hex
        self.seq = 1 if FAULT == "seq-from-one" else 0
        self.task: asyncio.Task[None] | None = None
        self.stopped = ""

    @property
    def replies(self) -> str:
        return f"{PREFIX}rsp:{self.request['agent']}"

    def frame(self, **rest: Any) -> dict[str, Any]:
        attempt = 1 if FAULT == "same-attempt" else self.attempt
        call = uuid.uuid4().hex if FAULT == "wrong-id" else self.request["id"]
        frame = {"id": call, "run": self.run, "attempt": attempt, "seq": self.seq, **rest}
        self.seq += 2 if FAULT == "skips-seq" and self.seq == 2 else 1
        return frame


class PlantedWorker:
    """Serves the two tools of the conformance kit."""

    def __init__(self) -> None:
        self.me = uuid.uuid4().hex
        self.start: Any = 0
        self.fence: tuple[Any, Any] = (b"", b"0")
        self.calls: dict[str, Call] = {}
        self.leaked = 0
        self.draining = False
        self.sources = {str(path.relative_to(SCRIPTS))[:-4]: path.read_text() for path in SCRIPTS.rglob("*.lua")}

    async def script(self, name: str, keys: list[str], *args: Any) -> Any:
        return await self.writing.eval(self.sources[name], len(keys), *keys, *args)

    async def register(self) -> None:
        echo = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        count = {"type": "object", "properties": {"to": {"type": "integer"}, "delay": {"type": "number"}}, "required": ["to"]}
        tools = [
            {"name": f"{SERVICE}-{name}", "description": "x", "service": SERVICE, "parameters": schema}
            for name, schema in (("echo", echo), ("count", count))
        ]
        document = json.dumps({"service": {"id": SERVICE}, "tools": tools, "owner": "planted", "digest": "d"})
        common = (PREFIX, uuid.uuid4().hex, HOUR, 60_000)
        names = [tool["name"] for tool in tools]
        args = (SERVICE, self.me, "planted", "d", document, LEASE_MS, uuid.uuid4().hex, "", SERVICE, self.start, *names)
        found = await self.script("registry/register", REGISTRY, *common, *args)
        assert found[0] == b"ok", found
        self.start, self.fence = found[1], (found[2], found[3])

    async def answer(self, call: Call) -> None:
        error, texts = self.refusal(call), []
        try:
            if error is None:
                if call.request.get("events") and FAULT != "no-start":
                    await self.send(call, call.frame(kind="start"))
                left = None if FAULT in {"ignores-deadline", "runs-expired"} else call.deadline - time.time()
                async with asyncio.timeout(left):
                    texts = await self.stream(call)
        except TimeoutError:
            error = {"type": "deadline_exceeded", "message": "the time was up"}
            self.leaked += FAULT == "leaks-slots"
        except asyncio.CancelledError:
            error = {"type": "cancelled", "message": "stopped"}
        except (TypeError, KeyError, ValueError, AttributeError) as wrong:
            error = {"type": "invalid_arguments", "message": str(wrong)}
        if call.stopped != "handed back":
            await self.finish(call, error, "".join(texts) if texts else None)
        self.calls.pop(call.entry, None)

    def refusal(self, call: Call) -> dict[str, str] | None:
        name = str(call.request.get("tool", "")).removeprefix(f"{SERVICE}-")
        if call.request.get("v", 1) != 1 and FAULT != "any-version":
            return {"type": "invalid_arguments", "message": "another version"}
        if name not in {"echo", "count"} and FAULT != "runs-unknown":
            return {"type": "not_found", "message": "no such tool"}
        if call.deadline <= time.time() and FAULT != "runs-expired":
            return {"type": "deadline_exceeded", "message": "too late"}
        return None

    async def stream(self, call: Call) -> list[str]:
        """Send the text as it comes, and return what is left for the end."""
        texts = []
        async for text in self.handle(str(call.request.get("tool", "")).removeprefix(f"{SERVICE}-"), call.request.get("arguments") or {}):
            if FAULT == "all-at-end":
                texts.append(text)
                continue
            for piece in self.pieces(text):
                if not await self.send(call, call.frame(response=piece)):
                    raise asyncio.CancelledError
        return texts

    async def handle(self, name: str, arguments: dict[str, Any]) -> Any:
        if name != "count":
            yield str(arguments["text"])
            return
        for number in range(1, int(arguments["to"]) + 1):
            yield f"{number} "
            await asyncio.sleep(float(arguments.get("delay", 0.1)))

    def pieces(self, text: str) -> list[str]:
        if FAULT == "huge-pieces":
            return [text]
        if FAULT == "splits-utf8":
            data = text.encode()
            return [data[at : at + 60_000].decode("utf-8", "replace") for at in range(0, len(data), 60_000)] or [""]
        return [text[at : at + 16_000] for at in range(0, len(text), 16_000)] or [""]

    async def send(self, call: Call, *frames: dict[str, Any]) -> bool:
        if FAULT == "makes-streams":
            await self.writing.xadd(call.replies, {"f": json.dumps(frames)})
            return True
        return not await self.script("finish/send", [LIVE], call.replies, json.dumps(frames))

    async def finish(self, call: Call, error: Any, text: str | None) -> None:
        frames = [] if FAULT == "no-end" else [call.frame(kind="end", end_of_stream=True, error=error, response=text)]
        if FAULT == "two-ends":
            frames.append(call.frame(kind="end", end_of_stream=True))
        if FAULT == "keeps-entries":
            await self.send(call, *frames)
            return
        if FAULT in {"no-fence", "makes-streams"}:
            await self.writing.xadd(call.replies, {"f": json.dumps(frames)}, nomkstream=FAULT == "no-fence")
            await self.writing.xack(QUEUE, "g", call.entry)
            await self.writing.xdel(QUEUE, call.entry)
            return
        parts = [part for frame in frames for part in (1, json.dumps(frame))]
        found = await self.script(
            "finish/finish_each", [QUEUE, FENCE], self.me, *call.fence, 1, call.entry, call.attempt,
            *((call.replies, len(frames), *parts) if frames else ()),
        )  # fmt: skip
        self.fence = (found[0], found[1])

    def begin(self, entry: str, fields: dict[bytes, bytes], attempt: int) -> None:
        deadline = self.deadline_of(fields.get(b"d", b""))
        try:
            request = json.loads(fields.get(b"r", b""))
            if not all(isinstance(request[name], str) and request[name].replace("-", "").isalnum() for name in ("id", "agent")):
                raise ValueError("no id")
            if not isinstance(request.get("arguments", {}), dict):
                request["arguments"] = {}
        except (ValueError, TypeError, KeyError, RecursionError):
            if FAULT == "trusts-requests":
                raise
            asyncio.get_running_loop().create_task(self.drop(entry))
            return
        call = self.calls[entry] = Call(entry, request, deadline, attempt, self.fence)
        call.task = asyncio.get_running_loop().create_task(self.answer(call))

    def deadline_of(self, text: bytes) -> float:
        if FAULT == "trusts-d":
            return int(text) / 1000
        with contextlib.suppress(ValueError):
            if len(text) <= 16:
                return int(text) / 1000
        return 0.0

    async def drop(self, entry: str) -> None:
        await self.writing.xack(QUEUE, "g", entry)
        await self.writing.xdel(QUEUE, entry)

    # -- keeping ----------------------------------------------------------------------------------

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            if FAULT != "no-beat":
                keys = [LIVE, f"{PREFIX}reg:paused", f"{PREFIX}pulse", QUEUE, FENCE]
                _, missing, _ = await self.script("lease/beat", keys, LEASE_MS, HOUR, f"{SERVICE}/{self.me}")
                if missing and not self.draining and FAULT != "no-again":
                    await self.register()
            for call in list(self.calls.values()) if FAULT != "no-renew" else ():
                found = await self.script("lease/renew", [QUEUE, FENCE], self.me, *call.fence, call.entry, call.attempt)
                if found[2] and FAULT != "no-fence" and self.calls.pop(call.entry, None) and call.task is not None:
                    call.stopped = "handed back"
                    call.task.cancel()
                elif not found[2]:
                    call.fence = (found[0], found[1])
            if FAULT != "no-reap" and not self.draining:
                await self.reap("")

    async def reap(self, only_back: str) -> None:
        room = SLOTS - len(self.calls)
        args = (self.me, SERVICE, room, LEASE_MS, only_back, "1" if self.calls else "", 4, "1", f"{PREFIX}pause:{SERVICE}:")
        found = await self.script("recover/reap", [QUEUE, FENCE, LIVE, f"{PREFIX}pulse"], *args)
        self.fence = (found[0], found[1])
        for entry, deliveries, counts, flat, *_ in found[2]:
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            attempt = int(deliveries) + int(counts)
            if int(counts):
                owned = await self.script("take/count", [QUEUE, FENCE], self.me, *self.fence, entry, attempt)
                if not owned:
                    continue
            if attempt > MOST_DELIVERIES and FAULT != "reruns-poison":
                await self.bury(entry.decode(), fields, attempt)
            else:
                self.begin(entry.decode(), fields, attempt)

    async def bury(self, entry: str, fields: dict[bytes, bytes], attempt: int) -> None:
        call = Call(entry, json.loads(fields[b"r"]), 0.0, attempt, self.fence)
        frame = call.frame(kind="end", end_of_stream=True, error={"type": "tool_error", "code": "poison", "message": "delivered too often"})
        args = (self.me, *self.fence, entry, "deliveries", attempt, "", fields[b"r"], 10_000, HOUR, call.replies)
        keys = [QUEUE, FENCE, f"{PREFIX}dlq:{SERVICE}"]
        await self.script("dead_letters/bury", keys, *args, json.dumps([frame]), call.request["id"], call.run)

    async def hear(self) -> None:
        subscription = redis.from_url(os.environ["TOOLBUS_URL"]).pubsub()
        await subscription.subscribe(WAKE)
        self.hearing.set()
        async for message in subscription.listen():
            if message["type"] != "message":
                continue
            word, _, rest = message["data"].decode().partition(" ")
            if word == "cancel" and FAULT != "ignores-cancel":
                for call in list(self.calls.values()):
                    if call.request["id"] == rest and call.task is not None:
                        call.task.cancel()
            elif word in {"back", "dead"} and FAULT != "no-reap":
                await self.reap("1" if word == "back" else "")

    async def drain(self) -> None:
        self.draining = True
        if FAULT != "stays":
            await self.script("registry/unregister", REGISTRY, PREFIX, uuid.uuid4().hex, HOUR, 60_000, f"{SERVICE}/{self.me}")
        running = [call.task for call in self.calls.values() if call.task is not None]
        if running and FAULT != "drops-at-end":
            await asyncio.wait(running, timeout=GRACE)
        left = list(self.calls.values())
        for call in left:
            call.stopped = "handed back"
            if call.task is not None:
                call.task.cancel()
        if left and FAULT != "drops-at-end":
            for call in left:
                begun = FAULT != "counts-no-hand-back"
                keys = [QUEUE, FENCE, *([f"{PREFIX}pause:{SERVICE}:{call.entry}"] if begun else ())]
                given = (call.entry, call.attempt, HOUR if begun else "")
                await self.script("recover/hand_back", keys, self.me, *call.fence, WAKE, SERVICE, *given)
        if FAULT != "stays":
            await self.script("recover/retire", [QUEUE, FENCE, CANCELLED, TABLE, LIVE], self.me, SERVICE)
        os._exit(0)

    async def main(self) -> None:
        self.writing = redis.from_url(os.environ["TOOLBUS_URL"])
        reading = redis.from_url(os.environ["TOOLBUS_URL"])
        self.hearing = asyncio.Event()
        tasks = [asyncio.create_task(self.hear())]
        await self.hearing.wait()
        await self.register()
        tasks.append(asyncio.create_task(self.beat()))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: tasks.append(asyncio.create_task(self.drain())))
        while not self.draining:
            room = SLOTS - len(self.calls) - self.leaked
            if room <= 0:
                await asyncio.sleep(0.01)
                continue
            try:
                found = await reading.xreadgroup("g", self.me, {QUEUE: ">"}, count=room, block=500)
            except redis.ResponseError:
                if FAULT == "no-again" or self.draining:
                    await asyncio.sleep(0.2)
                else:
                    await self.register()
                continue
            for entry, fields in (found or [[None, []]])[0][1] if isinstance(found, list) else next(iter(found.values()))[0]:
                self.begin(entry.decode(), fields or {}, 1)
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(PlantedWorker().main())
