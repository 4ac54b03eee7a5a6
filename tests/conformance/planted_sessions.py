"""Sessions, marks and confirmations of the worker with planted faults, ``planted_worker.py``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from typing import Any

import redis.asyncio as redis

from tests.conformance.planted_calls import (
    FENCE,
    HOUR,
    LEASE_MS,
    LIVE,
    PREFIX,
    PULSE,
    QUEUE,
    SERVICE,
    TABLE,
    WAKE,
    Call,
    Stop,
    digest,
    failed,
    has,
)


class Sessions:
    """Marks, sessions, and people who are asked.

    Attributes:
        states: the token of each session's state.
        users: the agents of each session.
        alone: when the last agent of a session went, in monotonic seconds.
        cleaned: how many sessions were cleaned up after.
        later: later deadlines, by the id of the call.
    """

    writing: redis.Redis
    me: str
    fence: tuple[Any, Any]

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self.later: dict[str, float] = {}
        self.states: dict[tuple[str, str], str] = {}
        self.users: dict[tuple[str, str], set[str]] = {}
        self.alone: dict[tuple[str, str], float] = {}
        self.cleaned = 0
        self.allowed: dict[str, asyncio.Event] = {}

    async def script(self, name: str, keys: list[str], *args: Any) -> Any:
        """Run a script of the protocol."""
        raise NotImplementedError

    async def send(self, call: Call, *frames: dict[str, Any]) -> None:
        """Append frames."""
        raise NotImplementedError

    async def wait_for_line(self, call: Call) -> None:
        assert call.session is not None
        args = (digest(*call.session), call.entry, call.fields["p"])
        while (await self.script("sessions/line", [QUEUE, f"{PREFIX}order:{SERVICE}"], *args))[0]:  # noqa: ASYNC110 - it asks the server
            await asyncio.sleep(0.05)

    async def own(self, call: Call) -> None:
        """Ask for the session of a call, and for its state."""
        assert call.session is not None
        keys = [QUEUE, FENCE, LIVE, PULSE, TABLE, f"{PREFIX}sess:{SERVICE}:{digest(*call.session)}"]
        args = (self.me, SERVICE, call.fence[0], LEASE_MS, HOUR, WAKE, 6, call.entry, call.attempt, 0)
        generation, before, after, (verdict,) = await self.script("sessions/own", keys, *args)
        for each in (self, *self.calls.values()):
            if each.fence == (generation, before):
                each.fence = (generation, after)
        if verdict == b"lost" or (verdict == b"moved" and not has("keeps-foreign-sessions")):
            raise Stop(None)
        known = self.states.get(call.session, "")
        named = call.request.get("state", "")
        if not known:
            known = self.states[call.session] = uuid.uuid4().hex
        if named not in {"", "new", known} and not has("ignores-state"):
            call.restarted = True
        call.token = named if has("ignores-state") and named else known

    async def mark(self, call: Call) -> None:
        """Say that a handler begins which must not run twice."""
        server = (await self.writing.info("server"))["run_id"]
        if call.fields.get("s", server) != server and not has("ignores-run-id"):
            raise failed("outcome_unknown", "published for another server")
        if has("no-mark"):
            return
        args = (self.me, *call.fence, call.entry, call.attempt, call.run, HOUR)
        (verdict,) = await self.script("take/start", [QUEUE, FENCE, f"{PREFIX}started:{call.id}"], *args)
        if verdict == b"lost":
            raise Stop(None)
        if verdict == b"began" and not has("reruns-once"):
            raise failed("outcome_unknown", "it began before")
        call.began_once = True

    async def ask(self, call: Call, question: str) -> None:
        """Ask a person, and let the time of the call stand still meanwhile.

        Raises:
            Stop: the person does not allow it.
        """
        asked, since, most = uuid.uuid4().hex, int(time.time() * 1000), 20_000
        deadline = int(call.deadline * 1000)
        await self.note(call, deadline, since, since + most)
        if not has("counts-waits"):
            self.extend(call.id, deadline + most)
        about = {"asker": "worker", "service": SERVICE, "tool": f"{SERVICE}-ask", "user": call.request.get("user", ""),
                 "session": call.request.get("session", ""), "question": question}  # fmt: skip
        digest_of = digest(*about.values(), {}, size=32)
        document = json.dumps({**about, "id": asked, "call": call.id, "owner": "planted", "arguments": "{}", "digest": digest_of})
        keys, found = [f"{PREFIX}confirm:{asked}", f"{PREFIX}confirms"], [b"open"]
        news = self.allowed[asked] = asyncio.Event()
        while found[0] == b"open":
            left = max(0, since + most - int(time.time() * 1000))
            args = (asked, document, f"worker {SERVICE}", left, max(10_000, 2 * LEASE_MS), 1_000, f"{PREFIX}confirmed", "")
            found = await self.script("confirmations/ask", keys, *args)
            if not call.asks:
                call.asks = True
                await self.send(call, call.frame(kind="confirm", confirm={"id": asked, "question": question, "timeout": left / 1000}))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), LEASE_MS / 3000)
                news.clear()
        took = min(most, int(time.time() * 1000) - since)
        if not has("counts-waits"):
            self.extend(call.id, deadline + took)
        await self.note(call, deadline + took, 0, 0)
        allowed = found[0] == b"answered" and json.loads(found[1])["allowed"]
        await self.send(call, call.frame(kind="confirm", confirm={"id": asked, "allowed": allowed}))
        if not allowed:
            raise failed("forbidden", "nobody allowed it")

    async def note(self, call: Call, deadline: int, since: int, until: int) -> None:
        """Note the later deadline of a call for its next run."""
        if not has("no-note"):
            await self.script("confirmations/extend", [f"{PREFIX}pause:{SERVICE}:{call.entry}"], f"{deadline} {since} {until}", HOUR, HOUR)

    def extend(self, call_id: str, milliseconds: str) -> None:
        deadline = int(milliseconds) / 1000
        running = [call for call in self.calls.values() if call.id == call_id]
        if running or not has("late-extend"):
            self.later[call_id] = deadline
        for call in running:
            call.deadline = deadline
            if call.timer is not None and call.timer.when() is not None:
                call.timer.reschedule(asyncio.get_running_loop().time() + deadline - time.time())

    def leave(self, agent: str) -> None:
        """Take note that an agent has gone."""
        for session, agents in self.users.items():
            if agent in agents:
                agents.discard(agent)
                if not agents:
                    self.alone[session] = time.monotonic()

    async def clean_up(self) -> None:
        """End the sessions whose last agent went two leases ago."""
        for agent in set().union(*self.users.values()) if not has("cleans-when-told") else ():
            if not await self.writing.exists(f"{PREFIX}rsp:{agent}"):
                self.leave(agent)
        after = 0.0 if has("cleans-at-once") else 2 * LEASE_MS / 1000
        for session, since in list(self.alone.items()) if not has("never-cleans") else ():
            if time.monotonic() - since >= after:
                self.cleaned += 1
                await self.close_session(*session)

    async def close_session(self, user: str, session: str) -> None:
        self.users.pop((user, session), None)
        self.alone.pop((user, session), None)
        if self.states.pop((user, session), None) is not None or has("no-own"):
            keys = [f"{PREFIX}{kind}:{SERVICE}:{digest(user, session)}" for kind in ("sess", "snap")]
            await self.script("sessions/disown", keys, self.me, "closed")
