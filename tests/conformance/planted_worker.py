"""A worker at level 3 of docs/protocol.md on redis-py alone, with faults of a table planted into it on demand.

Run: ``python -m tests.conformance.planted_worker FAULT,FAULT SCRIPTS``; the fault ``none`` is the worker that keeps everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import time
import uuid
from collections.abc import Coroutine
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import NoPermissionError, OutOfMemoryError, TryAgainError

from tests.conformance import planted_beside as beside
from tests.conformance.planted_calls import (
    ALONE_FROM,
    CANCELLED,
    CANCELLED_ERROR,
    COOLDOWN,
    DIGEST,
    FENCE,
    GRACE,
    KEYS_TTL,
    KNOWN_FIELDS,
    LEASE_MS,
    LETTERS_TTL,
    LIVE,
    LOOK_EVERY,
    LOOK_EVERY_BYTES,
    META,
    MOST_DELIVERIES,
    MOST_OUTPUT,
    MOST_PIECE,
    NAMES,
    PAUSED,
    PREFIX,
    PULSE,
    QUEUE,
    REGISTRY,
    REPLY_BYTES,
    REPLY_LIMIT,
    SCHEMAS,
    SCRIPTS,
    SERVICE,
    SERVICES,
    SLOTS,
    TABLE,
    WAKE,
    Call,
    Failed,
    Stop,
    digest,
    failed,
    has,
    number_of,
    parts,
    pieces,
    read_request,
)
from tests.conformance.planted_sessions import Sessions


def connected(**options: Any) -> redis.Redis:
    """Return a client that connects again when its connections end."""
    tries = 0 if has("ends-when-cut") else 40
    return redis.from_url(os.environ["TOOLBUS_URL"], retry=Retry(ConstantBackoff(0.05), tries), **options)


class PlantedWorker(Sessions):
    """Serves the tools of the conformance kit."""

    def __init__(self) -> None:
        super().__init__()
        self.me = "worker-1" if has("fixed-instance") else uuid.uuid4().hex
        self.start: Any = 0
        self.fence: tuple[Any, Any] = (b"", b"0")
        self.leaked = self.begun = 0
        self.pause_told = 0.0
        self.newest = (0, 0)
        # In the order in which they came.
        self.over: dict[str, dict[str, Any]] = {}
        # Of each reply stream: entries, bytes, and bytes since it was looked at.
        self.written: dict[str, list[int]] = {}
        self.refused_since = self.room_until = 0.0
        self.sending: set[asyncio.Task[Any]] = set()
        self.lines: dict[tuple[str, str], tuple[str, asyncio.Task[None]]] = {}
        self.draining = self.paused = self.makes_room = self.has_left = self.turn = False
        self.rescued_to = self.named = self.token = ""
        self.is_stuck = self.is_reap_due = False
        self.beside = beside.Beside(self)
        self.sources = {str(path.relative_to(SCRIPTS))[:-4]: path.read_text() for path in SCRIPTS.rglob("*.lua")}

    async def script(self, name: str, keys: list[str], *args: Any, since: float = 0.0) -> Any:
        source = self.sources[name]
        digest_of = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self.writing.evalsha(digest_of, len(keys), *keys, *args)
        except redis.ResponseError as error:
            is_busy = str(error).startswith(("BUSY ", "NOREPLICAS ")) and not has("ends-when-busy")
            if isinstance(error, TryAgainError) or is_busy:
                if has("forgets-refused"):
                    return []
                await asyncio.sleep(0.02)
                return await self.script(name, keys, *args)
            is_full = isinstance(error, OutOfMemoryError) or str(error).startswith("MISCONF ")
            since = since or time.monotonic()
            if is_full and time.monotonic() < since + 60 and not has("ends-when-full"):
                await asyncio.sleep(0.1)
                return await self.script(name, keys, *args, since=since)
            if not str(error).startswith(("NOSCRIPT", "No matching script")) or has("evalsha-only"):
                raise
        return await self.writing.eval(source, len(keys), *keys, *args)

    # -- the registry -----------------------------------------------------------------------------

    async def register(self) -> None:
        if not (self.start and has("looks-when-it-starts")):
            await self.check_version()
        schemas = dict(SCHEMAS)
        if has("no-tools"):
            del schemas["count"]
        effect = "sometimes" if has("bad-tool") else "read"
        tools = [
            {"name": f"{SERVICE}-{name}", "description": "x", "service": SERVICE, "parameters": schema,
             "effect": "once" if name == "once" else effect, "tenants": ["kit"] if name == "private" else []}
            for name, schema in schemas.items()
        ]  # fmt: skip
        document = json.dumps({"service": {"id": SERVICE, "sticky-sessions": True}, "tools": tools, "owner": "planted", "digest": DIGEST})
        self.token = self.me if has("one-token") else uuid.uuid4().hex
        common = (PREFIX, self.token, KEYS_TTL, COOLDOWN)
        names = [tool["name"] for tool in tools]
        start = 0 if has("new-start") else self.start
        args = (SERVICE, self.me, "planted", DIGEST, document, LEASE_MS, uuid.uuid4().hex, "", SERVICE, start, *names)
        found = await self.script("registry/register", REGISTRY, *common, *args)
        if found[0] != b"ok" and not has("never-frees-names"):
            rows = await self.writing.hmget(NAMES, [f"s:{SERVICE}", f"q:{SERVICE}", *(f"t:{name}" for name in names)])
            others = [f"{PREFIX}reg:s:{row.decode().split(chr(10))[1]}" for row in rows if row]
            found = await self.script("registry/register", [*REGISTRY, *others], *common, *args)
        if found[0] != b"ok" and has("serves-when-refused"):
            await self.beside.register()
            return
        assert found[0] == b"ok", found
        if found[2] != self.fence[0]:
            self.newest = (0, 0)
        self.start, self.fence = found[1], (found[2], found[3])
        await self.beside.register()

    async def is_whole(self) -> bool:
        """Return whether everything is there that registering writes."""
        if has("checks-row-only"):
            return bool(await self.writing.hexists(SERVICES, SERVICE))
        found = await asyncio.gather(
            self.writing.hexists(SERVICES, SERVICE),
            self.writing.hexists(TABLE, f"i:{self.me}"),
            self.writing.exists(NAMES),
            self.writing.hexists(META, "start"),
            self.writing.hexists(FENCE, f"c:{self.me}"),
            *(self.writing.hexists(FENCE, f"l:{self.me}") for _ in range(not has("checks-no-lease"))),
            *(self.writing.hexists(FENCE, "generation") for _ in range(not has("checks-no-generation"))),
        )
        return all(found)

    # -- answering --------------------------------------------------------------------------------

    async def answer(self, call: Call, before: asyncio.Task[None] | None) -> None:
        error: dict[str, Any] | None = None
        last: dict[str, Any] = {}
        call.has_entered = True
        try:
            await self.prepare(call, before)
            left = None if has("ignores-deadline") or has("runs-expired") else call.deadline - time.time()
            if has("deadline-by-timeout") or (call.attempt > 1 and has("deadline-anew")):
                left = float(call.request.get("timeout", 60))
            async with asyncio.timeout(left) as call.timer:
                await self.tell_start(call)
                try:
                    last = await self.run(call)
                except Failed:
                    await self.try_again(call)
                    if not has("start-once"):
                        await self.tell_start(call)
                    last = await self.run(call)
        except TimeoutError:
            error = {"type": "deadline_exceeded", "message": "the time was up", "retryable": True}
        except Stop as stop:
            if stop.error is None:
                self.forget(call)
                return
            error = stop.error
        except asyncio.CancelledError:
            if call.why is None:
                self.forget(call)
                return
            error = call.why
        except (TypeError, KeyError, ValueError, AttributeError) as wrong:
            error = {"type": "invalid_arguments", "message": str(wrong)}
        # One that is refused is forgotten, so that nothing renews it.
        with contextlib.suppress(*(() if has("renews-refused") else (NoPermissionError,))):
            await self.finish(call, error, last)
        self.forget(call)
        if error is not None:
            late = "leaks-slots" if call.begun else "leaks-expired"
            leaks = {"not_found": "leaks-refused", "forbidden": "leaks-forbidden", "invalid_arguments": "leaks-failed"}
            self.leaked += has({**leaks, "deadline_exceeded": late, "cancelled": "leaks-cancelled"}.get(error["type"], ""))
        if error == CANCELLED_ERROR and has("goes-on-after-cancel"):
            await asyncio.sleep(0.1)
            await self.writing.xadd(call.replies, {"f": json.dumps([call.frame(response="more")])}, nomkstream=True)

    async def tell_start(self, call: Call) -> None:
        if call.request.get("events") and not has("no-start"):
            await self.send(call, call.frame(kind="start"))

    def forget(self, call: Call) -> None:
        if self.calls.get(call.entry) is call:
            del self.calls[call.entry]

    async def prepare(self, call: Call, before: asyncio.Task[None] | None) -> None:
        """Refuse a call, pass it on, or wait for its turn."""
        if call.is_stopped:
            raise Stop(call.why)
        request = call.request
        name = str(request.get("tool", "")).removeprefix(f"{SERVICE}-")
        if call.attempt - call.excused > MOST_DELIVERIES and not has("reruns-poison"):
            await self.bury(
                call,
                "poison" if has("other-reason") else "max_deliveries",
                {"type": "tool_error", "code": "" if has("no-code") else "max_deliveries", "message": "delivered too often"},
            )
            raise Stop(None)
        await self.refuse(call, name)
        if before is not None and request.get("ordered"):
            if not has("no-order"):
                await asyncio.wait([before])
        elif request.get("ordered") and call.fields.get("p") and not has("ignores-p"):
            await self.wait_for_line(call)
        if call.session and not has("no-own"):
            await self.own(call)
        if name == "once":
            await self.mark(call)
        call.begun = True

    async def refuse(self, call: Call, name: str) -> None:
        """End a call that is not to be run."""
        request = call.request
        if has("strict-fields") and set(request) - KNOWN_FIELDS:
            raise failed("invalid_arguments", "unknown fields")
        is_known = name in SCHEMAS and (request["service"] == SERVICE or has("any-service"))
        if not is_known and not has("runs-unknown"):
            await self.refuse_unknown(call)
        if name == "private" and request.get("user") != "kit" and not has("any-tenant"):
            raise failed("forbidden", "not for this user")
        if call.id in self.over and not (call.attempt > 1 and has("reruns-cancelled")):
            error = self.over[call.id]
            raise Stop({**error, "code": "not_begun"} if name == "once" and not has("begun-or-not") else error)
        waited = time.time() - number_of(call.entry)[0] / 1000
        if (
            (waited > 5 or has("looks-always"))
            and call.replies
            and not await self.writing.exists(call.replies)
            and not has("runs-abandoned")
        ):
            await self.remove(call.entry)
            raise Stop(None)
        if call.deadline <= time.time() and not has("runs-expired"):
            raise failed("deadline_exceeded", "too late", retryable=True)

    async def try_again(self, call: Call) -> None:
        """Begin the next attempt of a call."""
        call.attempt += 1
        counted = (self.me, *call.fence, call.entry, call.attempt)
        if (
            not has("retries-uncounted")
            and not await self.script("take/count", [QUEUE, FENCE], *counted)
            and not has("retry-count-ignored")
        ):
            raise Stop(None)
        if not has("retries-as-one-run"):
            call.run, call.seq = uuid.uuid4().hex, 0

    async def refuse_unknown(self, call: Call) -> None:
        if has("start-before-refusals") and call.request.get("events"):
            await self.send(call, call.frame(kind="start"))
        wanted = call.request.get("digest", "")
        if wanted in {"", DIGEST} or has("refuses-other-revisions"):
            raise failed("not_found", "no such tool")
        given = (self.me, SERVICE, call.fence[0], WAKE, call.entry, call.attempt, wanted)
        if not has("no-hand-over") and await self.script("recover/hand_over", [QUEUE, FENCE, LIVE, TABLE], *given):
            self.leaked += has("leaks-passed-on")
            raise Stop(None)
        raise failed("unavailable", "another revision", code="other_revision", retryable=True)

    async def run(self, call: Call) -> dict[str, Any]:
        """Send the text as it comes, and return the fields of the end."""
        name = str(call.request.get("tool", "")).removeprefix(f"{SERVICE}-")
        arguments = call.request.get("arguments") or {}
        if name == "data":
            if int(arguments["size"]) > MOST_OUTPUT and not has("data-of-any-length"):
                raise failed("tool_error", "it says too much", code="output_limit")
            return {"data": {"text": "x" * int(arguments["size"])}}
        if name == "block":
            if has("blocks-beats"):
                time.sleep(float(arguments["seconds"]))  # noqa: ASYNC251 - that is the fault
            await asyncio.to_thread(time.sleep, 0 if has("blocks-beats") else float(arguments["seconds"]))
            return {"response": "done"}
        if name == "cleaned":
            return {"response": str(self.cleaned)}
        if name == "ask":
            await self.ask(call, str(arguments["question"]))
            await asyncio.sleep(float(arguments.get("delay", 0)))
            return {"response": "allowed"}
        texts = []
        async for text in self.texts(name, arguments, first=call.attempt == 1):
            if has("all-at-end") or (has("big-ends") and name == "echo"):
                texts.append(text)
                continue
            for piece in pieces(text):
                call.size += len(piece.encode())
                if call.size > MOST_OUTPUT and not has("sends-any-length"):
                    raise failed("tool_error", "it says too much", code="output_limit")
                await self.send(call, call.frame(response=piece))
        return {"response": "".join(texts)} if texts else {}

    async def texts(self, name: str, arguments: dict[str, Any], *, first: bool) -> Any:
        if name == "large":
            for _ in range(0, int(arguments["size"]), MOST_PIECE // 4):
                yield "x" * (MOST_PIECE // 4)
            return
        if name in {"echo", "private"}:
            text = str(arguments["text"])
            yield text.encode("ascii", "replace").decode() if has("ascii-only") else text
            return
        for number in range(1, int(arguments["to"]) + 1):
            yield f"{number} "
            await asyncio.sleep(float(arguments.get("delay", 0.1)))
            if name == "retry" and first:
                raise Failed

    async def send(self, call: Call, *frames: dict[str, Any]) -> None:
        """Append frames, and look now and then whether they are read.

        Raises:
            Stop: nobody reads them, or the call was stopped.
        """
        # The client may have kept the cancellation of its task to itself while it connected.
        if call.is_stopped and not call.ends and not self.draining:
            # They have numbers, which the next ones take.
            call.seq = int(frames[0]["seq"])
            raise Stop(call.why)
        if not call.replies:
            return
        if has("makes-streams") or has("answers-nobody"):
            await self.writing.xadd(call.replies, {"f": json.dumps(frames)})
            return
        script = self.script("finish/send", [LIVE], call.replies, json.dumps(frames))
        if has("sends-on"):
            self.sending.add(asyncio.create_task(script))
        elif await self.answer_to(script) and not has("ignores-gone"):
            for other in list(self.calls.values()):
                is_abandoned = other.replies == call.replies and (other is call or not has("stops-one-call"))
                self.leaked += is_abandoned and has("leaks-abandoned")
                if other is not call and (is_abandoned or has("gone-stops-all")):
                    other.stop(CANCELLED_ERROR)
            raise Stop(CANCELLED_ERROR)
        await self.look_at(call.replies, len(json.dumps(frames)))

    async def answer_to(self, script: Coroutine[Any, Any, Any]) -> Any:
        """Return which reply streams are gone, by the script that appends frames.

        Raises:
            Stop: the server refuses them for good.
        """
        sending = asyncio.ensure_future(script)
        try:
            try:
                return await asyncio.shield(sending)
            except asyncio.CancelledError:
                # Nothing else of the call is sent while this is in flight, and its number is taken.
                await asyncio.wait([sending])
                raise
        except redis.ResponseError as error:
            if has("drops-refused"):
                return []
            raise failed("unavailable", str(error), code="frames_refused") from None

    async def look_at(self, replies: str, size: int) -> None:
        """Look now and then whether what was written to a caller is read, and end its calls if it is not."""
        written = self.written.setdefault(replies, [0, 0, 0])
        for index, more in enumerate((1, size, size)):
            written[index] += more
        entries, total, since = written
        if has("no-slow") or (entries % LOOK_EVERY and since < LOOK_EVERY_BYTES):
            return
        written[2] = 0
        length = await self.writing.xlen(replies)
        if length > REPLY_LIMIT or (length * total / entries > REPLY_BYTES and not has("no-reply-bytes")):
            for call in list(self.calls.values()):
                if call.replies == replies or has("slow-stops-all"):
                    call.stop({"type": "slow_consumer", "message": "the caller does not read"})

    def last_frames(self, call: Call, error: Any, last: dict[str, Any]) -> list[dict[str, Any]]:
        if has("no-end"):
            return []
        frames = []
        data = last.get("data")
        whole = json.dumps(data)
        if data is not None and len(whole) > MOST_PIECE and not has("big-data"):
            frames += [call.frame(kind="data", response=piece) for piece in pieces(whole)]
            last = {**last, "data": None}
        if call.token:
            last = {**last, "state": call.token, "restarted": call.restarted}
        frames.append(call.frame(kind="end", end_of_stream=True, error=error, **last))
        return [*frames, call.frame(kind="end", end_of_stream=True)] if has("two-ends") else frames

    async def finish(self, call: Call, error: Any, last: dict[str, Any]) -> None:
        call.ends = True
        *before, frames = parts(self.last_frames(call, error, last))
        for part in before:
            with contextlib.suppress(Stop):
                await self.send(call, *part)
        if call.asks and not has("keeps-notes"):
            await self.writing.delete(f"{PREFIX}pause:{SERVICE}:{call.entry}")
        if has("keeps-entries") or (has("timeup-stays") and error and error["type"] == "deadline_exceeded" and call.begun):
            await self.send(call, *frames)
            return
        if has("no-fence") or has("unfenced-ends") or has("makes-streams") or has("answers-nobody"):
            await self.writing.xadd(call.replies, {"f": json.dumps(frames)}, nomkstream=has("no-fence") or has("unfenced-ends"))
            await self.remove(call.entry)
            return
        frees = bool(error and call.request.get("shared") and not call.began_once and not has("keeps-keys"))
        if not frees:
            replies = next(iter(self.calls.values())).replies if has("mixed-streams") else call.replies
            written = (replies, json.dumps(frames)) if frames and call.replies else ()
            found = await self.script("finish/finish", [QUEUE, FENCE], self.me, *call.fence, 1, call.entry, *written)
            self.fence = (found[0], found[1])
            if len(found) > 2 or has("drops-all"):
                return
        await self.finish_each(call, frames, frees=frees)

    async def finish_each(self, call: Call, frames: list[dict[str, Any]], *, frees: bool) -> None:
        keys = [QUEUE, FENCE]
        parts: list[Any] = []
        if frames and call.replies:
            parts += [call.replies, len(frames), *(part for frame in frames for part in (1, json.dumps(frame)))]
        if frees:
            record = digest(call.request.get("user", ""), call.request.get("idempotency_key", ""))
            keys += [f"{PREFIX}key:{record}", f"{PREFIX}started:{call.id}"]
            parts += ["!3", 2, 1, call.id, 1, call.run]
        attempt = 1 if has("finishes-as-first") else call.attempt
        found = await self.script("finish/finish_each", keys, self.me, *call.fence, 1, call.entry, attempt, *parts)
        self.fence = (found[0], found[1])
        if found[2] and has("writes-lost"):
            await self.writing.xadd(call.replies, {"f": json.dumps(frames)}, nomkstream=True)

    async def remove(self, entry: str) -> None:
        await self.writing.xack(QUEUE, "g", entry)
        await self.writing.xdel(QUEUE, entry)

    async def bury(self, call: Call, reason: str, error: dict[str, Any]) -> None:
        self.leaked += has("leaks-unreadable" if reason == "malformed" else "leaks-buried")
        told = call.replies and not (has("buries-silently") and reason == "max_deliveries")
        attempt = call.attempt
        if has("buries-as-first"):
            call.attempt = 1
        frames = json.dumps([call.frame(kind="end", end_of_stream=True, error=error)])
        document = "" if has("empty-dead-letter") else call.fields.get("r", "")
        attempt = 1 if has("first-letter") else attempt
        args = (self.me, *call.fence, call.entry, reason, attempt, "", document, 10_000, LETTERS_TTL)
        keys = [QUEUE, FENCE, f"{PREFIX}dlq:{SERVICE}"]
        await self.script("dead_letters/bury", keys, *args, call.replies if told else "", frames if told else "", call.id, call.run)

    # -- taking -----------------------------------------------------------------------------------

    def begin(self, entry: str, flat: dict[bytes, bytes], attempt: int, fence: Any, *, alone: bool = False, note: bytes = b"") -> None:
        fields = {name.decode(): value.decode("utf-8", "replace") for name, value in flat.items()}
        deadline = self.deadline_of(fields.get("d", ""))
        if note and not has("ignores-notes"):
            later, since, until = map(int, note.split()[:3])
            deadline = max(deadline, (later + (min(int(time.time() * 1000), until) - since if since else 0)) / 1000)
        request, problem = read_request(flat.get(b"r", b""))
        if not (deadline or has("any-request")):
            problem = "its entry has no deadline"
        self.begun += 1
        if has("loses-some") and self.begun % 97 == 0:
            asyncio.get_running_loop().create_task(self.remove(entry))
            return
        call = Call(entry, fields, request, self.later.get(request["id"], deadline), attempt, fence, self.me)
        call.alone = alone
        if note and not has("counts-what-was-cut-off"):
            call.excused = int((note.split() + [b"0"] * 4)[3])
        self.calls[entry] = call
        if problem:
            call.task = asyncio.get_running_loop().create_task(self.set_aside(call, problem))
            return
        if call.session:
            self.users.setdefault(call.session, set()).add(str(request["agent"]))
            if not has("cleans-used-sessions"):
                self.alone.pop(call.session, None)
        known = self.lines.get(call.session) if call.session else None
        before = known[1] if known and (known[0] == fields.get("p") or not known[1].done()) else None
        call.task = asyncio.get_running_loop().create_task(self.answer(call, before))
        if call.session and request.get("ordered"):
            self.lines[call.session] = (entry, call.task)

    async def set_aside(self, call: Call, problem: str) -> None:
        """Make a request that can't be read a dead letter."""
        if has("drops-unreadable"):
            await self.remove(call.entry)
        else:
            if has("silent-unreadable"):
                call.request = {"id": call.id, "agent": ""}
            error = {"type": "invalid_arguments", "message": problem}
            await self.bury(call, "unreadable" if has("another-reason") else "malformed", error)
        self.forget(call)

    def deadline_of(self, text: str) -> float:
        if has("trusts-d"):
            return int(text) / 1000
        with contextlib.suppress(ValueError):
            if int(text[:17]) < 2**53:
                return max(0.0, int(text[:17]) / 1000)
        return 0.0

    async def take(self) -> None:
        """Read requests while there is room for them."""
        while not self.draining or has("takes-while-leaving"):
            room = self.room()
            makes_room = self.makes_room and bool(self.calls) and (time.monotonic() < self.room_until or has("makes-room-for-ever"))
            waits = self.paused or self.has_left or self.has_suspect() or makes_room
            # With one slot for two streams it waits for another one.
            if room < 2 or waits:
                await asyncio.sleep(0.01)
                continue
            if self.makes_room:
                self.makes_room = False
                if not self.calls:
                    await self.reap("")
                    continue
            if self.is_reap_due:
                self.is_reap_due = False
                await self.reap("")
                continue
            # Later ones may be those of after it was lost again.
            before, fence = self.newest, self.fence
            try:
                found = await self.read(room)
            except redis.ResponseError as error:
                await self.take_refused(str(error))
                continue
            self.refused_since = 0.0
            if has("looks-behind-taking"):
                await self.check_version()
            async with self.begin_lock:
                await self.begin_what_came(found, before, fence)

    async def begin_what_came(self, found: dict[str, list[Any]], before: tuple[int, int], fence: Any) -> None:
        """Run what a read has brought, with the newest entry and the fence that were known when it was sent."""
        for entry, fields in found.get(beside.QUEUE, ()):
            self.beside.begin(entry, fields)
        for entry, fields in found.get(QUEUE, ()):
            number = number_of(entry.decode())
            if number <= before and fence[0] == self.fence[0] and not has("runs-set-back"):
                if has("acks-set-back"):
                    await self.remove(entry.decode())
                continue
            self.newest = max(self.newest, number)
            if self.gives_back():
                given = (entry.decode(), 1, "")
                await self.script("recover/hand_back", [QUEUE, FENCE], self.me, *fence, WAKE, SERVICE, *given)
            else:
                self.begin(entry.decode(), fields or {}, 1, self.fence if has("fence-of-later") else fence)

    async def read(self, room: int) -> dict[str, list[Any]]:
        """Return what comes in the streams of both services, once for each stream."""
        streams = {QUEUE: ">", beside.QUEUE: ">"}
        if has("one-stream-at-a-time"):
            self.turn = not self.turn
            del streams[QUEUE if self.turn else beside.QUEUE]
        count = room if has("slots-for-each-stream") else room // 2
        # The check can't see a wait that a slow machine has used up, so the planted one is well above its limit.
        block = 3_000 if has("one-stream-at-a-time") else 2_000
        async with self.read_lock:
            found = await self.reading.xreadgroup("g", self.me, streams, count=count, block=block)
        pairs = found.items() if isinstance(found, dict) else found
        return {name.decode(): entries[0] if isinstance(found, dict) else entries for name, entries in pairs}

    async def take_refused(self, error: str) -> None:
        """Register again without a group; end when reads are refused for long."""
        await asyncio.sleep(0.05)
        if error.startswith("NOGROUP"):
            if not (self.draining or has("no-again") or has("no-nogroup")):
                await self.register()
            return
        now = time.monotonic()
        self.refused_since = self.refused_since or now
        owes = bool(self.calls) and not has("gives-up-at-work")
        if has("ends-at-errors") or (now - self.refused_since > max(3 * LEASE_MS / 1000, 30) and not owes and not has("never-gives-up")):
            await self.drain()

    def room(self) -> int:
        """Return how many slots are free."""
        return SLOTS - len(self.calls) - len(self.beside.running) - self.leaked

    def gives_back(self) -> bool:
        """Return whether what a read brings goes back, since things have changed while it waited."""
        leaves = self.draining and not has("takes-while-leaving")
        if self.room() < 1 and not has("slots-for-each-stream"):
            return True
        return (self.paused and not has("keeps-reading")) or leaves or self.has_suspect()

    def has_suspect(self) -> bool:
        """Return whether a call runs that must run alone."""
        return self.is_stuck or (any(call.alone for call in self.calls.values()) and not has("takes-beside-suspects"))

    async def end_read(self) -> None:
        """End a read that waits."""
        await self.writing.client_unblock(self.reading_id)

    # -- keeping ----------------------------------------------------------------------------------

    async def keep(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(LEASE_MS / 3000)
            turn += 1
            if not has("no-beat") and not (self.draining and has("no-beats-while-leaving")) and not (has("beats-rarely") and turn % 3):
                self.beating = asyncio.create_task(self.beat())
                if not has("beats-by-the-clock"):
                    await self.beating
            renews = not has("no-renew") and not (self.draining and has("no-renewals-while-leaving"))
            renews = renews and not (self.paused and has("pause-stops-renewing")) and not (has("renews-rarely") and turn % 3)
            for call in list(self.calls.values()) if renews else ():
                await self.renew(call)
            await self.clean_up()
            if self.draining:
                if has("registers-while-leaving"):
                    await self.register()
                continue
            if not (has("no-reap") or has("reaps-when-told") or (has("reaps-rarely") and turn % 12)):
                await self.reap("")
            if turn % 3 == 0:
                await self.look_after()

    async def beat(self) -> None:
        served = ((QUEUE, FENCE, SERVICE), (beside.QUEUE, beside.FENCE, beside.BESIDE))[: 1 if has("beats-first-service") else 2]
        keys = [LIVE, PAUSED, PULSE, *(() if has("no-keys") else (key for each in served for key in each[:2]))]
        members = [f"{service}/{self.me}" for *_, service in served]
        sent = time.monotonic()
        # One at a time, as over a connection of its own.
        async with self.beat_lock:
            _, missing, paused = await self.script("lease/beat", keys, LEASE_MS, KEYS_TTL, *members)
        if missing and not self.draining and not has("no-again") and not has("ignores-missing"):
            await self.register()
        is_late = sent < self.pause_told and not (has("trusts-late-beats") or has("beats-by-the-clock"))
        if not is_late and not has("no-pause") and not has("pause-by-message-only"):
            await self.pause(bool(paused))
        is_replica = (await self.writing.execute_command("ROLE"))[0] != b"master" and not has("no-role")
        had_left, self.has_left = self.has_left, is_replica
        if is_replica and not had_left:
            await self.leave_server()

    async def leave_server(self) -> None:
        """Close all connections, once the read that waits has ended; each is made again when it is needed."""
        await self.end_read()
        async with self.read_lock:
            for each in (self.writing, self.reading, self.subscribing) if not has("keeps-connections") else ():
                await each.connection_pool.disconnect()
            self.reading_id = await self.reading.client_id()

    async def pause(self, paused: bool) -> None:
        news, self.paused = paused != self.paused, paused
        if news and paused and not has("keeps-reading"):
            await self.end_read()

    async def renew(self, call: Call) -> None:
        found = await self.script("lease/renew", [QUEUE, FENCE], self.me, *call.fence, call.entry, call.attempt)
        if not found[2]:
            call.fence = (found[0], found[1])
        elif not has("no-fence") and not has("goes-on-when-lost"):
            for each in list(self.calls.values()) if has("renew-drops-all") else [call]:
                self.forget(each)
                each.stop(None)
                self.leaked += has("leaks-lost")

    async def look_after(self) -> None:
        """Do what is to be done once a lease."""
        if not has("no-check") and not has("no-again") and not await self.is_whole():
            await self.register()
        if not has("no-rescue"):
            args = (self.rescued_to, LEASE_MS, WAKE, SERVICE)
            _, following = await self.script("recover/rescue", [QUEUE], *args)
            self.rescued_to = "" if has("rescues-from-start") else following.decode()

    async def reap(self, only_back: str) -> None:
        # While it is under way, nothing else takes the slots that it is to fill.
        async with self.begin_lock:
            await self.take_over(only_back)

    async def take_over(self, only_back: str) -> None:
        if self.has_suspect() or (self.paused and not has("reaps-while-paused")):
            return
        # As many as it takes: reading needs one more.
        room = self.room() - 1
        if room < 1 and not has("forgets-to-reap"):
            self.is_reap_due = True
            return
        alone_from = 999 if has("suspects-together") else ALONE_FROM
        flexible = "0" if self.makes_room else "1"
        args = (self.me, SERVICE, room, LEASE_MS, only_back, "1" if self.calls else "", alone_from, flexible, f"{PREFIX}pause:{SERVICE}:")
        found = await self.script("recover/reap", [QUEUE, FENCE, LIVE, PULSE], *args)
        fence = self.fence = (found[0], found[1])
        if found[3] and not has("never-makes-room"):
            self.makes_room, self.room_until = True, time.monotonic() + 3 * LEASE_MS / 1000
        if not has("runs-set-back") and not has("ignores-told"):
            self.newest = max(self.newest, number_of(found[4].decode()))
        for entry, deliveries, counts, flat, _, note in found[2]:
            attempt = max(1, int(deliveries) + int(counts)) + (has("counts-back") and not int(counts))
            known = (fence[0], await self.writing.hget(FENCE, f"c:{self.me}")) if has("counts-as-of-now") else fence
            counted = (self.me, *known, entry, attempt)
            if (
                int(counts)
                and not has("no-count")
                and not await self.script("take/count", [QUEUE, FENCE], *counted)
                and not has("count-ignored")
            ):
                continue
            excused = int((note.split() + [b"0"] * 4)[3])
            alone = attempt - excused >= ALONE_FROM
            self.begin(entry.decode(), dict(zip(flat[::2], flat[1::2], strict=True)), attempt, fence, alone=alone, note=note)
            if alone and not has("takes-beside-suspects"):
                await self.end_read()

    # -- messages ---------------------------------------------------------------------------------

    async def hear(self) -> None:
        if has("catches-up-early"):
            await self.read_cancelled()
        subscription = self.subscribing.pubsub()
        await subscription.subscribe(WAKE)
        async for message in subscription.listen():
            if message["type"] == "subscribe":
                # Also when it has connected again.
                if not (has("catches-up-early") or (self.hearing.is_set() and has("forgets-when-cut"))):
                    await self.read_cancelled()
                if not (has("pause-unread") or has("no-pause") or has("pause-by-message-only")):
                    await self.pause(bool(await self.writing.sismember(PAUSED, SERVICE)))
                self.hearing.set()
            if message["type"] != "message":
                continue
            word, _, rest = message["data"].decode().partition(" ")
            await self.obey(word, rest)

    async def read_cancelled(self) -> None:
        """Stop or refuse what was cancelled until now."""
        if not has("no-catch-up"):
            # A call that was refused for it already is sending its end.
            news = {call.decode() for call in await self.writing.zrange(CANCELLED, 0, -1)} - self.over.keys()
            self.over |= dict.fromkeys(news, CANCELLED_ERROR)
            if has("removes-cancelled"):
                await self.writing.delete(CANCELLED)
            for call in list(self.calls.values()):
                if call.id in news:
                    call.stop(CANCELLED_ERROR)

    def cancel(self, call_id: str) -> None:
        """Stop a call that runs here, and refuse it if it comes later."""
        of, _, kind = self.named.partition(" ")
        error = {"type": kind, "message": "stopped"} if of == call_id else CANCELLED_ERROR
        for call in list(self.calls.values()):
            if call.id == call_id:
                call.stop(error)
                self.is_stuck |= call.alone and has("stays-alone")
        self.over[call_id] = CANCELLED_ERROR if has("forgets-over-before") else error
        if len(self.over) > (100 if has("remembers-few-cancellations") else 10_000):
            del self.over[next(iter(self.over))]
        if has("forgets-cancellations"):
            self.over.clear()

    async def obey(self, word: str, rest: str) -> None:
        if word == "over" and not has("ignores-over"):
            # The next message is `cancel` with the same id.
            self.named = rest
        elif word == "cancel" and not has("ignores-cancel") and not (self.draining and has("deaf-while-leaving")):
            self.cancel(rest)
        elif word == "extend" and not has("no-extend"):
            self.extend(*rest.split())
        elif word in {"pause", "resume"} and rest == SERVICE and not has("no-pause") and not has("pause-by-beats-only"):
            self.pause_told = time.monotonic()
            await self.pause(word == "pause")
        elif (
            word in {"back", "dead"}
            and not has(f"ignores-{word}")
            and not has("no-reap")
            and not has("reaps-rarely")
            and (not self.draining or has("reaps-while-leaving"))
        ):
            await self.reap("1" if word == "back" else "")
        elif word == "to" and rest.partition(" ")[0] == self.me and not has("ignores-to"):
            await self.reap("1")
        elif word == "confirm" and rest in self.allowed:
            self.allowed[rest].set()
        elif word == "left":
            self.leave(rest)
        elif word == "end" and not has("keeps-sessions"):
            await self.close_session(*json.loads(rest))

    # -- the beginning and the end ----------------------------------------------------------------

    async def outlive(self) -> None:
        """Go on taking what comes for this revision while agents turn to another one, if nobody else serves this one."""
        about = ([QUEUE, FENCE, LIVE, TABLE], self.me, SERVICE, DIGEST)
        last, _, _ = await self.script("recover/outlive", *about, "")
        if not last:
            return
        end = time.monotonic() + GRACE / 2
        self.start = 1
        await self.register()
        await asyncio.sleep(0.3)
        _, newest, _ = await self.script("recover/outlive", *about, "")
        passed = 0
        while passed < (1 if has("outlives-once") else 2) and time.monotonic() < end:
            _, _, has_passed = await self.script("recover/outlive", *about, newest)
            passed = passed + 1 if has_passed else 0
            await asyncio.sleep(0.05)

    async def drain(self) -> None:
        if not has("leaves-its-revision"):
            await self.outlive()
        self.draining = True
        for call in self.calls.values() if has("no-deadlines-while-leaving") else ():
            if call.timer is not None:
                call.timer.reschedule(None)
        if not has("stays"):
            await self.leave_registry()
        if not has("takes-while-leaving"):
            await self.end_read()
        whatever = (self.me, *self.fence, WAKE, SERVICE, "", 256, "")
        most = 999 if has("hands-back-once") else 256
        while not has("keeps-what-waits") and await self.script("recover/hand_back", [QUEUE, FENCE], *whatever) == most:
            pass
        running = [call.task for call in self.calls.values() if call.task is not None]
        if running and not has("drops-at-end") and not has("cuts-at-end"):
            await asyncio.wait(running, timeout=GRACE)
        left = list(self.calls.values())
        for call in left:
            call.stop(None)
        for call in left if not has("drops-at-end") else ():
            begun = call.begun and not has("counts-no-hand-back")
            keys = [QUEUE, FENCE, *([f"{PREFIX}pause:{SERVICE}:{call.entry}"] if begun else ())]
            kept = max(1, int(0 if has("note-of-a-minute") else (call.deadline - time.time()) * 1000) + 60_000)
            given = (call.entry, call.attempt, (1 if has("no-note-ttl") else kept) if begun else "")
            await self.script("recover/hand_back", keys, self.me, *call.fence, WAKE, SERVICE, *given)
            if has("sends-after-hand-back"):
                await asyncio.sleep(0.1)
                await self.send(call, call.frame(response="late"))
        await self.beside.leave()
        if not has("stays") and not has("no-retire"):
            await self.script("recover/retire", [QUEUE, FENCE, CANCELLED, TABLE, LIVE], self.me, SERVICE)
        os._exit(3 if has("exit-code") else 0)

    async def check_version(self) -> None:
        """End, and leave the registry, in a namespace of a version that this worker does not speak."""
        found = [int(value or 1) for value in await self.writing.hmget(f"{PREFIX}format", "version", "raising")]
        version = found[0] if has("ignores-raising") else max(found)
        if version == 1 or has("any-namespace"):
            return
        await self.leave_registry()
        await self.beside.leave()
        os.write(2, f"this worker speaks version 1, and the namespace is of version {version}, or raised to it\n".encode())
        os._exit(0 if has("ends-well") else 1)

    async def leave_registry(self) -> None:
        token = self.token if has("leaves-with-its-token") else uuid.uuid4().hex
        await self.script("registry/unregister", REGISTRY, PREFIX, token, KEYS_TTL, COOLDOWN, f"{SERVICE}/{self.me}")

    async def main(self) -> None:
        self.writing, self.reading, self.subscribing = connected(), connected(single_connection_client=True), connected()
        self.read_lock, self.begin_lock, self.beat_lock = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        self.reading_id = await self.reading.client_id()
        if has("evalsha-only"):
            await asyncio.gather(*map(self.writing.script_load, self.sources.values()))
        self.hearing = asyncio.Event()
        tasks = [asyncio.create_task(self.hear())]
        await self.hearing.wait()
        await self.register()
        if not (has("format-once") or has("looks-behind-taking")):
            await self.check_version()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: tasks.append(asyncio.create_task(self.drain())))
        # A task that fails ends the program, which the kit then tells of.
        await asyncio.gather(self.keep(), self.take(), tasks[0])


if __name__ == "__main__":
    asyncio.run(PlantedWorker().main())
