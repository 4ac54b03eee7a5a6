"""Calls that the kit makes of a worker under test, and the frames that come of them."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

import msgspec

from toolbus.bus.broker.lease.dead_letters import DEAD_LETTER_TTL
from toolbus.bus.broker.replies.finish import MOST_BYTES
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.broker.transport.opening import Probe
from toolbus.bus.values.envelope import Frame
from toolbus.bus.values.settings import Settings
from toolbus.operations.conformance.checks import Broken, NotChecked, broken_if, not_checked_if, until
from toolbus.operations.conformance.scene import BESIDE, LEASE, MOST_WRITTEN, SERVICE, Program, fields_of, shown
from toolbus.operations.conformance.worker_calls import SLACK, TAKES_OVER, Frames, check_run, error_of, text_of
from toolbus.operations.conformance.worker_registry import RegisteredWorker

_ANSWERS = 10.0
# Bytes of an entry with one frame: each byte of a piece may take six in JSON.
_MOST_ENTRY = 6 * 65_536 + 4_096


class Sent(msgspec.Struct):
    """A request that was published: its correlation id, the entry's id, and the document."""

    id: str
    entry: str
    document: bytes = b""

    def is_named_in(self, words: list[bytes]) -> bool:
        """Return whether a command has the id of the call, as those have that append its frames."""
        return any(self.id.encode() in word for word in words)

    def __str__(self) -> str:
        """Return what a reader of a problem knows the call by: its id, its tool, and its arguments."""
        tool, _, arguments = self.document.partition(b'"tool": ')[2].partition(b', "arguments": ')
        return f"the call {self.id} of {tool.decode('utf-8', 'replace')} {arguments[:100].decode('utf-8', 'replace')}"


class WorkerScene(RegisteredWorker):
    """Publishes requests as they stand, and reads the frames as they come."""

    def __init__(self, settings: Settings, probe: Probe, program: Program) -> None:
        super().__init__(settings, probe, program)
        self.agent = secrets.token_hex(16)
        self.dead_letters = self.keys.dead_letters(SERVICE)
        # How many calls it runs at the same time, once that was measured.
        self.slots = 0
        self._read = "0-0"
        # Several checks of one moment read the stream together.
        self._reading = asyncio.Lock()
        self._frames: dict[str, Frames] = {}
        self._size = 0

    def forget_frames(self) -> None:
        """Forget the frames that were seen until now."""
        self._frames.clear()
        self._size = 0

    def seen(self) -> tuple[str, ...]:
        """Return the last frames that the worker sent, as JSON that is short enough to read."""
        return shown([frame for frames in self._frames.values() for frame in frames])

    async def prepare(self) -> None:
        """Have one worker in the registry, and a reply stream of this agent."""
        if self._worker is None or self._worker.returncode is not None:
            self._worker = await self.program.start()
        await self.joined(set(), f"no worker of {SERVICE!r} is in the registry")
        await self.listen()

    async def finish(self, *, held: bool) -> None:
        """After a fault, or a check that leaves requests behind, stop the worker and empty the server."""
        await self._dismiss()
        # What must run alone in the next check would wait for what still runs of this one.
        if held and not any([await self.probe.run("XLEN", self.keys.queue(service)) for service in (SERVICE, BESIDE)]):
            return
        await self.kill_worker()
        await self.probe.run("FLUSHDB")
        self._read = "0-0"

    # -- requests -----------------------------------------------------------------------------------

    async def draw_agent(self) -> None:
        """Be another agent, with a reply stream of its own."""
        self.agent, self._read = secrets.token_hex(16), "0-0"
        await self.listen()

    async def draw_neighbour(self) -> str:
        """Return the id of another agent, which has a reply stream beside this one's."""
        agent = secrets.token_hex(16)
        await self.probe.script(scripts.LISTEN, (self.keys.replies(agent),), 600_000, "0-0")
        return agent

    async def listen(self) -> None:
        """Make the reply stream of this agent, and keep it alive for a while."""
        await self.probe.script(scripts.LISTEN, (self.keys.replies(self.agent),), 600_000, self._read)

    async def publish(self, role: str, arguments: dict[str, Any], *, due: object = None, more: tuple[str, ...] = (), **fields: Any) -> Sent:
        """Publish a request.

        Args:
            role: ``echo``, ``count``, …, or an unknown one.
            arguments: of the tool.
            due: text in place of the deadline of the entry.
            more: further fields of the entry, and their values.
            **fields: further fields of the request; ``timeout`` has the seconds until the deadline.
        """
        call, document, in_time = self.unsent(role, arguments, **fields)
        queue = self.keys.queue(fields.get("service", SERVICE))
        return Sent(call, await self.add(document, in_time if due is None else str(due), *more, queue=queue), document)

    def unsent(self, role: str, arguments: dict[str, Any], *, timeout: float = 30.0, **fields: Any) -> tuple[str, bytes, str]:
        """Return the id, the document and the deadline of a request that is not published yet."""
        service = fields.get("service", SERVICE)
        request = {
            "id": secrets.token_hex(16), "agent": self.agent, "service": service, "tool": f"{service}-{role}", "arguments": arguments,
            "timeout": timeout, **fields,
        }  # fmt: skip
        return request["id"], json.dumps(request, ensure_ascii=False).encode(), str(int((time.time() + timeout) * 1000))

    async def add(self, document: bytes, due: str, *more: str, queue: str = "") -> str:
        """Append an entry to the queue, or another one, and return its id."""
        entry = await self.probe.run("XADD", queue or self.queue, "NOMKSTREAM", "*", "r", document, "d", due, *more)
        broken_if(entry is None, "the worker's request stream does not exist")
        return str(entry.decode())

    async def call_stream(self) -> str:
        """Make the stream of a shared call, and return the call's id."""
        call = secrets.token_hex(16)
        await self.probe.run("XADD", self.keys.call(call), "*", "o", "made")
        await self.probe.run("PEXPIRE", self.keys.call(call), 60_000)
        return call

    async def unseen(
        self, role: str, arguments: dict[str, object], consumer: str, deliveries: int, *, due: object = None, **fields: Any
    ) -> Sent:
        """Publish a request that the worker is not delivered, because a consumer took it first; ``due`` is in place of its deadline."""
        call, document, in_time = self.unsent(role, arguments, **fields)
        [sent] = await self._add_together([(call, document, in_time if due is None else str(due))], (SERVICE,), consumer, deliveries)
        return sent

    async def orphan(self, role: str, arguments: dict[str, Any], deliveries: int = 1, **fields: Any) -> Sent:
        """Publish a request that a worker took which is known to have ended; ``fields`` are those of ``unseen``."""
        return await self.unseen(role, arguments, await self.play_worker(lives=False), deliveries, **fields)

    async def publish_together(
        self, number: int, arguments: dict[str, Any], *, services: tuple[str, ...] = (SERVICE,), consumer: str = "", **fields: Any
    ) -> list[Sent]:
        """Publish calls of `count` in one script, by turns for some services, and return them.

        With a consumer, they are handed to it, and the worker is not delivered them. One by one, a quick worker would never hold many.
        """
        calls = [self.unsent("count", arguments, service=services[at % len(services)], **fields) for at in range(number)]
        return await self._add_together(calls, services, consumer, 1)

    async def _add_together(
        self, calls: list[tuple[str, bytes, str]], services: tuple[str, ...], consumer: str, deliveries: int
    ) -> list[Sent]:
        """Append entries in one script, so that nobody is delivered anything between the commands."""
        entries = await self.probe.run(
            "EVAL",
            "local ids = {} for i = 3, #ARGV, 2 do local key = KEYS[#ids % #KEYS + 1] "
            "ids[#ids + 1] = redis.call('XADD', key, '*', 'r', ARGV[i], 'd', ARGV[i + 1]) if ARGV[1] ~= '' then "
            "redis.call('XGROUP', 'SETID', key, 'g', ids[#ids]) "
            "redis.call('XCLAIM', key, 'g', ARGV[1], 0, ids[#ids], 'RETRYCOUNT', ARGV[2], 'FORCE', 'JUSTID') end end return ids",
            len(services), *map(self.keys.queue, services), consumer, deliveries, *(part for _, *parts in calls for part in parts),
        )  # fmt: skip
        return [Sent(call, entry.decode(), document) for entry, (call, document, _) in zip(entries, calls, strict=True)]

    async def is_finished(self, sent: Sent) -> bool:
        """Return whether a request was acknowledged and deleted."""
        return not await self.waits(sent.entry)

    async def wait_until_gone(self, sent: Sent, within: float = 5.0) -> None:
        """Wait until a request was acknowledged and deleted."""
        await until(lambda: self.is_finished(sent), within, "the request was not acknowledged and deleted after its end")

    async def holder(self, sent: Sent) -> tuple[str, int, int]:
        """Return the consumer that has a request, its idle time (ms) and its delivery count; empty when nobody has it."""
        found = await self.probe.run("XPENDING", self.queue, "g", sent.entry, sent.entry, 1)
        return (found[0][1].decode(), int(found[0][2]), int(found[0][3])) if found else ("", 0, 0)

    async def is_running(self, sent: Sent) -> bool:
        """Return whether a worker has a request, and did not hand it back."""
        holder, _, _ = await self.holder(sent)
        return bool(holder) and not holder.startswith("~back")

    async def check_renewed(self, sent: Sent, what: str) -> None:
        """Check that an entry was renewed within the last lease, if a worker has it.

        Raises:
            Broken: it was not; ``what`` says which one.
        """
        _, idle, _ = await self.holder(sent)
        broken_if(idle > LEASE * 1000, f"{what} was not renewed for {idle / 1000:.1f} s, more than a lease")

    async def check_untaken(self, sent: Sent, seconds: float, problem: str) -> None:
        """Check for some seconds that the worker does not take a request.

        Raises:
            Broken: it does; ``problem`` says so.
        """
        for _ in range(int(seconds / 0.1)):
            await asyncio.sleep(0.1)
            broken_if(await self.frames(sent) or await self.is_running(sent), problem)

    async def waits_for(self, sent: Sent, worker: str) -> bool:
        """Return whether a request was handed over to a worker."""
        holder, _, _ = await self.holder(sent)
        return holder == f"~to:{worker}"

    async def wait_until_passed_on(self, sent: Sent, worker: str, which: str) -> None:
        """Wait until a request was handed over to a worker; ``which`` says who that is.

        Raises:
            Broken: it is not, or is answered first.
        """

        async def waits_there() -> bool:
            if frames := await self.frames(sent):
                error = error_of(frames)
                raise Broken(f"it was run{error and f', or ended as {error!r},'} although {which} lives")
            return await self.waits_for(sent, worker)

        await until(waits_there, 5.0, f"it does not wait for {which}")

    async def move(self, sent: Sent, to: str) -> bool:
        """Move an entry from the worker to another. As with every script that does so, who loses it gets another counter in the fence.

        Returns:
            False when the call had ended before.
        """
        mine, _, _ = await self.holder(sent)
        moved = await self.probe.run(
            "EVAL",
            "if #redis.call('XCLAIM', KEYS[1], 'g', ARGV[2], 0, ARGV[3], 'RETRYCOUNT', 2, 'JUSTID') == 0 then return 0 end "
            "redis.call('HSET', KEYS[2], 'c:' .. ARGV[1], ARGV[4]) return 1",
            2, self.queue, self.fence, mine, to, sent.entry, secrets.token_hex(8),
        )  # fmt: skip
        return bool(moved)

    async def keep(self, sent: Sent, owner: str, deliveries: int = 2) -> None:
        """Renew an entry that a worker holds which the kit plays."""
        await self.probe.run("XCLAIM", self.queue, "g", owner, 0, sent.entry, "RETRYCOUNT", deliveries, "JUSTID")

    async def remove(self, sent: Sent) -> None:
        """Take an entry out of the queue, as its worker does at its end."""
        await self.probe.run("XACK", self.queue, "g", sent.entry)
        await self.probe.run("XDEL", self.queue, sent.entry)

    # -- frames -------------------------------------------------------------------------------------

    async def _take_in(self, stream: str = "") -> None:
        """Read new frames; every one of them must be readable."""
        found = await self.probe.run("XRANGE", stream or self.keys.replies(self.agent), "-" if stream else f"({self._read}", "+")
        for entry, flat in found:
            if not stream:
                self._read = entry.decode()
            fields = fields_of(flat)
            if b"f" not in fields:
                continue
            self._size += len(fields[b"f"])
            broken_if(self._size > MOST_WRITTEN, f"its frames in one check have more than {MOST_WRITTEN:,} bytes")
            if len(fields[b"f"]) > _MOST_ENTRY:
                raise Broken(f"an entry of the reply stream has {len(fields[b'f']):,} bytes, more than {_MOST_ENTRY:,}")
            try:
                frames = json.loads(fields[b"f"].decode("utf-8"))
            except ValueError as error:
                raise Broken(f"an entry of the reply stream is no JSON in UTF-8: {error}") from None
            broken_if(not isinstance(frames, list), "the field f of an entry of the reply stream is no list of frames")
            # Without what joins them.
            if len(frames) > 1 and len(fields[b"f"]) - len(frames) - 1 > MOST_BYTES:
                raise Broken(f"an entry of {len(frames)} frames has {len(fields[b'f']):,} bytes, more than {MOST_BYTES:,}")
            for frame in frames:
                try:
                    msgspec.convert(frame, Frame)
                except (msgspec.ValidationError, RecursionError) as error:
                    raise Broken(f"a frame is none by schemas/frames.json: {error}: {str(frame)[:200]}") from None
                self._frames.setdefault(frame["id"], []).append(frame)

    async def frames(self, sent: Sent) -> Frames:
        """Return the frames of a request that have come until now."""
        async with self._reading:
            await self._take_in()
        return self._frames.get(sent.id, [])

    async def has_ended(self, sent: Sent) -> bool:
        """Return whether the end of a request has come.

        Raises:
            Broken: the program has ended.
        """
        self.program.check_alive()
        return any(frame.get("end_of_stream") for frame in await self.frames(sent))

    async def ended(self, sent: Sent, within: float = _ANSWERS, problem: str = "") -> Frames:
        """Return the frames of a request when its end has come.

        Raises:
            Broken: it did not come; ``problem`` says what that means.
        """
        await until(lambda: self.has_ended(sent), within, problem or f"no frame with end_of_stream came for {sent}")
        return self._frames[sent.id]

    async def wait_for_text(self, sent: Sent) -> None:
        """Wait until a call has sent text."""

        async def has_text() -> bool:
            return any(
                (frame.get("kind", "text") == "text" and frame.get("response")) or frame.get("texts") for frame in await self.frames(sent)
            )

        await until(has_text, 5.0, "no text came")

    async def begun(self, to: int, delay: float = 0.1, **fields: Any) -> Sent:
        """Publish a request to count, and return it when text has come; ``fields`` are those of ``publish``."""
        sent = await self.publish("count", {"to": to, "delay": delay}, **fields)
        await self.wait_for_text(sent)
        return sent

    async def runs_as(self, sent: Sent, attempt: int) -> bool:
        """Return whether text of an attempt has come."""
        return any(frame.get("attempt", 1) == attempt and not frame.get("end_of_stream") for frame in await self.frames(sent))

    async def check_order(self, first: Sent, second: Sent, problem: str) -> None:
        """Wait for the end of a call, and check that another one has not begun before.

        Raises:
            Broken: it has; ``problem`` says so.
        """
        while True:
            has_begun = bool(await self.frames(second))
            # Looked at last, since both may have happened between two looks.
            if await self.has_ended(first):
                return
            broken_if(has_begun, problem)
            await asyncio.sleep(0.02)

    async def shared_end(self, sent: Sent) -> Frames:
        """Return the frames of a shared call, which has a stream of its own, when its end has come."""

        async def found() -> Frames:
            frames = await self.frames_in(self.keys.call(sent.id), sent)
            return frames if any(frame.get("end_of_stream") for frame in frames) else []

        return await until(found, 10.0, "no end came in the call's stream")

    async def frames_in(self, stream: str, sent: Sent) -> Frames:
        """Return the frames of a request in another stream than that of this agent."""
        async with self._reading:
            size, mine, self._frames = self._size, self._frames, {}
            await self._take_in(stream)
            found = self._frames.get(sent.id, [])
            # It is read from its beginning each time: what is not asked for would be there twice.
            self._size, self._frames = size, {**mine, sent.id: found}
        return found

    # -- calls --------------------------------------------------------------------------------------

    async def call_echo(self, text: str, role: str = "echo", **fields: Any) -> Sent:
        """Call the tool that returns its text, check its frames, and return the request."""
        sent = await self.publish(role, {"text": text}, **fields)
        frames = await self.ended(sent)
        check_run(frames)
        if error_of(frames) or text_of(frames) != text:
            raise Broken(f"{role} of {text[:40]!r} answered {text_of(frames)[:40]!r} {frames[-1].get('error') or ''}")
        return sent

    async def need_slots(self, number: int) -> int:
        """Return how many calls the worker runs at the same time, 5 at most; go on if that is enough.

        Raises:
            NotChecked: it runs fewer.
        """
        if not self.slots:
            sent = [await self.publish("count", {"to": 10, "delay": 0.1}) for _ in range(5)]

            async def has_one_ended() -> bool:
                # All that has come until the last look at the stream: an end stands before what begins in its slot.
                frames = [await self.frames(each) for each in sent]
                ended = [any(frame.get("end_of_stream") for frame in each) for each in frames]
                self.slots = max(self.slots, sum(bool(each) for each in frames) - sum(ended))
                return any(ended)

            await until(has_one_ended, 10.0, "none of five calls of a second ended")
            for each in sent:
                await self.ended(each)
        not_checked_if(self.slots < number, f"it runs {self.slots} of 5 calls at the same time, and the check needs {number}")
        return self.slots

    async def begin_beside(self) -> tuple[Sent, str] | None:
        """Begin a call of another agent, and return it with the agent's id; None when the worker runs one call at a time."""
        if await self.need_slots(1) < 2:
            return None
        agent = await self.draw_neighbour()
        sent = await self.publish("count", {"to": 20, "delay": 0.1}, agent=agent)
        await until(lambda: self.frames_in(self.keys.replies(agent), sent), 5.0, "no text came for another agent")
        return sent, agent

    async def check_beside(self, beside: tuple[Sent, str] | None) -> None:
        """Check that a call of another agent goes on to its end.

        Raises:
            Broken: it does not.
        """
        if beside is None:
            return
        sent, agent = beside
        await self.wait_until_gone(sent, 10.0)
        frames = await self.frames_in(self.keys.replies(agent), sent)
        check_run(frames)
        if error := error_of(frames):
            raise Broken(f"the call of another agent, whose frames are read, ended as {error}")

    async def taken_over(self, sent: Sent) -> Frames:
        """Tell the worker that there is something to take over, and return the frames with which it answered."""
        await self.tell(f"dead {SERVICE}")
        return await self.ended(sent, TAKES_OVER)

    async def takes_at_a_message(self, word: str) -> None:
        """Check that a message has the worker run `reap.lua` at once: ``dead``, ``back`` or ``to``.

        Raises:
            Broken: it takes what there is only when it looks by itself.
        """
        instance = await self.only_instance()
        for _ in range(3):
            await self.just_reaped()
            waits = {"back": "~back", "to": f"~to:{instance}"}
            sent = await self.unseen("echo", {"text": word}, waits.get(word) or await self.play_worker(lives=False), 1)
            begun = time.monotonic()
            await self.tell(f"{word} {instance} {SERVICE}" if word == "to" else f"{word} {SERVICE}")
            await self.ended(sent, TAKES_OVER)
            # It looks three times a lease by itself, and the last time may have been seen late.
            if time.monotonic() - begun < LEASE / 8:
                return
        raise Broken(f"the message `{word}` changes nothing: it takes what there is when it looks three times a lease")

    async def just_renewed(self) -> None:
        """Wait until the worker has renewed what it holds, so that it soon won't again."""
        sent = await self.begun(40)
        _, before, _ = await self.holder(sent)

        async def is_renewed() -> bool:
            nonlocal before
            _, idle, _ = await self.holder(sent)
            before, was = idle, before
            return idle < was

        await until(is_renewed, LEASE + SLACK, "it does not renew what it holds")

    async def moved_after_a_renewal(self, other: str, beside: int = 0) -> tuple[Sent, list[Sent]]:
        """Return a call that runs and was moved to another worker, and others that run beside it.

        All of them end before the worker renews what it holds again, so that its ends alone can show that it lost the first one.
        """
        await self.just_renewed()
        for _ in range(5):
            sent, *others = [await self.publish("count", {"to": 3, "delay": 0.1}) for _ in range(1 + beside)]
            for each in (sent, *others):
                await self.wait_for_text(each)
            if await self.move(sent, other):
                return sent, others
            for each in others:
                await self.ended(each)
        raise NotChecked("its calls of 0.3 s had ended before they could be moved")

    async def check_letter(self, entry: str, reason: str, attempts: int, document: bytes, about: str) -> None:
        """Check the dead letter of an entry.

        Args:
            entry: its id.
            reason, attempts: fields of the letter.
            document: of the request; one that is JSON may be written in another way, without what is at its default.
            about: the request, in words.

        Raises:
            Broken: there is none, or it says something else.
        """
        letters = [fields_of(flat) for _, flat in await self.probe.run("XRANGE", self.dead_letters, "-", "+")]
        letter = next((fields for fields in letters if fields.get(b"entry") == entry.encode()), None)
        if letter is None:
            raise Broken(f"{about} has not become a dead letter")
        reason_of, attempts_of, kept = (letter.get(name, b"").decode("utf-8", "replace") for name in (b"reason", b"attempts", b"r"))
        for field, found, wanted in (("reason", reason_of, reason), ("attempts", attempts_of, str(attempts))):
            broken_if(found != wanted, f"the dead letter of {about} has {found!r} in its field {field!r} instead of {wanted!r}")
        if kept != document.decode("utf-8", "replace") and not _is_same_request(kept, document):
            raise Broken(f"the dead letter of {about} does not have the request in its field 'r', but {kept[:60]!r}")
        await self.check_ttl(self.dead_letters, DEAD_LETTER_TTL, "dead_letter_ttl")

    async def new_session(self) -> tuple[str, dict[str, Any]]:
        """Return the key of the owner of a new session, and the fields of its requests.

        Raises:
            NotChecked: the service has no sessions.
        """
        not_checked_if(not (await self.publication()).service.sticky_sessions, "its service has no sticky-sessions")
        session = {"user": "kit", "session": secrets.token_hex(8)}
        return self.keys.session(SERVICE, session_digest(*session.values())), session


def _is_same_request(kept: str, document: bytes) -> bool:
    try:
        one, other = json.loads(kept), json.loads(document)
        return all(one[name] == other[name] for name in ("id", "tool", "arguments"))
    except (ValueError, TypeError, LookupError, RecursionError):
        return False
