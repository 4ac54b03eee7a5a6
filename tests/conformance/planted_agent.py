"""An agent at level 3 of docs/protocol.md on redis-py alone, with faults of a table planted into it on demand.

Run: ``python -m tests.conformance.planted_agent FAULT,FAULT SCRIPTS``; the fault ``none`` is the agent that keeps everything. It is
driven as ``toolbus protocol conformance agent --help`` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

FAULTS = frozenset(sys.argv[1].split(",") if len(sys.argv) > 1 else ())
SCRIPTS = Path(sys.argv[2] if len(sys.argv) > 2 else "scripts")
PREFIX = f"tb:{{{os.environ.get('TOOLBUS_NAMESPACE', 'default')}}}:"
LEASE = float(os.environ.get("TOOLBUS_LEASE", "30"))
HOUR = 3_600_000
TTL = int(max(15.0, 2 * LEASE / 3) * 1000)
QUEUE_LIMIT = 10_000
GAP = 4 * LEASE / 3 + 2.0
REFUSED = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS")

SERVICES, NAMES, META, ITEMS, LIVE, LOG = (
    PREFIX + name for name in ("reg:services", "reg:names", "reg:meta", "reg:items", "live", "log")
)  # fmt: skip


def has(fault: str) -> bool:
    """Return whether a fault is planted."""
    return fault in FAULTS


def digest(*parts: Any) -> str:
    """Return the digest of a list."""
    whole = json.dumps(parts, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
    return hashlib.blake2b(whole, digest_size=16).hexdigest()


def tell(name: str, **event: Any) -> None:
    """Tell the kit of an event of a call."""
    sys.stdout.write(json.dumps({"call": name, **event}) + "\n")
    sys.stdout.flush()


class Tool:
    """A tool of the registry."""

    def __init__(self, service: str, queue: str, effect: str, *, sticky: bool, document: dict[str, Any] | None = None) -> None:
        self.service, self.queue, self.effect, self.sticky = service, queue, effect, sticky
        self.document = document or {}

    def takes(self, arguments: dict[str, Any]) -> bool:
        """Return whether all arguments are there that must be."""
        required = [each["name"] for each in self.document.get("arguments", ()) if each.get("required")]
        required += self.document.get("parameters", {}).get("required", [])
        return all(name in arguments for name in required)

    def is_for(self, user: str) -> bool:
        """Return whether a user may see it."""
        return user in self.document.get("tenants", [user])


class Call:
    """One call: what was published, and how far its frames have come."""

    def __init__(self, asked: dict[str, Any], tool: Tool) -> None:
        self.name, self.asked, self.tool = asked["call"], asked, tool
        self.id = uuid.uuid4().hex[:8] if has("short-id") else uuid.uuid4().hex
        # The call that runs for it, which is another one when it has joined that.
        self.runs = self.id
        self.entry = self.cancelled_as = ""
        self.timer: asyncio.TimerHandle | None = None
        self.run: tuple[int, int, str] | None = None
        self.banned: set[str] = set()
        self.frames: dict[int, dict[str, Any]] = {}
        self.next = 0
        self.text = self.told = ""
        self.output: str | None = None
        self.gap_since: float | None = None
        self.left = 0.0

    @property
    def session(self) -> tuple[str, str] | None:
        return (self.asked.get("user", ""), self.asked["session"]) if "session" in self.asked else None

    @property
    def record(self) -> str:
        return f"{PREFIX}key:{digest(self.asked.get('user', ''), self.asked['key'])}"

    @property
    def is_shared(self) -> bool:
        return "key" in self.asked and not has("no-share")

    def add(self, text: str) -> None:
        """Take text of the current run in, and tell what of it is news."""
        self.text += text
        if has("tells-at-end"):
            return
        if has("resets-always") or not (self.told.startswith(self.text) or self.text.startswith(self.told)):
            self.begin_anew()
        if len(self.text) > len(self.told):
            tell(self.name, text=self.text[len(self.told) :])
            self.told = self.text

    def begin_anew(self) -> None:
        """Tell that what was told is void."""
        if self.told and not (has("mixes-texts") or (has("resets-always") and self.text.startswith(self.told) and not self.banned)):
            tell(self.name, reset=True)
            self.told = ""
        elif self.told and has("mixes-texts"):
            self.told = ""


class PlantedAgent:
    """Calls what the kit asks for."""

    def __init__(self) -> None:
        self.me = "agent-1" if has("one-agent-id") else uuid.uuid4().hex
        self.replies = f"{PREFIX}rsp:{self.me}"
        self.flush = 0
        self.last = self.log_at = "0-0"
        self.token = self.missed = ""
        self.calls: dict[str, Call] = {}
        self.streams: dict[str, str] = {}
        self.followers: dict[str, set[str]] = {}
        self.tools: dict[str, Tool] = {}
        self.pins: dict[str, bytes] = {}
        self.states: dict[Any, str] = {}
        self.queues: set[str] = set()
        self.publishing = asyncio.Lock()
        self.sources = {str(path.relative_to(SCRIPTS))[:-4]: path.read_text() for path in SCRIPTS.rglob("*.lua")}

    async def script(self, name: str, keys: list[str], *args: Any) -> Any:
        """Run a script once."""
        source = self.sources[name]
        known = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        try:
            return await self.writing.evalsha(known, len(keys), *keys, *args)
        except redis.ResponseError as error:
            if not str(error).startswith(("NOSCRIPT", "No matching script")) or has("evalsha-only"):
                raise
        return await self.writing.eval(source, len(keys), *keys, *args)

    async def surely(self, name: str, keys: list[str], *args: Any) -> Any:
        """Run a script, and once more after a lost connection or a refusal."""
        while True:
            try:
                return await self.script(name, keys, *args)
            except redis.BusyLoadingError:
                if has("fails-on-loading"):
                    raise
            except redis.ConnectionError:
                if has("ends-with-connections"):
                    os._exit(1)
                if has("gives-up-on-cuts"):
                    raise
            except redis.ResponseError as error:
                again = str(error).startswith("NOTYET") and not has("fails-on-notyet")
                if not again and not str(error).startswith(REFUSED):
                    raise
            if has("new-numbers") and name == "publish/publish":
                self.flush += 1
                args = (self.flush, *args[1:])
            await asyncio.sleep(0.05)
            with contextlib.suppress(redis.RedisError):
                await self.listen()

    # -- publishing -------------------------------------------------------------------------------

    async def call(self, asked: dict[str, Any]) -> None:
        tool = self.tools.get(asked["tool"])
        if tool is None and asked.get("service"):
            tool = Tool(asked["service"], asked["service"], "", sticky=False)
        if tool is None or not (tool.is_for(asked.get("user", "")) or has("any-user")) or not self.is_allowed(asked["tool"], tool):
            tell(asked["call"], end={"text": "", "error": {"type": "not_found", "message": "no such tool"}})
            return
        if not tool.takes(asked.get("arguments", {})) and not has("any-arguments"):
            tell(asked["call"], end={"text": "", "error": {"type": "invalid_arguments", "message": "an argument is missing"}})
            return
        call = Call(asked, tool)
        self.calls[call.id] = call
        loop, timeout = asyncio.get_running_loop(), float(asked.get("timeout", 60))
        if not has("never-gives-up"):
            call.timer = loop.call_later(timeout, lambda: loop.create_task(self.give_up(call)))
        # No flush is sent while an earlier one is unanswered.
        async with asyncio.Lock() if has("unnamed-flushes") else self.publishing:
            try:
                await (self.share(call, timeout) if call.is_shared else self.publish(call, timeout))
            except redis.RedisError as error:
                self.end(call, {"type": "unavailable", "message": str(error)})

    def request(self, call: Call, timeout: float) -> dict[str, Any]:
        asked = call.asked
        found = {
            "id": call.id, "agent": self.me, "service": call.tool.service, "tool": asked["tool"],
            "arguments": asked.get("arguments", {}), "timeout": timeout, "effect": call.tool.effect,
        }  # fmt: skip
        found |= {name: asked[name] for name in ("user", "session") if name in asked}
        if "key" in asked:
            found |= {"idempotency_key": asked["key"], "shared": call.is_shared}
        if call.session and call.tool.sticky:
            self.queues.add(call.tool.queue)
            found |= {"ordered": not has("no-order")}
            if (token := self.states.get((call.session, call.tool.queue))) and not has("forgets-states"):
                found["state"] = token
        return found

    async def server_of(self, call: Call) -> str:
        """Return the run id of the server when work must not happen twice."""
        if call.tool.effect != "once" or has("no-server"):
            return ""
        return str((await self.writing.info("server"))["run_id"])

    async def publish(self, call: Call, timeout: float) -> None:
        request = self.request(call, timeout)
        number = random.randrange(1 << 30) if has("random-flushes") else self.flush
        self.flush = max(self.flush, number) + 1
        keys, bound = [f"{PREFIX}pub:{self.me}", f"{PREFIX}q:{call.tool.queue}"], str(QUEUE_LIMIT)
        if request.get("ordered"):
            keys.append(f"{PREFIX}order:{call.tool.queue}")
            bound += f" 3 {digest(*call.session)}" if call.session else ""
        document = json.dumps(request, ensure_ascii=False)
        within = 60_000 if has("wrong-deadline") else int(timeout * 1000)
        verdict = await self.surely("publish/publish", keys, number, 600_000, await self.server_of(call), 2, bound, within, document)
        await self.is_published(call, verdict.decode())

    async def share(self, call: Call, timeout: float) -> None:
        request = self.request(call, timeout)
        work = digest(call.tool.service, call.asked["tool"], {}, call.asked.get("arguments", {}), call.asked.get("session", ""))
        keys = [call.record, f"{PREFIX}q:{call.tool.queue}", f"{PREFIX}call:{call.id}"]
        args = (call.id, work, self.me, QUEUE_LIMIT, int(timeout * 1000), json.dumps(request), HOUR)
        wake = f"{PREFIX}wake:{call.tool.queue}"
        word, *rest = await self.surely("publish/share", keys, *args, await self.server_of(call), PREFIX, wake)
        if word in {b"queued", b"joined"}:
            call.runs = rest[1].decode() if word == b"joined" else call.id
            stream = f"{PREFIX}call:{call.runs}"
            self.followers.setdefault(call.runs, set()).add(call.id)
            if word == b"queued" or stream not in self.streams:
                self.streams[stream] = "0-0"
            elif not has("joins-at-end"):
                # Who joins is told what came before.
                for _, fields in await self.writing.xrange(stream, "-", self.streams[stream]):
                    self.read(fields, only=call.id)
            await self.is_queued(call, rest[0].decode())
        else:
            await self.is_published(call, {b"full": f"!{rest[0] if rest else 0}", b"absent": "-"}.get(word, "?"))

    async def is_published(self, call: Call, verdict: str) -> None:
        if verdict == "-":
            if not has("waits-for-absent"):
                self.end(call, {"type": "unavailable", "message": "nobody serves it"})
        elif verdict.startswith("!"):
            if not has("ignores-full"):
                self.end(call, {"type": "overloaded", "message": "the queue is full"})
        elif verdict == "?":
            self.end(call, {"type": "invalid_arguments", "message": "the key is of another call"})
        else:
            await self.is_queued(call, verdict)

    async def is_queued(self, call: Call, entry: str) -> None:
        call.entry = entry
        if call.cancelled_as and not has("forgets-early-cancels"):
            await self.cancel(call, call.cancelled_as)

    # -- cancelling -------------------------------------------------------------------------------

    async def give_up(self, call: Call) -> None:
        """End a call whose time is up."""
        if call.id not in self.calls:
            return
        error = {"type": "deadline_exceeded", "message": "the time was up", "retryable": True}
        if has("abandons"):
            self.end(call, error)
            return
        if call.tool.effect == "once" and not has("once-as-others"):
            fate = await self.cancel(call, "deadline_exceeded")
            self.end(call, error if fate == b"removed" else {"type": "outcome_unknown", "message": "it may have run"})
            return
        self.end(call, error)
        await self.cancel(call, "deadline_exceeded")

    async def cancel(self, call: Call, why: str) -> Any:
        call.cancelled_as = why
        if not call.entry or has("cancels-silently"):
            return b""
        queue = call.tool.queue
        keys = [f"{PREFIX}q:{queue}", f"{PREFIX}cancelled:{queue}"]
        args: list[Any] = [call.entry, call.runs, 60_000, f"{PREFIX}wake:{queue}"]
        if not has("no-reason"):
            args.append(why)
        if call.is_shared and not has("cancels-for-all"):
            keys.append(call.record)
            args += [call.id, PREFIX, "1" if call.tool.effect == "once" else "0"]
        return await self.surely("publish/cancel", keys, *args)

    # -- frames -----------------------------------------------------------------------------------

    def read(self, fields: dict[bytes, bytes], only: str = "") -> None:
        """Take in an entry of a reply stream."""
        if fields.get(b"o") == b"lost":
            self.last = "0-0"
        if b"f" not in fields:
            return
        try:
            frames = json.loads(fields[b"f"].decode())
            if not isinstance(frames, list):
                return
        except (ValueError, RecursionError):
            if has("trusts-frames"):
                os._exit(1)
            return
        for frame in frames:
            if not isinstance(frame, dict) or not isinstance(frame.get("id"), str):
                continue
            ids = {frame["id"], *self.followers.get(frame["id"], ())} if not only else {only}
            if has("mixes-calls") and self.calls:
                ids = {next(iter(self.calls))}
            for call in [self.calls[each] for each in ids if each in self.calls]:
                self.take(call, frame)

    def take(self, call: Call, frame: dict[str, Any]) -> None:
        run, seq = frame.get("run"), frame.get("seq", 0)
        place = (frame.get("epoch", 0), frame.get("attempt", 1))
        if not isinstance(run, str) or not all(isinstance(number, int) for number in (seq, *place)):
            return
        if not self.follow(call, place, run):
            return
        if self.is_malformed(frame):
            if frame.get("end_of_stream") and not has("ignores-malformed"):
                self.end(call, {"type": "outcome_unknown", "code": "malformed_frame", "message": "the end can't be read"})
            return
        if (frame.get("error") or {}).get("code") == "frames_refused" and not has("waits-for-refused"):
            self.end(call, frame["error"])
            return
        if has("skips-other-kinds") and frame.get("kind", "text") in {"start", "progress", "blob"}:
            return
        if has("tells-out-of-order") or (has("keeps-repeats") and seq < call.next):
            self.show(call, frame)
            call.next = max(call.next, seq + 1)
            return
        if seq >= call.next:
            call.frames[seq] = frame
        while call.id in self.calls and call.next in call.frames:
            call.next += 1
            self.show(call, call.frames.pop(call.next - 1))
        call.gap_since = (call.gap_since or time.monotonic()) if call.frames else None

    @staticmethod
    def is_malformed(frame: dict[str, Any]) -> bool:
        error, response, texts = frame.get("error"), frame.get("response"), frame.get("texts")
        return not (isinstance(error, dict | None) and isinstance(response, str | None) and isinstance(texts, list | None))

    def follow(self, call: Call, place: tuple[int, int], run: str) -> bool:
        """Return whether a frame of a run is to be taken in; a later run replaces the current one."""
        if call.run is None:
            call.run = (*place, run)
        if run == call.run[2]:
            return True
        if run in call.banned:
            return has("mixes-runs")
        is_earlier = place[1] < call.run[1] if has("ignores-epochs") else place < call.run[:2]
        if is_earlier and not has("takes-earlier-attempts"):
            return False
        call.banned.add(call.run[2])
        call.run, call.frames, call.next, call.output = (*place, run), {}, 0, None
        call.text = call.text if has("mixes-texts") else ""
        return True

    def show(self, call: Call, frame: dict[str, Any]) -> None:
        """Tell what a frame brings."""
        kind, response = frame.get("kind", "text"), frame.get("response")
        if kind == "text":
            texts = [] if has("ignores-texts") else frame.get("texts") or []
            call.add("".join(texts) or response or "")
        elif kind == "output" and not has("ignores-output"):
            call.output = (call.output or "") + (response or "")
        elif kind == "confirm":
            self.pause(call, frame.get("confirm") or {})
        elif kind == "reset" and not has("ignores-resets"):
            call.text, call.output = "", None
            call.begin_anew()
        if frame.get("end_of_stream"):
            error = None if has("ignores-errors") else frame.get("error")
            if call.session and frame.get("state"):
                self.states[call.session, call.tool.queue] = frame["state"]
            self.end(call, error, response if response is not None else call.output)

    def pause(self, call: Call, confirm: dict[str, Any]) -> None:
        """Let the call's time stand still while its handler waits for a person."""
        loop = asyncio.get_running_loop()
        if call.timer is None or has("time-runs-on"):
            return
        call.timer.cancel()
        if "timeout" in confirm:
            call.left = call.timer.when() - loop.time()
        within = call.left + float(confirm.get("timeout", 0))
        call.timer = loop.call_later(within, lambda: loop.create_task(self.give_up(call)))

    def end(self, call: Call, error: Any, whole: str | None = None) -> None:
        if call.id not in self.calls:
            return
        if error and error.get("code") == "not_begun" and call.runs != call.id and not has("ends-with-another"):
            # Another caller has cancelled what this one waits for.
            call.runs, call.run, call.frames, call.next = call.id, None, {}, 0
            left = call.timer.when() - asyncio.get_running_loop().time() if call.timer else 60.0
            self.again = asyncio.get_running_loop().create_task(self.share(call, left))
            return
        if not error and call.told != call.text and len(call.text) < len(call.told):
            call.begin_anew()
            call.add("")
        tell(call.name, end={"text": call.text if whole is None else whole, "error": error})
        if has("tells-every-end"):
            return
        del self.calls[call.id]
        if call.timer is not None:
            call.timer.cancel()
        for followers in self.followers.values():
            followers.discard(call.id)

    # -- reading ----------------------------------------------------------------------------------

    async def listen(self) -> None:
        """Make the reply stream, or renew it."""
        if has("no-ttl"):
            await self.writing.xadd(self.replies, {"o": "1"})
            return
        state = await self.writing.eval(self.sources["publish/listen"], 1, self.replies, TTL, self.last)
        if state:
            self.last = "0-0"

    async def follow_streams(self) -> None:
        while True:
            streams: dict[Any, Any] = {self.replies: self.last, **self.streams}
            if not has("no-log"):
                streams[LOG] = self.log_at
            try:
                found = await self.reading.xread(streams, count=512, block=200)
            except redis.ConnectionError:
                if has("ends-with-connections"):
                    os._exit(1)
                await self.read_again()
                continue
            for name, entries in found.items() if isinstance(found, dict) else found or ():
                for entry, fields in entries[0] if isinstance(found, dict) else entries:
                    await self.take_in(name.decode(), entry.decode(), fields)
            if found and not has("never-trims") and self.last != "0-0":
                milliseconds, _, number = self.last.partition("-")
                with contextlib.suppress(redis.ConnectionError):
                    await self.writing.xtrim(self.replies, minid=f"{milliseconds}-{int(number) + 1}", approximate=False)

    async def read_again(self) -> None:
        """Go on after a lost connection."""
        await asyncio.sleep(0.05)
        with contextlib.suppress(redis.RedisError):
            await self.listen()
            if has("skips-after-cut"):
                newest = await self.writing.xrevrange(self.replies, count=1)
                self.last = newest[0][0].decode() if newest else self.last
            await self.load()

    async def take_in(self, name: str, entry: str, fields: dict[bytes, bytes]) -> None:
        if name == LOG:
            await self.follow_log(entry, {key.decode(): value.decode() for key, value in fields.items()})
            return
        if name == self.replies:
            self.last = entry
        else:
            self.streams[name] = entry
        self.read(fields)

    # -- the registry -----------------------------------------------------------------------------

    async def load(self) -> None:
        """Load the registry, and note up to where the log is in it."""
        newest = await self.writing.xrevrange(LOG, count=1)
        self.log_at = newest[0][0].decode() if newest else "0-0"
        self.token = (await self.writing.hget(META, "token") or b"").decode()
        self.tools.clear()
        self.pins = {key.decode(): pin for key, pin in (await self.writing.hgetall(f"{PREFIX}reg:pins")).items()}
        for service, row in (await self.writing.hgetall(SERVICES)).items():
            self.publish_tools(service.decode(), row[1:])

    def is_allowed(self, name: str, tool: Tool) -> bool:
        """Return whether a tool's pin allows its form; all do that have none."""
        pin = self.pins.get(f"pin/{name}")
        if pin is None or has("no-pins"):
            return True
        try:
            found = json.loads(pin)
        except ValueError:
            return has("ignores-unreadable-pins")
        form = {key: value for key, value in tool.document.items() if key not in {"timeout", "output_limit"} and value}
        whole = json.dumps(form, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()
        is_form = found.get("canonical") == hashlib.blake2b(whole, digest_size=32).hexdigest()
        return found.get("state") == "approved" and (is_form or has("any-form"))

    def publish_tools(self, service: str, document: bytes | str) -> None:
        """Take the tools of a publication in, one by one."""
        self.tools = {name: tool for name, tool in self.tools.items() if tool.service != service}
        if has("no-registry"):
            return
        whole = json.loads(document)
        queue = whole["service"].get("request-queue") or service
        effects = {"", "read", "idempotent", "once"}
        wrong = [tool for tool in whole["tools"] if tool.get("effect", "") not in effects or " " in tool["name"]]
        if wrong and has("all-or-nothing"):
            return
        for tool in whole["tools"]:
            if tool not in wrong or has("takes-wrong-tools"):
                sticky = bool(whole["service"].get("sticky-sessions"))
                self.tools[tool["name"]] = Tool(service, queue, tool.get("effect", ""), sticky=sticky, document=tool)

    async def follow_log(self, entry: str, fields: dict[str, str]) -> None:
        self.log_at = entry
        if fields.get("prev", "") != self.token and not has("ignores-gaps"):
            await self.load()
            return
        self.token = fields.get("token", "")
        if fields.get("op") in {"up", "down"}:
            self.publish_tools(fields["key"], fields["doc"])
        elif fields.get("op") == "gone":
            self.tools = {name: tool for name, tool in self.tools.items() if tool.service != fields["key"]}

    async def sweep(self) -> None:
        """Take workers whose lease has ended out of the registry."""
        seconds, micros = await self.writing.time()
        now = seconds * 1000 + micros // 1000
        for member in await self.writing.zrangebyscore(LIVE, "-inf", now):
            service = member.decode().rpartition("/")[0]
            table = f"{PREFIX}reg:s:{service}"
            queue = (await self.writing.hget(table, "queue") or service.encode()).decode()
            keys = [SERVICES, NAMES, META, ITEMS, LIVE, LOG, table, *(f"{PREFIX}{kind}:{queue}" for kind in ("q", "fence", "cancelled"))]
            await self.script(
                "registry/unregister", keys, PREFIX, uuid.uuid4().hex, HOUR, 60_000, member, "ended", now, int(LEASE * 1000), HOUR
            )  # fmt: skip

    async def keep(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(LEASE / 3)
            turn += 1
            with contextlib.suppress(redis.ConnectionError):
                if not has("no-renew"):
                    if has("no-remake") and not await self.writing.exists(self.replies):
                        continue
                    await self.listen()
                await self.look_at_token()
                if turn % 3 == 0 and turn > 3 and not has("no-sweep"):
                    await self.sweep()

    async def look_at_token(self) -> None:
        if has("ignores-token"):
            return
        token = (await self.writing.hget(META, "token") or b"").decode()
        if token != self.token and token == self.missed:
            await self.load()
        self.missed = token

    async def end_gaps(self) -> None:
        """End calls whose missing frames do not come."""
        while not has("waits-for-gaps"):
            await asyncio.sleep(0.1)
            for call in list(self.calls.values()):
                if call.gap_since is not None and time.monotonic() - call.gap_since > GAP:
                    self.end(call, {"type": "outcome_unknown", "code": "frames_missing", "message": "frames are missing"})

    # -- the beginning and the end ----------------------------------------------------------------

    async def obey(self, line: bytes) -> None:
        asked = json.loads(line)
        if "call" in asked:
            await self.call(asked)
            return
        if "close" in asked:
            for queue in self.queues if not has("keeps-sessions-open") else ():
                await self.writing.publish(f"{PREFIX}wake:{queue}", f"end {json.dumps([asked['user'], asked['close']])}")
            return
        for call in list(self.calls.values()):
            if call.name == asked["cancel"]:
                self.end(call, {"type": "cancelled", "message": "cancelled by the caller"})
                await self.cancel(call, "cancelled")

    async def main(self) -> None:
        options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
        self.writing = redis.from_url(os.environ["TOOLBUS_URL"], **options)
        self.reading = redis.from_url(os.environ["TOOLBUS_URL"], **options)
        version = int(await self.writing.hget(f"{PREFIX}format", "version") or 1)
        if version != 1 and not has("any-namespace"):
            sys.exit(f"this agent speaks version 1, and the namespace is of version {version}")
        if has("evalsha-only"):
            await asyncio.gather(*map(self.writing.script_load, self.sources.values()))
        await self.listen()
        await self.load()
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        own = [asyncio.create_task(task()) for task in (self.follow_streams, self.keep, self.end_gaps)]
        asked = set()
        async for line in lines:
            asked.add(task := asyncio.create_task(self.obey(line)))
            task.add_done_callback(asked.discard)
        for task in own:
            task.cancel()
        if not has("leaves-silently"):
            for queue in self.queues:
                await self.writing.publish(f"{PREFIX}wake:{queue}", f"left {self.me}")
        if not has("leaves-keys"):
            await self.writing.delete(self.replies, f"{PREFIX}pub:{self.me}")
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(PlantedAgent().main())
