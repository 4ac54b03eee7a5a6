"""Requirements of a worker of level 3: calls that run once, shared calls, sessions."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from functools import partial
from typing import Any

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import session_digest
from toolbus.operations.conformance.checks import Broken, Table, broken_if, until, until_not
from toolbus.operations.conformance.scene import LEASE, SERVICE, STARTS
from toolbus.operations.conformance.worker_calls import SLACK, check_run, ended_as, error_of, text_of
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene

SESSIONS = Table[WorkerScene]()


@SESSIONS.check("W52", 3)
async def marks_once(scene: WorkerScene) -> None:
    """A `once` tool is marked before it runs."""
    sent = await scene.publish("once", {"to": 10, "delay": 0.1}, effect="once")
    await scene.wait_for_text(sent)
    broken_if(not await scene.exists(scene.keys.started(sent.id)), "there is no mark `started:` of a call that runs")
    check_run(await scene.ended(sent))


@SESSIONS.check("W53", 3)
async def runs_once(scene: WorkerScene) -> None:
    """A `once` call whose mark an earlier attempt set is not run again, and ends as outcome_unknown."""
    call = secrets.token_hex(16)
    await scene.probe.run("SET", scene.keys.started(call), "earlier-run", "PX", 60_000)
    sent = await scene.orphan("once", {"to": 1, "delay": 0.0}, id=call, effect="once")
    ended_as(await scene.taken_over(sent), "outcome_unknown")


@SESSIONS.check("W54", 3)
async def asks_for_the_server(scene: WorkerScene) -> None:
    """A `once` request whose `s` is not the server's `run_id` is not run, and ends as outcome_unknown."""
    sent = await scene.publish("once", {"to": 1, "delay": 0.0}, more=("s", "0" * 40), effect="once")
    ended_as(await scene.ended(sent), "outcome_unknown")


@SESSIONS.check("W55", 3)
async def answers_shared_calls(scene: WorkerScene) -> None:
    """The frames of a shared call go to the call's own stream, and not to an agent's."""
    call = await scene.call_stream()
    sent = await scene.publish("echo", {"text": "for all"}, id=call, shared=True, idempotency_key="k")
    broken_if(text_of(await scene.shared_end(sent)) != "for all", "the text is another one")
    scene.forget_frames()
    broken_if(await scene.frames(sent), "frames went to the agent's stream, too")


@SESSIONS.check("W56", 3)
async def extends(scene: WorkerScene) -> None:
    """A call that is extended has the later deadline, also when the message comes before the entry."""
    for early in (False, True):
        call = await scene.call_stream()
        later = f"extend {call} {await scene.now() + 30_000}"
        if early:
            await scene.tell(later)
            # What was published before a later message has been taken in, too, when that one has shown its effect.
            await scene.call_echo("in between")
        sent = await scene.publish("count", {"to": 20, "delay": 0.1}, timeout=1.0, id=call, shared=True, idempotency_key=call)
        if not early:
            await scene.tell(later)
        frames = await scene.shared_end(sent)
        if error_of(frames):
            raise Broken(f"it ended as {error_of(frames)} although it was extended {'before' if early else 'after'} its entry came")


@SESSIONS.check("W57", 3)
async def frees_keys(scene: WorkerScene) -> None:
    """A shared call that failed frees its idempotency key."""
    key = secrets.token_hex(16)
    call, document, _ = scene.unsent("nothing-like-this", {}, shared=True, idempotency_key=key)
    record = scene.keys.shared(session_digest("", key))
    keys = (record, scene.queue, scene.keys.call(call))
    args = (call, "digest", scene.agent, 10_000, 30_000, document, 60_000, "", scene.keys.prefix, scene.keys.wake(SERVICE))
    word, entry, *_ = await scene.probe.script(scripts.SHARE, keys, *args)
    broken_if(word != b"queued", f"the kit can't publish a shared call: {word!r}")
    ended_as(await scene.shared_end(Sent(call, entry.decode())), "not_found")
    await until_not(lambda: scene.exists(record), 5.0, "the key still names the call that failed")


@SESSIONS.check("W58", 3)
async def owns_sessions(scene: WorkerScene) -> None:
    """A worker of a service with sticky-sessions asks `own.lua` for a call's session before it runs."""
    owner, session = await scene.new_session()
    await scene.call_echo("of a session", **session)
    found = await scene.probe.run("GET", owner)
    if found is None or found.decode() not in await scene.instances():
        raise Broken(f"the session belongs to {found!r}, not to the worker that ran its call")


@SESSIONS.check("W59", 3)
async def passes_sessions_on(scene: WorkerScene) -> None:
    """A call of a session that another live worker has waits for that one."""
    owner, session = await scene.new_session()
    other = await scene.play_worker(lives=True, digest="kit-revision")
    await scene.probe.run("SET", owner, other, "PX", 60_000)
    sent = await scene.publish("echo", {"text": "of another's session"}, **session)
    await scene.wait_until_passed_on(sent, other, "the worker that has the session")
    await asyncio.sleep(0.3)
    broken_if(await scene.frames(sent), "it was run although another worker has the session")
    await scene.remove(sent)


@SESSIONS.check("W60", 3)
async def keeps_order(scene: WorkerScene) -> None:
    """Ordered requests of a session run one at a time, the lowest id first."""
    _, session = await scene.new_session()
    first = await scene.publish("count", {"to": 8, "delay": 0.1}, ordered=True, **session)
    second = await scene.publish("echo", {"text": "second"}, more=("p", first.entry), ordered=True, **session)
    await scene.wait_for_text(first)
    await scene.check_order(first, second, "the second request of the session ran beside the first one")
    broken_if(text_of(await scene.ended(second)) != "second", "the second request was not run")


@SESSIONS.check("W61", 3)
async def waits_for_the_one_before(scene: WorkerScene) -> None:
    """An ordered request waits until the one of its field `p` has ended, also at another worker."""
    _, session = await scene.new_session()
    other = await scene.play_worker(lives=True)
    before = await scene.unseen("echo", {"text": "elsewhere"}, other, 1, ordered=True, **session)
    line = session_digest(session["user"], session["session"])
    await scene.probe.run("HSET", scene.keys.order(SERVICE), line, before.entry)
    sent = await scene.publish("echo", {"text": "after"}, more=("p", before.entry), ordered=True, **session)
    for _ in range(10):
        await asyncio.sleep(0.1)
        await scene.keep(before, other, 1)
        broken_if(await scene.frames(sent), "it ran although the one before it has not ended")
    await scene.remove(before)
    broken_if(text_of(await scene.ended(sent)) != "after", "it was not run after the one before it had ended")


@SESSIONS.check("W62", 3)
async def reports_lost_states(scene: WorkerScene) -> None:
    """A request that names a state which the worker does not have fails with session_lost, or says `restarted`; ends say the new token."""
    _, session = await scene.new_session()
    frames = await scene.ended(await scene.publish("echo", {"text": "x"}, state="a-state-of-nobody", **session))
    end = frames[-1]
    lost = error_of(frames) == "tool_error" and end["error"].get("code") == "session_lost"
    broken_if(not lost and not end.get("restarted"), "the caller was not told that its state is lost")
    broken_if(not lost and end.get("state") in {None, "", "a-state-of-nobody"}, f"the end names the state {end.get('state')!r}")


@SESSIONS.check("W63", 3)
async def gives_sessions_up(scene: WorkerScene) -> None:
    """A session that a caller has closed is given up."""
    owner, session = await scene.new_session()
    await scene.call_echo("of a session", **session)
    await scene.tell(f"end {json.dumps([session['user'], session['session']])}")
    await until_not(lambda: scene.exists(owner), 5.0, "the session still belongs to the worker")


@SESSIONS.check("W74", 3)
async def reports_not_begun(scene: WorkerScene) -> None:
    """A cancellation of a `once` call before its handler was called has the code not_begun."""
    await scene.program.kill(scene.worker)
    call = secrets.token_hex(16)
    await scene.probe.run("ZADD", scene.keys.cancelled(SERVICE), await scene.now() + 30_000, call)
    sent = await scene.publish("once", {"to": 1, "delay": 0.0}, id=call, effect="once")
    scene.worker = await scene.program.start()
    ended_as(await scene.ended(sent, STARTS), "cancelled", "not_begun")


async def _cleaned(scene: WorkerScene) -> int:
    """Return the number of sessions that the worker has cleaned up after."""
    return int(text_of(await scene.ended(await scene.publish("cleaned", {}))))


@SESSIONS.check("W75", 3)
async def cleans_up(scene: WorkerScene) -> None:
    """A service that cleans up after sessions does so two leases after their last agent has gone, unless another one calls in them."""
    await scene.need("cleaned")
    before = await _cleaned(scene)
    agents = [await scene.draw_neighbour() for _ in range(3)]
    sessions: list[dict[str, Any]] = [{"user": "kit", "session": secrets.token_hex(8)} for _ in agents]
    for agent, session in zip(agents, sessions, strict=True):
        await scene.wait_until_gone(await scene.publish("echo", {"text": "of a session"}, agent=agent, **session))
    says_so, dies, is_followed = agents
    left = time.monotonic()
    await scene.tell(f"left {says_so}")
    await scene.probe.run("DEL", scene.keys.replies(dies))
    await scene.tell(f"left {is_followed}")
    await scene.call_echo("of another agent", **sessions[2])

    while time.monotonic() - left < 2 * LEASE - SLACK:
        broken_if(await _cleaned(scene) > before, "it cleans up after the sessions of an agent that has gone before two leases are over")
        await asyncio.sleep(0.1)
    problem = "the sessions of an agent that said that it leaves, and of one whose reply stream is gone, are not both cleaned up after"
    await until(partial(_cleaned, scene), LEASE + 2 * SLACK, problem, lambda number: number >= before + 2)
    await asyncio.sleep(LEASE / 2)
    broken_if(await _cleaned(scene) > before + 2, "it cleaned up after a session in which another agent had called by then")


async def _note_of(scene: WorkerScene, sent: Sent) -> list[int]:
    """Return the numbers of the note about a call; none when there is no note."""
    note = await scene.probe.run("GET", scene.keys.pause(SERVICE, sent.entry))
    return [int(word) for word in (note or b"").split()]


async def _allow(scene: WorkerScene, request: str) -> None:
    """Allow what a confirmation request asks for, as a person does."""
    stored = await scene.probe.run("HGET", scene.keys.confirmation(request), "doc")
    answer = json.dumps({"allowed": True, "by": "kit", "digest": json.loads(stored or b"{}").get("digest", "")})
    keys = (scene.keys.confirmation(request), scene.keys.confirmations)
    args = (request, answer, "token", scene.keys.prefix, 60_000, scene.keys.confirmed)
    if await scene.probe.script(scripts.ANSWER, keys, *args) != [b"done"]:
        raise Broken(f"the frame `confirm` has the id {request!r}, and there is no such request")


@SESSIONS.check("W76", 3)
async def notes_waits(scene: WorkerScene) -> None:
    """The time of a call whose handler waits for a person stands still, and `extend.lua` notes it for the next run."""
    await scene.need("ask")
    sent = await scene.publish("ask", {"question": "May it?", "delay": 1.0}, timeout=2.0)

    async def asked() -> dict[str, Any]:
        return next((frame["confirm"] for frame in await scene.frames(sent) if frame.get("confirm")), {})

    confirm = await until(asked, 5.0, "no frame `confirm` came")
    deadline, since, latest = (await _note_of(scene, sent) or [0, 0, 0])[:3]
    broken_if(not 0 < since < latest, "no note `pause:` says since when its handler waits, and until when")
    await asyncio.sleep(2.5)
    if await scene.has_ended(sent):
        raise Broken(f"its time went on while its handler waited: it ended as {error_of(await scene.frames(sent))}")
    await _allow(scene, confirm["id"])
    problem = "when its handler goes on, the note does not have the later deadline, and two zeros"
    await until(partial(_note_of, scene, sent), 0.9, problem, lambda note: len(note) > 2 and note[0] >= deadline + 2_000 and not note[1])
    frames = await scene.ended(sent)
    check_run(frames)
    if text_of(frames) != "allowed":
        raise Broken(f"after it was allowed it ended as {error_of(frames) or 'a success'} with the text {text_of(frames)!r}")
    await until_not(lambda: _note_of(scene, sent), 3.0, "the note is still there after the call's end")
    sent = await scene.orphan("count", {"to": 20, "delay": 0.1}, timeout=1.0)
    await scene.probe.run("SET", scene.keys.pause(SERVICE, sent.entry), f"{await scene.now() + 30_000} 0 0", "PX", 60_000)
    if error := error_of(await scene.taken_over(sent)):
        raise Broken(f"a call that it took over, whose note has a later deadline, ended as {error}")
