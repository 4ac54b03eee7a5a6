"""Requirements of an agent, by the numbers of docs/protocol.md, and their checks; here those of levels 0 and 1."""

from __future__ import annotations

import asyncio
import re
import time

from toolbus.operations.conformance.agent_reconnect_checks import RECONNECTS
from toolbus.operations.conformance.agent_scene import AgentScene, Ear, end
from toolbus.operations.conformance.agent_session_checks import SESSIONS
from toolbus.operations.conformance.checks import Broken, Table, broken_if, until, until_not
from toolbus.operations.conformance.scene import SERVICE, fields_of

AGENT = Table[AgentScene]()
_IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


# -- level 0 --------------------------------------------------------------------------------------


@AGENT.check("A1", 0)
async def publishes(scene: AgentScene) -> None:
    """A request has an id of at least 128 random bits, its agent, service, tool, arguments, and a deadline."""
    taken = await scene.called("1", "hello", timeout=20.0)
    request = taken.request
    for name in ("id", "agent"):
        if not isinstance(request.get(name), str) or not _IDENT.match(request[name]):
            raise Broken(f"`{name}` must be 1–64 of A–Z a–z 0–9 _ -, not {request.get(name)!r}")
    broken_if(len(request["id"]) < 22, f"the id {request['id']!r} is too short for 128 random bits")
    if request.get("service") != SERVICE or request.get("tool") != "conformance-echo" or request.get("arguments") != {"text": "hello"}:
        raise Broken(f"service, tool or arguments are not what was called: {request}")
    left = taken.due / 1000 - time.time()
    broken_if(not 15 < left < 25, f"the deadline is {left:.1f} s away; 20 were asked for")
    await scene.finished("1", taken, "hello")


@AGENT.check("A2", 0)
async def draws_agent_ids(scene: AgentScene) -> None:
    """Each process has an agent id of its own."""
    first = await scene.answered("1")
    await scene.leave()
    await scene.start()
    second = await scene.called("2")
    broken_if(first.agent == second.agent, f"two processes have the agent id {first.agent!r}: each would read the answers to the other one")


@AGENT.check("A3", 0)
async def keeps_its_reply_stream(scene: AgentScene) -> None:
    """Its reply stream exists before a request is published, and has a TTL that it renews."""
    taken = await scene.called()
    ttl = int(await scene.probe.run("PTTL", scene.keys.replies(taken.agent)))
    broken_if(ttl < 0, "the reply stream does not exist" if ttl == -2 else "the reply stream has no TTL")
    await scene.answer(taken)
    await scene.ended("1")


@AGENT.check("A4", 0)
async def renews_its_reply_stream(scene: AgentScene) -> None:
    """It renews its reply stream five times in the TTL, also while it calls nothing."""
    taken = await scene.answered()
    stream, before = scene.keys.replies(taken.agent), 0

    async def is_renewed() -> bool:
        nonlocal before
        left = int(await scene.probe.run("PTTL", stream))
        before, was = left, before
        return 0 < was < left

    await until(is_renewed, 6.0, "the TTL of the reply stream only went down")


@AGENT.check("A5", 0)
async def counts_flushes(scene: AgentScene) -> None:
    """Flush numbers count up from 0."""
    for name in "abc":
        taken = await scene.answered(name)
    flushes = fields_of(await scene.probe.run("HGETALL", scene.keys.flushes(taken.agent)))
    numbers = sorted(int(value.split()[0]) for value in flushes.values())
    broken_if(len(numbers) < 2 or numbers != list(range(len(numbers))), f"three calls were published in the flushes {numbers}")


@AGENT.check("A6", 0)
async def tells_errors(scene: AgentScene) -> None:
    """A call that failed ends with the error of its `end` frame."""
    taken = await scene.called()
    await scene.answer(taken, error={"type": "tool_error", "code": "broken", "message": "no luck"})
    await scene.ended_as("1", None, "tool_error")


@AGENT.check("A7", 0)
async def tells_them_apart(scene: AgentScene) -> None:
    """Answers go to the calls with their ids, in whatever order they come; frames of unknown calls are dropped."""
    for name in "abc":
        await scene.call(name, name)
    taken = [await scene.taken() for _ in "abc"]
    for each in reversed(taken):
        await scene.send(each, end(0, id="0" * 32, response="of another call"))
        await scene.answer(each, response=str(each.request["arguments"]["text"]) * 2)
    for name in "abc":
        await scene.ended_as(name, name * 2, None)


@AGENT.check("A8", 0)
async def knows_absent_services(scene: AgentScene) -> None:
    """A call to a service that nobody serves ends at once as unavailable or not_found."""
    await scene.call("1", service="nobody", tool="nothing")
    kind = ((await scene.ended("1")).get("error") or {}).get("type")
    broken_if(kind not in {"unavailable", "not_found"}, f"it ended as {kind}")


@AGENT.check("A9", 0)
async def sees_full_queues(scene: AgentScene) -> None:
    """A call that the queue has no room for ends at once as overloaded."""
    fill = "for _ = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'x', '') end"
    await scene.probe.run("EVAL", fill, 1, scene.queue, scene.settings.queue_limit)
    await scene.call("1")
    await scene.ended_as("1", None, "overloaded")


@AGENT.check("A10", 0)
async def survives_unreadable_frames(scene: AgentScene) -> None:
    """Entries that are no JSON, no lists, or have frames of wrong types stop nothing."""
    first, second = await scene.called("1"), await scene.called("2")
    wrong = (b"", b"{", b"null", b"5", b"[null]", b"[5]", b'["x"]', b"\xff", b"[" * 50_000, b'[{"run": "r"}]', b'[{"id": 5, "run": []}]')
    for document in wrong:
        await scene.raw(first, document)
    await scene.probe.run("XADD", scene.keys.replies(first.request["agent"]), "NOMKSTREAM", "*", "unknown", "field")
    await scene.send(first, {"seq": 0, "kind": "something-new", "surprise": 1})
    await scene.finished("2", second, "fine")


@AGENT.check("A11", 0)
async def gives_up_in_time(scene: AgentScene) -> None:
    """A call without an answer ends at its own timeout as deadline_exceeded."""
    await scene.called("1", timeout=1.0)
    await scene.ended_as("1", None, "deadline_exceeded", within=5.0)


@AGENT.check("A12", 0)
async def sends_scripts_again(scene: AgentScene) -> None:
    """When the server has forgotten its scripts (NOSCRIPT) it sends them again."""
    for name in ("before", "after"):
        await scene.finished(name, await scene.called(name), name)
        await scene.probe.run("SCRIPT", "FLUSH")


@AGENT.check("A13", 0)
async def leaves(scene: AgentScene) -> None:
    """At the end of its input it removes its keys and ends."""
    taken = await scene.answered()
    await scene.leave()
    left = [key for key in (scene.keys.replies(taken.agent), scene.keys.flushes(taken.agent)) if await scene.exists(key)]
    broken_if(left, f"it left {', '.join(left)} behind")


# -- level 1 --------------------------------------------------------------------------------------


@AGENT.check("A14", 1)
async def streams(scene: AgentScene) -> None:
    """Text is told piece by piece, also when a frame has several pieces in `texts`."""
    taken = await scene.streamed("one ")
    await scene.send(taken, {"seq": 1, "texts": ["two ", "three "]}, end(2))
    await scene.ended_as("1", "one two three ", None)


@AGENT.check("A15", 1)
async def drops_repeats(scene: AgentScene) -> None:
    """A frame with a seq that was seen is dropped."""
    a, b = {"seq": 0, "response": "a"}, {"seq": 1, "response": "b"}
    await scene.answered_by("ab", [a, a, b, a], [b, end(2)])
    broken_if(scene.text("1") != "ab", f"the pieces that it told are {scene.text('1')!r}")


@AGENT.check("A16", 1)
async def waits_for_missing_frames(scene: AgentScene) -> None:
    """Frames that skip a seq are held back until those before them have come."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 1, "response": "b"}, end(2))
    await asyncio.sleep(0.2)
    broken_if(scene.text("1"), f"it told {scene.text('1')!r} before the first piece had come")
    await scene.send(taken, {"seq": 0, "response": "a"})
    await scene.ended_as("1", "ab", None)


@AGENT.check("A17", 1)
async def follows_new_runs(scene: AgentScene) -> None:
    """A later attempt replaces the run: text that differs starts anew after a reset, and late frames of the old run are dropped."""
    taken = await scene.streamed("old text")
    await scene.send(taken, {"run": "second", "attempt": 2, "seq": 0, "response": "new"})
    await scene.send(taken, {"seq": 1, "response": " and late"}, end(2))
    await scene.send(taken, end(1, run="second", attempt=2))
    await scene.ended_as("1", "new", None)
    if scene.text("1") != "new" or not any(event.get("reset") for event in scene.events["1"]):
        raise Broken(f"without a reset it told {[event.get('text') for event in scene.events['1']]}")


@AGENT.check("A18", 1)
async def ignores_earlier_attempts(scene: AgentScene) -> None:
    """A run of an earlier attempt than the current one is ignored; a later epoch counts more than an attempt."""
    taken = await scene.called()
    await scene.send(taken, {"attempt": 3, "seq": 0, "response": "third"})
    await scene.send(taken, end(0, run="second", attempt=2, response="second"))
    await scene.send(taken, {"run": "next", "epoch": 1, "attempt": 1, "seq": 0, "response": "next epoch"})
    await scene.send(taken, end(1, attempt=3))
    await scene.send(taken, end(1, run="next", epoch=1, attempt=1))
    await scene.ended_as("1", "next epoch", None)


@AGENT.check("A19", 1)
async def takes_resets(scene: AgentScene) -> None:
    """A frame `reset` voids the text that came before it."""
    void = [{"seq": 0, "response": "void"}, {"seq": 1, "kind": "reset"}]
    await scene.answered_by("valid", [*void, {"seq": 2, "response": "valid"}], [end(3)])


@AGENT.check("A20", 1)
async def joins_long_output(scene: AgentScene) -> None:
    """Pieces of kind `output` are the output of the call."""
    pieces = [{"seq": seq, "kind": "output", "response": text} for seq, text in enumerate(("first ", "second"))]
    await scene.answered_by("first second", pieces, [end(2)])


@AGENT.check("A21", 1)
async def counts_other_kinds(scene: AgentScene) -> None:
    """Frames of other kinds have their place in `seq`, and are no text."""
    progress = {"seq": 2, "kind": "progress", "progress": {"done": 1, "total": 2, "message": "half"}}
    blob = {"seq": 3, "kind": "blob", "blob": {"media_type": "image/png", "data": "AAAA"}}
    start = [{"seq": 0, "kind": "start"}, {"seq": 1, "response": "a"}]
    await scene.answered_by("ab", start, [progress], [blob, {"seq": 4, "response": "b"}], [end(5)])


@AGENT.check("A22", 1)
async def ends_once(scene: AgentScene) -> None:
    """A call has one end: frames that come after it, of its run or of a later attempt, are dropped."""
    taken = await scene.called()
    await scene.finished("1", taken, "the result")
    told = len(scene.events["1"])
    late = end(0, response="late")
    await scene.send(taken, {"seq": 2, "response": "late"}, {**late, "seq": 3}, {**late, "run": "later", "attempt": 2})
    await scene.answered("2")
    broken_if(len(scene.events["1"]) > told, f"after the end it told {scene.events['1'][told:]}")


@AGENT.check("A23", 1)
async def cancels(scene: AgentScene) -> None:
    """A cancelled call ends at once as cancelled, and is taken out of the queue or among the cancelled calls, once it is published."""
    waiting = await scene.called("waits")
    await scene.tell(cancel="waits")
    await scene.ended_as("waits", None, "cancelled", within=3.0)
    await until_not(lambda: scene.waits(waiting.entry), 3.0, "a cancelled request that nobody had taken is still in the queue")
    running = await scene.called("runs")
    await scene.take()
    await scene.tell(cancel="runs")
    await scene.ended("runs", 3.0)
    problem = "a cancelled call that a worker has is not in `cancelled:`"
    await until(lambda: scene.probe.run("ZSCORE", scene.keys.cancelled(SERVICE), running.id), 3.0, problem)
    scene.proxy.plan(lambda words: any(b"not answered yet" in word for word in words), "late", after=0.5)
    waiting = await scene.called("early", "not answered yet")
    await scene.tell(cancel="early")
    await scene.ended_as("early", None, "cancelled", within=3.0)
    problem = "a request that was cancelled before its publication was answered is still in the queue"
    await until_not(lambda: scene.waits(waiting.entry), 3.0, problem)


@AGENT.check("A24", 1)
async def cancels_at_its_timeout(scene: AgentScene) -> None:
    """A call whose time is up is cancelled, with `deadline_exceeded` as the fifth argument of `cancel.lua`."""
    async with Ear(scene.port, scene.keys.wake(SERVICE)) as ear:
        waiting = await scene.called("waits", timeout=0.8)
        await scene.ended_as("waits", None, "deadline_exceeded", within=5.0)
        problem = "a request that nobody had taken is still in the queue after its time"
        await until_not(lambda: scene.waits(waiting.entry), 3.0, problem)
        running = await scene.called("runs", timeout=0.8)
        await scene.take()
        await scene.ended("runs", 5.0)
        await until(lambda: ear.has_received(f"cancel {running.id}"), 3.0, "the worker that runs it was not told")
        if f"over {running.id} deadline_exceeded" not in ear.heard:
            raise Broken(f"the worker was told {ear.heard}, not what error the caller has")


@AGENT.check("A25", 1)
async def trims(scene: AgentScene) -> None:
    """Entries that it has read are trimmed from its reply stream."""
    for number in range(20):
        taken = await scene.answered(str(number))
    await until(lambda: scene.probe.run("XLEN", scene.keys.replies(taken.agent)), 5.0, "the reply stream grows", lambda size: size < 10)


AGENT.requirements += [*RECONNECTS.requirements, *SESSIONS.requirements]
