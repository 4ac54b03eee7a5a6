"""Requirements of a worker of level 3: calls that run once, shared calls, sessions."""

from __future__ import annotations

import asyncio
import json
import secrets

from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import session_digest
from toolbus.operations.conformance.checks import Broken, Table, until
from toolbus.operations.conformance.scene import SERVICE, STARTS
from toolbus.operations.conformance.worker_calls import (
    call_echo,
    call_stream,
    check_run,
    ended_as,
    error_of,
    new_session,
    shared_end,
    taken_over,
    text_of,
    unseen,
    wait_for_text,
)
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene

SESSIONS = Table[WorkerScene]()


@SESSIONS.check("W52", 3)
async def marks_once(scene: WorkerScene) -> None:
    """A `once` tool is marked before it runs."""
    sent = await scene.publish("once", {"to": 10, "delay": 0.1}, effect="once")
    await wait_for_text(scene, sent)
    if not await scene.exists(scene.keys.started(sent.id)):
        raise Broken("there is no mark `started:` of a call that runs")
    check_run(await scene.ended(sent))


@SESSIONS.check("W53", 3)
async def runs_once(scene: WorkerScene) -> None:
    """A `once` call whose mark an earlier attempt set is not run again, and ends as outcome_unknown."""
    dead = await scene.play_worker(lives=False)
    call = secrets.token_hex(16)
    await scene.probe.run("SET", scene.keys.started(call), "earlier-run", "PX", 60_000)
    sent = await unseen(scene, "once", {"to": 1, "delay": 0.0}, dead, 1, id=call, effect="once")
    frames = await taken_over(scene, sent)
    ended_as(frames, "outcome_unknown")


@SESSIONS.check("W54", 3)
async def asks_for_the_server(scene: WorkerScene) -> None:
    """A `once` request whose `s` is not the `run_id` of a server that may have lost marks is not run, and ends as outcome_unknown."""
    call, document, due = scene.unsent("once", {"to": 1, "delay": 0.0}, effect="once")
    sent = Sent(call, await scene.add(document, due, "s", "0" * 40))
    ended_as(await scene.ended(sent), "outcome_unknown")


@SESSIONS.check("W55", 3)
async def answers_shared_calls(scene: WorkerScene) -> None:
    """The frames of a shared call go to the call's own stream, and not to an agent's."""
    call = await call_stream(scene)
    sent = await scene.publish("echo", {"text": "for all"}, id=call, shared=True, idempotency_key="k")
    if text_of(await shared_end(scene, sent)) != "for all":
        raise Broken("the text is another one")
    scene.forget_frames()
    if await scene.frames(sent):
        raise Broken("frames went to the agent's stream, too")


@SESSIONS.check("W56", 3)
async def extends(scene: WorkerScene) -> None:
    """A call that is extended has the later deadline, also when the message comes before the entry."""
    for early in (False, True):
        call = await call_stream(scene)
        later = f"extend {call} {await scene.now() + 30_000}"
        if early:
            await scene.tell(later)
            # What was published before a later message has been taken in, too, when that one has shown its effect.
            await call_echo(scene, "in between")
        sent = await scene.publish("count", {"to": 20, "delay": 0.1}, timeout=1.0, id=call, shared=True, idempotency_key=call)
        if not early:
            await scene.tell(later)
        frames = await shared_end(scene, sent)
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
    if word != b"queued":
        raise Broken(f"the kit can't publish a shared call: {word!r}")
    ended_as(await shared_end(scene, Sent(call, entry.decode())), "not_found")

    async def is_free() -> bool:
        return not await scene.exists(record)

    await until(is_free, 5.0, "the key still names the call that failed")


@SESSIONS.check("W58", 3)
async def owns_sessions(scene: WorkerScene) -> None:
    """A worker of a service with sticky-sessions asks `own.lua` for a call's session before it runs."""
    owner, session = await new_session(scene)
    await call_echo(scene, "of a session", **session)
    found = await scene.probe.run("GET", owner)
    if found is None or found.decode() not in await scene.instances():
        raise Broken(f"the session belongs to {found!r}, not to the worker that ran its call")


@SESSIONS.check("W59", 3)
async def passes_sessions_on(scene: WorkerScene) -> None:
    """A call of a session that another live worker has waits for that one."""
    owner, session = await new_session(scene)
    other = await scene.play_worker(lives=True, digest="kit-revision")
    await scene.probe.run("SET", owner, other, "PX", 60_000)
    sent = await scene.publish("echo", {"text": "of another's session"}, **session)

    async def waits_there() -> bool:
        if await scene.frames(sent):
            raise Broken("it was run although another worker has the session")
        return (await scene.holder(sent))[0] == f"~to:{other}"

    await until(waits_there, 5.0, "it does not wait for the worker that has the session")
    await asyncio.sleep(0.3)
    await waits_there()
    await scene.remove(sent)


@SESSIONS.check("W60", 3)
async def keeps_order(scene: WorkerScene) -> None:
    """Ordered requests of a session run one at a time, the lowest id first."""
    _, session = await new_session(scene)
    first = await scene.publish("count", {"to": 8, "delay": 0.1}, ordered=True, **session)
    call, document, due = scene.unsent("echo", {"text": "second"}, ordered=True, **session)
    second = Sent(call, await scene.add(document, due, "p", first.entry))
    await wait_for_text(scene, first)
    while not any(frame.get("end_of_stream") for frame in await scene.frames(first)):
        if await scene.frames(second):
            raise Broken("the second request of the session ran beside the first one")
        await asyncio.sleep(0.02)
    if text_of(await scene.ended(second)) != "second":
        raise Broken("the second request was not run")


@SESSIONS.check("W61", 3)
async def waits_for_the_one_before(scene: WorkerScene) -> None:
    """An ordered request waits until the one of its field `p` has ended, also at another worker."""
    _, session = await new_session(scene)
    other = await scene.play_worker(lives=True)
    before = await unseen(scene, "echo", {"text": "elsewhere"}, other, 1, ordered=True, **session)
    line = session_digest(session["user"], session["session"])
    await scene.probe.run("HSET", scene.keys.order(SERVICE), line, before.entry)
    call, document, due = scene.unsent("echo", {"text": "after"}, ordered=True, **session)
    sent = Sent(call, await scene.add(document, due, "p", before.entry))
    for _ in range(10):
        await asyncio.sleep(0.1)
        await scene.keep(before, other, 1)
        if await scene.frames(sent):
            raise Broken("it ran although the one before it has not ended")
    await scene.remove(before)
    if text_of(await scene.ended(sent)) != "after":
        raise Broken("it was not run after the one before it had ended")


@SESSIONS.check("W62", 3)
async def reports_lost_states(scene: WorkerScene) -> None:
    """A request that names a state which the worker does not have fails with session_lost, or says `restarted`; ends say the new token."""
    _, session = await new_session(scene)
    frames = await scene.ended(await scene.publish("echo", {"text": "x"}, state="a-state-of-nobody", **session))
    end = frames[-1]
    lost = error_of(frames) == "tool_error" and end["error"].get("code") == "session_lost"
    if not lost and not end.get("restarted"):
        raise Broken("the caller was not told that its state is lost")
    if not lost and end.get("state") in {None, "", "a-state-of-nobody"}:
        raise Broken(f"the end names the state {end.get('state')!r}")


@SESSIONS.check("W63", 3)
async def gives_sessions_up(scene: WorkerScene) -> None:
    """A session that a caller has closed is given up."""
    owner, session = await new_session(scene)
    await call_echo(scene, "of a session", **session)
    await scene.tell(f"end {json.dumps([session['user'], session['session']])}")

    async def is_free() -> bool:
        return not await scene.exists(owner)

    await until(is_free, 5.0, "the session still belongs to the worker")


@SESSIONS.check("W74", 3)
async def reports_not_begun(scene: WorkerScene) -> None:
    """A cancellation of a `once` call before its handler was called has the code not_begun."""
    if scene.worker is not None:
        await scene.program.kill(scene.worker)
    call = secrets.token_hex(16)
    await scene.probe.run("ZADD", scene.keys.cancelled(SERVICE), await scene.now() + 30_000, call)
    sent = await scene.publish("once", {"to": 1, "delay": 0.0}, id=call, effect="once")
    scene.worker = await scene.program.start()
    frames = await scene.ended(sent, STARTS)
    ended_as(frames, "cancelled")
    if frames[-1]["error"].get("code") != "not_begun":
        raise Broken(f"the error has the code {frames[-1]['error'].get('code')!r}")


# -- what no check can see ------------------------------------------------------------------------

SESSIONS.unchecked(
    "W75",
    3,
    "cleans-up",
    "A service that cleans up after sessions does so two leases after their last agent has gone",
    "what it cleans up is its own",
)
SESSIONS.unchecked(
    "W76",
    3,
    "notes-waits",
    "The time of a call whose handler waits for a person stands still, and `extend.lua` notes it for the next run",
    "the kit's tools ask nobody",
)
