"""Requirements of an agent, by the numbers of docs/protocol.md, and their checks."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from toolbus.bus.broker.server.keys import session_digest
from toolbus.operations.conformance.agent_scene import AgentScene, Ear, Taken
from toolbus.operations.conformance.checks import TENANT, Broken, Table, until
from toolbus.operations.conformance.scene import LEASE, SERVICE, STARTS

AGENT = Table[AgentScene]()
_STICKY = "conformance-held"
_IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def _is(end: dict[str, object], text: str | None, error: str | None) -> None:
    found = end.get("error")
    kind = found.get("type") if isinstance(found, dict) else None
    if kind != error or (text is not None and end.get("text") != text):
        raise Broken(f"the call ended with {end.get('text')!r} and the error {kind}; expected were {text!r} and {error}")


async def _has_text(scene: AgentScene, name: str, text: str) -> bool:
    scene.check_alive()
    return scene.text(name) == text


def _publishes(words: list[bytes]) -> bool:
    """Return whether a command publishes requests."""
    return words[0].upper() in {b"EVAL", b"EVALSHA", b"FCALL"} and any(b":pub:" in word[:200] for word in words[3:4])


async def _refused(scene: AgentScene, error: str) -> None:
    """Refuse a flush with an error; its calls are to be published and answered all the same."""
    await scene.answer(await scene.called("first"))
    await scene.ended("first")
    scene.proxy.plan(_publishes, "refuse", error)
    taken = await scene.called("refused")
    if not scene.proxy.done:
        raise Broken("it does not publish with a script that has `pub:<agent>` as its first key")
    await scene.answer(taken, "fine")
    _is(await scene.ended("refused"), "fine", None)


async def _in_session(scene: AgentScene, name: str) -> Taken:
    """Return the request of a call in a session of a service with sticky-sessions."""
    if not await scene.exists(scene.keys.queue(_STICKY)):
        await scene.register(_STICKY, f"{_STICKY}-echo", sticky=True)
        await scene.answer(await scene.found(f"{_STICKY}-echo", _STICKY, 10.0))
    return await scene.called(name, queue=_STICKY, service="", tool=f"{_STICKY}-echo", user="kit", session="s")


# -- level 0 --------------------------------------------------------------------------------------


@AGENT.check("A1", 0)
async def publishes(scene: AgentScene) -> None:
    """A request has an id of at least 128 random bits, its agent, service, tool, arguments, and a deadline."""
    taken = await scene.called("1", "hello", timeout=20.0)
    request = taken.request
    for name in ("id", "agent"):
        if not isinstance(request.get(name), str) or not _IDENT.match(request[name]):
            raise Broken(f"`{name}` must be 1–64 of A–Z a–z 0–9 _ -, not {request.get(name)!r}")
    if len(request["id"]) < 22:
        raise Broken(f"the id {request['id']!r} is too short for 128 random bits")
    if request.get("service") != SERVICE or request.get("tool") != "conformance-echo" or request.get("arguments") != {"text": "hello"}:
        raise Broken(f"service, tool or arguments are not what was called: {request}")
    left = taken.due / 1000 - time.time()
    if not 15 < left < 25:
        raise Broken(f"the deadline is {left:.1f} s away; 20 were asked for")
    await scene.answer(taken, "hello")
    _is(await scene.ended("1"), "hello", None)


@AGENT.check("A2", 0)
async def draws_agent_ids(scene: AgentScene) -> None:
    """Each process has an agent id of its own."""
    first = await scene.called("1")
    await scene.answer(first)
    await scene.ended("1")
    await scene.leave()
    await scene.start()
    second = await scene.called("2")
    if first.agent == second.agent:
        raise Broken(f"two processes have the agent id {first.agent!r}: each would read the answers to the other one")


@AGENT.check("A3", 0)
async def keeps_its_reply_stream(scene: AgentScene) -> None:
    """Its reply stream exists before a request is published, and has a TTL that it renews."""
    taken = await scene.called()
    ttl = int(await scene.probe.run("PTTL", scene.keys.replies(taken.request["agent"])))
    if ttl < 0:
        raise Broken("the reply stream does not exist" if ttl == -2 else "the reply stream has no TTL")
    await scene.answer(taken)
    await scene.ended("1")


@AGENT.check("A4", 0)
async def renews_its_reply_stream(scene: AgentScene) -> None:
    """It renews its reply stream five times in the TTL, also while it calls nothing."""
    taken = await scene.called()
    await scene.answer(taken)
    await scene.ended("1")
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
        taken = await scene.called(name)
        await scene.answer(taken)
        await scene.ended(name)
    flat = await scene.probe.run("HGETALL", scene.keys.flushes(taken.agent))
    values = flat.values() if isinstance(flat, dict) else flat[1::2]
    numbers = sorted(int(value.split()[0]) for value in values)
    if len(numbers) < 2 or numbers != list(range(len(numbers))):
        raise Broken(f"three calls were published in the flushes {numbers}")


@AGENT.check("A6", 0)
async def tells_errors(scene: AgentScene) -> None:
    """A call that failed ends with the error of its `end` frame."""
    taken = await scene.called()
    await scene.answer(taken, error={"type": "tool_error", "code": "broken", "message": "no luck"})
    _is(await scene.ended("1"), None, "tool_error")


@AGENT.check("A7", 0)
async def tells_them_apart(scene: AgentScene) -> None:
    """Answers go to the calls with their ids, in whatever order they come; frames of unknown calls are dropped."""
    for name in "abc":
        await scene.call(name, name)
    taken = [await scene.taken() for _ in "abc"]
    for each in reversed(taken):
        stranger = {"id": "0" * 32, "seq": 0, "kind": "end", "end_of_stream": True, "response": "of another call"}
        await scene.send(each, stranger)
        await scene.answer(each, response=str(each.request["arguments"]["text"]) * 2)
    for name in "abc":
        _is(await scene.ended(name), name * 2, None)


@AGENT.check("A8", 0)
async def knows_absent_services(scene: AgentScene) -> None:
    """A call to a service that nobody serves ends at once as unavailable or not_found."""
    await scene.call("1", service="nobody", tool="nothing")
    end = await scene.ended("1", 10.0)
    kind = (end.get("error") or {}).get("type")
    if kind not in {"unavailable", "not_found"}:
        raise Broken(f"it ended as {kind}")


@AGENT.check("A9", 0)
async def sees_full_queues(scene: AgentScene) -> None:
    """A call that the queue has no room for ends at once as overloaded."""
    fill = "for _ = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'x', '') end"
    await scene.probe.run("EVAL", fill, 1, scene.queue, scene.settings.queue_limit)
    await scene.call("1")
    _is(await scene.ended("1"), None, "overloaded")


@AGENT.check("A10", 0)
async def survives_unreadable_frames(scene: AgentScene) -> None:
    """Entries that are no JSON, no lists, or have frames of wrong types stop nothing."""
    first, second = await scene.called("1"), await scene.called("2")
    for document in (
        b"",
        b"{",
        b"null",
        b"5",
        b"[null]",
        b"[5]",
        b'["x"]',
        b"\xff",
        b"[" * 50_000,
        b'[{"run": "r"}]',
        b'[{"id": 5, "run": []}]',
    ):
        await scene.raw(first, document)
    await scene.probe.run("XADD", scene.keys.replies(first.request["agent"]), "NOMKSTREAM", "*", "unknown", "field")
    await scene.send(first, {"seq": 0, "kind": "something-new", "surprise": 1})
    await scene.answer(second, "fine")
    _is(await scene.ended("2"), "fine", None)


@AGENT.check("A11", 0)
async def gives_up_in_time(scene: AgentScene) -> None:
    """A call without an answer ends at its own timeout as deadline_exceeded."""
    await scene.called("1", timeout=1.0)
    _is(await scene.ended("1", 5.0), None, "deadline_exceeded")


@AGENT.check("A12", 0)
async def sends_scripts_again(scene: AgentScene) -> None:
    """When the server has forgotten its scripts (NOSCRIPT) it sends them again."""
    for name in ("before", "after"):
        await scene.answer(await scene.called(name), name)
        _is(await scene.ended(name), name, None)
        await scene.probe.run("SCRIPT", "FLUSH")


@AGENT.check("A13", 0)
async def leaves(scene: AgentScene) -> None:
    """At the end of its input it removes its keys and ends."""
    taken = await scene.called()
    await scene.answer(taken)
    await scene.ended("1")
    await scene.leave()
    agent = taken.request["agent"]
    left = [key for key in (scene.keys.replies(agent), scene.keys.flushes(agent)) if await scene.exists(key)]
    if left:
        raise Broken(f"it left {', '.join(left)} behind")


# -- level 1 --------------------------------------------------------------------------------------


@AGENT.check("A14", 1)
async def streams(scene: AgentScene) -> None:
    """Text is told piece by piece, also when a frame has several pieces in `texts`."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "one "})
    await until(lambda: _has_text(scene, "1", "one "), 5.0, "the first piece was not told before the second")
    await scene.send(taken, {"seq": 1, "texts": ["two ", "three "]}, {"seq": 2, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "one two three ", None)


@AGENT.check("A15", 1)
async def drops_repeats(scene: AgentScene) -> None:
    """A frame with a seq that was seen is dropped."""
    taken = await scene.called()
    await scene.send(
        taken, {"seq": 0, "response": "a"}, {"seq": 0, "response": "a"}, {"seq": 1, "response": "b"}, {"seq": 0, "response": "a"}
    )
    await scene.send(taken, {"seq": 1, "response": "b"}, {"seq": 2, "kind": "end", "end_of_stream": True})
    end = await scene.ended("1")
    _is(end, "ab", None)
    if scene.text("1") != "ab":
        raise Broken(f"the pieces that it told are {scene.text('1')!r}")


@AGENT.check("A16", 1)
async def waits_for_missing_frames(scene: AgentScene) -> None:
    """Frames that skip a seq are held back until those before them have come."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 1, "response": "b"}, {"seq": 2, "kind": "end", "end_of_stream": True})
    await asyncio.sleep(0.2)
    if scene.text("1"):
        raise Broken(f"it told {scene.text('1')!r} before the first piece had come")
    await scene.send(taken, {"seq": 0, "response": "a"})
    _is(await scene.ended("1"), "ab", None)


@AGENT.check("A17", 1)
async def follows_new_runs(scene: AgentScene) -> None:
    """A later attempt replaces the run: text that differs starts anew after a reset, and late frames of the old run are dropped."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "old text"})
    await until(lambda: _has_text(scene, "1", "old text"), 5.0, "the text of the first run was not told")
    await scene.send(taken, {"run": "second", "attempt": 2, "seq": 0, "response": "new"})
    await scene.send(taken, {"seq": 1, "response": " and late"}, {"seq": 2, "kind": "end", "end_of_stream": True})
    await scene.send(taken, {"run": "second", "attempt": 2, "seq": 1, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "new", None)
    if scene.text("1") != "new" or not any(event.get("reset") for event in scene.events["1"]):
        raise Broken(f"without a reset it told {[event.get('text') for event in scene.events['1']]}")


@AGENT.check("A18", 1)
async def ignores_earlier_attempts(scene: AgentScene) -> None:
    """A run of an earlier attempt than the current one is ignored; a later epoch counts more than an attempt."""
    taken = await scene.called()
    await scene.send(taken, {"attempt": 3, "seq": 0, "response": "third"})
    await scene.send(taken, {"run": "second", "attempt": 2, "seq": 0, "kind": "end", "end_of_stream": True, "response": "second"})
    await scene.send(taken, {"run": "next", "epoch": 1, "attempt": 1, "seq": 0, "response": "next epoch"})
    await scene.send(taken, {"attempt": 3, "seq": 1, "kind": "end", "end_of_stream": True})
    await scene.send(taken, {"run": "next", "epoch": 1, "attempt": 1, "seq": 1, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "next epoch", None)


@AGENT.check("A19", 1)
async def takes_resets(scene: AgentScene) -> None:
    """A frame `reset` voids the text that came before it."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "void"}, {"seq": 1, "kind": "reset"}, {"seq": 2, "response": "valid"})
    await scene.send(taken, {"seq": 3, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "valid", None)


@AGENT.check("A20", 1)
async def joins_long_output(scene: AgentScene) -> None:
    """Pieces of kind `output` are the output of the call."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "kind": "output", "response": "first "}, {"seq": 1, "kind": "output", "response": "second"})
    await scene.send(taken, {"seq": 2, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "first second", None)


@AGENT.check("A21", 1)
async def counts_other_kinds(scene: AgentScene) -> None:
    """Frames of other kinds have their place in `seq`, and are no text."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "kind": "start"}, {"seq": 1, "response": "a"})
    await scene.send(taken, {"seq": 2, "kind": "progress", "progress": {"done": 1, "total": 2, "message": "half"}})
    await scene.send(taken, {"seq": 3, "kind": "blob", "blob": {"media_type": "image/png", "data": "AAAA"}}, {"seq": 4, "response": "b"})
    await scene.send(taken, {"seq": 5, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "ab", None)


@AGENT.check("A22", 1)
async def ends_once(scene: AgentScene) -> None:
    """A call has one end: frames that come after it, of its run or of a later attempt, are dropped."""
    taken = await scene.called()
    await scene.answer(taken, "the result")
    _is(await scene.ended("1"), "the result", None)
    told = len(scene.events["1"])
    late = {"seq": 0, "kind": "end", "end_of_stream": True, "response": "late"}
    await scene.send(taken, {"seq": 2, "response": "late"}, {**late, "seq": 3}, {**late, "run": "later", "attempt": 2})
    other = await scene.called("2")
    await scene.answer(other)
    await scene.ended("2")
    if len(scene.events["1"]) > told:
        raise Broken(f"after the end it told {scene.events['1'][told:]}")


@AGENT.check("A23", 1)
async def cancels(scene: AgentScene) -> None:
    """A cancelled call ends at once as cancelled, and is taken out of the queue or among the cancelled calls."""
    waiting = await scene.called("waits")
    await scene.cancel("waits")
    _is(await scene.ended("waits", 3.0), None, "cancelled")

    async def is_out() -> bool:
        return not await scene.waits(waiting.entry)

    await until(is_out, 3.0, "a cancelled request that nobody had taken is still in the queue")
    running = await scene.called("runs")
    await scene.take(running)
    await scene.cancel("runs")
    await scene.ended("runs", 3.0)

    async def is_marked() -> bool:
        return await scene.probe.run("ZSCORE", scene.keys.cancelled(SERVICE), running.id) is not None

    await until(is_marked, 3.0, "a cancelled call that a worker has is not in `cancelled:`")


@AGENT.check("A24", 1)
async def cancels_at_its_timeout(scene: AgentScene) -> None:
    """A call whose time is up is cancelled, with `deadline_exceeded` as the fifth argument of `cancel.lua`."""
    async with Ear(scene.port, scene.keys.wake(SERVICE)) as ear:
        waiting = await scene.called("waits", timeout=0.8)
        _is(await scene.ended("waits", 5.0), None, "deadline_exceeded")

        async def is_out() -> bool:
            return not await scene.waits(waiting.entry)

        await until(is_out, 3.0, "a request that nobody had taken is still in the queue after its time")
        running = await scene.called("runs", timeout=0.8)
        await scene.take(running)
        await scene.ended("runs", 5.0)

        async def is_published() -> bool:
            return f"cancel {running.id}" in ear.heard

        await until(is_published, 3.0, "the worker that runs it was not told")
        if f"over {running.id} deadline_exceeded" not in ear.heard:
            raise Broken(f"the worker was told {ear.heard}, not what error the caller has")


@AGENT.check("A25", 1)
async def trims(scene: AgentScene) -> None:
    """Entries that it has read are trimmed from its reply stream."""
    for number in range(20):
        taken = await scene.called(str(number))
        await scene.answer(taken, "x")
        await scene.ended(str(number))

    async def is_short() -> bool:
        return int(await scene.probe.run("XLEN", scene.keys.replies(taken.request["agent"]))) < 10

    await until(is_short, 5.0, "the reply stream grows")


# -- level 2 --------------------------------------------------------------------------------------


@AGENT.check("A26", 2)
async def hides_equal_runs(scene: AgentScene) -> None:
    """A later attempt with the same text goes on where the old one stood, without a reset."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "the same "})
    await until(lambda: _has_text(scene, "1", "the same "), 5.0, "the text of the first run was not told")
    await scene.send(
        taken,
        {"run": "second", "attempt": 2, "seq": 0, "response": "the "},
        {"run": "second", "attempt": 2, "seq": 1, "response": "same text"},
    )
    await scene.send(taken, {"run": "second", "attempt": 2, "seq": 2, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "the same text", None)
    if any(event.get("reset") for event in scene.events["1"]):
        raise Broken("it told a reset although the text is the same")


@AGENT.check("A27", 2)
async def tells_gaps(scene: AgentScene) -> None:
    """When missing frames do not come, the call ends as outcome_unknown."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "a"}, {"seq": 2, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1", 8.0), None, "outcome_unknown")


@AGENT.check("A28", 2)
async def waits_for_no_refused_frames(scene: AgentScene) -> None:
    """An end with the code `frames_refused` ends the call at once, also when frames before it are missing."""
    taken = await scene.called()
    error = {"type": "tool_error", "code": "frames_refused", "message": "too large"}
    await scene.send(taken, {"seq": 0, "response": "a"}, {"seq": 5, "kind": "end", "end_of_stream": True, "error": error})
    _is(await scene.ended("1", 2.0), None, "tool_error")


@AGENT.check("A29", 2)
async def ends_at_malformed_frames(scene: AgentScene) -> None:
    """An end that can't be read, but for its `id`, `run` and numbers, ends the call as outcome_unknown."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "a"}, {"seq": 1, "kind": "end", "end_of_stream": True, "error": "no object"})
    _is(await scene.ended("1", 3.0), None, "outcome_unknown")


@AGENT.check("A30", 2)
async def makes_its_stream_again(scene: AgentScene) -> None:
    """When its reply stream is lost it makes it again, and reads it from the start."""
    taken = await scene.called()
    stream = scene.keys.replies(taken.request["agent"])
    await scene.probe.run("DEL", stream)
    await until(lambda: scene.exists(stream), 20.0, "the reply stream was not made again")
    await scene.answer(taken, "after the loss")
    _is(await scene.ended("1", 15.0), "after the loss", None)


@AGENT.check("A31", 2)
async def reads_the_registry(scene: AgentScene) -> None:
    """It finds a tool by its name in the registry."""
    taken = await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    if taken.request.get("service") != SERVICE:
        raise Broken(f"it called the service {taken.request.get('service')!r}")


@AGENT.check("A32", 2)
async def follows_the_log(scene: AgentScene) -> None:
    """It reads the log: a tool that is published while it runs can be called."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    await scene.register("conformance-late", "conformance-later")
    await scene.found("conformance-later", "conformance-late", LEASE / 3)


@AGENT.check("A33", 2)
async def sees_gaps_in_the_log(scene: AgentScene) -> None:
    """When `prev` of a log entry is not the token of the entry before, it loads a fresh snapshot."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    await scene.write_silently("conformance-silent", "conformance-untold", "untold")
    fields = {"op": "gone", "key": "conformance-of-nobody", "doc": "", "token": "told", "prev": "untold"}
    await scene.probe.run("HSET", scene.keys.meta, "token", "told")
    await scene.probe.run("XADD", scene.keys.log, "*", *(word for pair in fields.items() for word in pair))
    await scene.found("conformance-untold", "conformance-silent", LEASE)


@AGENT.check("A34", 2)
async def looks_at_the_token(scene: AgentScene) -> None:
    """When `reg:meta` has a token that no log entry brings, it loads a fresh snapshot."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    await scene.write_silently("conformance-silent", "conformance-untold", "untold")
    await scene.found("conformance-untold", "conformance-silent", LEASE + 2.0)


@AGENT.check("A35", 2)
async def leaves_out_unreadable_tools(scene: AgentScene) -> None:
    """It reads a publication tool by tool: one with an impossible value is left out, and the others can be called."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    whole = json.loads(scene.publication("conformance-mixed", "conformance-wrong", "conformance-right"))
    whole["tools"][0]["effect"] = "sometimes"
    await scene.register("conformance-mixed", "conformance-wrong", "conformance-right", document=json.dumps(whole).encode())
    await scene.found("conformance-right", "conformance-mixed", LEASE)
    await scene.call("wrong", service="", tool="conformance-wrong", timeout=3.0)

    async def has_ended() -> bool:
        if await scene.request_of("conformance-mixed"):
            raise Broken("it called a tool whose effect it can't know")
        return any("end" in event for event in scene.events.get("wrong", []))

    await until(has_ended, 10.0, "a call of a tool that is left out does not end")


@AGENT.check("A36", 2)
async def publishes_once(scene: AgentScene) -> None:
    """A flush that a lost connection left open is written again under its number: its calls are published once, and answered."""
    await scene.answer(await scene.called("first"))
    await scene.ended("first")
    for fault in ("cut before", "cut after"):
        scene.proxy.plan(_publishes, fault)
        taken = await scene.called(fault)
        if not scene.proxy.done:
            raise Broken("it does not publish with a script that has `pub:<agent>` among its keys")
        scene.proxy.forget()
        await scene.answer(taken, "fine")
        _is(await scene.ended(fault), "fine", None)
        # Whatever was written again came before this one.
        await scene.answer(await scene.called(f"after {fault}"))
        await scene.ended(f"after {fault}")
        if again := await scene.request_of(SERVICE):
            raise Broken(f"the call was published twice; once more as {again.entry}, with the id {again.id}")


@AGENT.check("A37", 2)
async def reads_on(scene: AgentScene) -> None:
    """When a connection ends in the middle of a read, it reads on behind the entry that it read last: nothing is lost or told twice."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "one "})
    await until(lambda: _has_text(scene, "1", "one "), 5.0, "the first piece was not told")
    scene.proxy.plan(lambda words: words[0].upper() == b"XREAD", "cut within")
    await scene.send(taken, {"seq": 1, "response": "two "})
    for _ in range(100):
        # The read that waited when this was planned is none of those that are cut.
        await scene.send(taken, {"seq": 2, "response": "three "})
        if scene.proxy.done:
            break
        await asyncio.sleep(0.05)
    else:
        raise Broken("it does not read with XREAD")
    await scene.send(taken, {"seq": 3, "response": "four "}, {"seq": 4, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "one two three four ", None)
    if scene.text("1") != "one two three four ":
        raise Broken(f"the pieces that it told are {scene.text('1')!r}")


@AGENT.check("A38", 2)
async def reconnects(scene: AgentScene) -> None:
    """When its connections end while it waits, it connects again: its calls are answered, and it makes others."""
    taken = await scene.called("1")
    scene.proxy.cut()
    await scene.answer(taken, "after the cut")
    _is(await scene.ended("1"), "after the cut", None)
    await scene.answer(await scene.called("2"), "another one")
    _is(await scene.ended("2"), "another one", None)


@AGENT.check("A39", 2)
async def sends_refused_flushes_again(scene: AgentScene) -> None:
    """A flush that is answered with NOTYET is sent again."""
    await _refused(scene, "NOTYET flush 0 was not carried out")


@AGENT.check("A40", 2)
async def sends_refused_commands_again(scene: AgentScene) -> None:
    """A command that a server refuses while it loads its data, and was not carried out, is sent again."""
    await _refused(scene, "LOADING the server is loading the dataset in memory")


@AGENT.check("A41", 2)
async def checks_the_namespace(scene: AgentScene) -> None:
    """It reads `P format` when it begins: in a namespace of a version that it does not speak it calls nothing, and ends."""
    await scene.end()
    await scene.probe.run("HSET", scene.keys.format, "version", 9)
    await scene.start()
    code = await scene.exit_code_of(STARTS)
    if not code:
        raise Broken(f"in a namespace of version 9 it {'went on' if code is None else 'ended with exit code 0'}")


async def _is_omitted(scene: AgentScene, name: str, queue: str, **more: Any) -> None:
    """Check that a call ends without having been published; ``more`` says what is called."""
    await scene.call(name, service="", timeout=3.0, **more)

    async def has_ended() -> bool:
        if await scene.request_of(queue):
            raise Broken(f"it published the call {name!r}")
        return any("end" in event for event in scene.events.get(name, []))

    await until(has_ended, 10.0, f"the call {name!r} does not end")
    if not (await scene.ended(name)).get("error"):
        raise Broken(f"the call {name!r}, which was not published, ended as a success")


@AGENT.check("A50", 2)
async def keeps_pins(scene: AgentScene) -> None:
    """It leaves out a tool whose pin is rejected, has another digest, or can't be read."""
    await scene.end()
    other = {"state": "approved", "canonical": "0" * 64, "digest": "0" * 64}
    pins = {"rejected": json.dumps({"state": "rejected"}), "other": json.dumps(other), "unreadable": "{"}
    for name, pin in pins.items():
        await scene.probe.run("HSET", scene.keys.pins, f"pin/pinned-{name}", pin)
    await scene.register("pinned", *(f"pinned-{name}" for name in (*pins, "free")))
    await scene.start()
    await scene.found("pinned-free", "pinned", 10.0)
    for name in pins:
        await _is_omitted(scene, name, "pinned", tool=f"pinned-{name}")


@AGENT.check("A52", 2)
async def checks_arguments(scene: AgentScene) -> None:
    """Arguments are checked against the tool's schema before they are published."""
    await scene.answer(await scene.found(f"{SERVICE}-echo", SERVICE, 10.0))
    await _is_omitted(scene, "without its argument", SERVICE, text=None)


@AGENT.check("A53", 2)
async def hides_tenants(scene: AgentScene) -> None:
    """A tool with `tenants` is hidden from other users."""
    await scene.answer(await scene.found(f"{SERVICE}-echo", SERVICE, 10.0))
    whole = json.loads(scene.publication("conformance-tenants", "conformance-private", "conformance-public"))
    whole["tools"][0]["tenants"] = [TENANT]
    await scene.register("conformance-tenants", "conformance-private", "conformance-public", document=json.dumps(whole).encode())
    await scene.answer(await scene.found("conformance-public", "conformance-tenants", LEASE))
    private: dict[str, Any] = {"service": "", "tool": "conformance-private"}
    await scene.answer(await scene.called("of its tenant", queue="conformance-tenants", user=TENANT, **private), "fine")
    _is(await scene.ended("of its tenant"), "fine", None)
    await _is_omitted(scene, "of another user", "conformance-tenants", tool="conformance-private", user="somebody-else")


@AGENT.check("A54", 2)
async def names_open_flushes(scene: AgentScene) -> None:
    """A flush that is sent while earlier ones are unanswered names the latest of them."""
    flushes: list[list[bytes]] = []

    def is_flush(words: list[bytes]) -> bool:
        if _publishes(words):
            flushes.append(words[3 + int(words[2]) :])
        return _publishes(words)

    await scene.answer(await scene.called("first"))
    await scene.ended("first")
    scene.proxy.plan(is_flush, "late", after=1.0)
    scene.proxy.plan(is_flush, "late")
    for name in ("open", "behind"):
        taken = await scene.called(name)
        if name == "open" and not scene.proxy.withheld:
            raise Broken("it does not publish with a script that has `pub:<agent>` as its first key")
        is_early = scene.proxy.withheld > 0
        await scene.answer(taken, "fine")
    for name in ("open", "behind"):
        _is(await scene.ended(name), "fine", None)
    # One that waits for the answer has no flush to name.
    latest = flushes[-1]
    if is_early and ((len(latest) - 3) % 4 != 1 or latest[-1] != flushes[0][0]):
        raise Broken(f"a flush that was sent before the answer of flush {flushes[0][0].decode()} has the end {latest[-1][:40]!r}")


# -- level 3 --------------------------------------------------------------------------------------


@AGENT.check("A42", 3)
async def publishes_once_work(scene: AgentScene) -> None:
    """A call of a `once` tool says so, and its entry names the server process by its `run_id`."""
    await scene.register("conformance-careful", "conformance-once", effect="once")
    taken = await scene.found("conformance-once", "conformance-careful", 10.0)
    info = (await scene.probe.run("INFO", "server")).decode()
    (server,) = re.findall(r"^run_id:(\w+)", info, re.MULTILINE)
    if taken.request.get("effect") != "once" or taken.server != server:
        raise Broken(f"the effect is {taken.request.get('effect')!r}, and the field s {taken.server!r}; the server is {server}")


@AGENT.check("A43", 3)
async def ends_with_unknown_outcomes(scene: AgentScene) -> None:
    """A `once` call whose time is up ends as deadline_exceeded if it never ran, else as outcome_unknown."""
    await scene.register("conformance-careful", "conformance-once", effect="once")
    await scene.answer(await scene.found("conformance-once", "conformance-careful", 10.0))
    once: dict[str, Any] = {"service": "", "tool": "conformance-once", "queue": "conformance-careful", "timeout": 1.0}
    await scene.called("waits", **once)
    _is(await scene.ended("waits", 5.0), None, "deadline_exceeded")
    await scene.take(await scene.called("runs", **once), "conformance-careful")
    _is(await scene.ended("runs", 5.0), None, "outcome_unknown")


@AGENT.check("A44", 3)
async def shares(scene: AgentScene) -> None:
    """Calls with one idempotency key are one shared request, whose stream each of them reads from its beginning."""
    taken = await scene.called("first", key="one key")
    if not taken.request.get("shared") or taken.request.get("idempotency_key") != "one key":
        raise Broken(f"shared is {taken.request.get('shared')}, idempotency_key {taken.request.get('idempotency_key')!r}")
    await scene.send(taken, {"seq": 0, "response": "for "})
    await until(lambda: _has_text(scene, "first", "for "), 5.0, "the text of the call's own stream was not told")
    await scene.call("second", key="one key")
    await until(lambda: _has_text(scene, "second", "for "), 5.0, "who joins a call was not told what came before")
    await scene.send(taken, {"seq": 1, "response": "both"}, {"seq": 2, "kind": "end", "end_of_stream": True})
    for name in ("first", "second"):
        _is(await scene.ended(name), "for both", None)
    if await scene.request_of(SERVICE):
        raise Broken("the call was published twice")


async def _two_share(scene: AgentScene) -> bool:
    """Return whether two callers share the call of the idempotency key `one key`."""
    fields = await scene.probe.run("HKEYS", scene.keys.shared(session_digest("", "one key")))
    return sum(bytes(field).startswith(b"c:") for field in fields) == 2


async def _joined(scene: AgentScene) -> None:
    """Have a second caller join the call of that key."""
    await scene.call("second", key="one key")
    await until(lambda: _two_share(scene), 5.0, "the record of the key does not have two callers")


@AGENT.check("A45", 3)
async def leaves_shared_calls(scene: AgentScene) -> None:
    """A cancelled shared call goes on while others wait for it; the last one that cancels takes it out of the queue."""
    taken = await scene.called("first", key="one key")
    await _joined(scene)
    await scene.cancel("first")
    _is(await scene.ended("first", 3.0), None, "cancelled")

    async def is_one() -> bool:
        return not await _two_share(scene)

    await until(is_one, 3.0, "the record of the key still has the caller that cancelled")
    if not await scene.waits(taken.entry):
        raise Broken("the request is out of the queue although another caller waits for it")
    await scene.cancel("second")

    async def is_out() -> bool:
        return not await scene.waits(taken.entry)

    await until(is_out, 3.0, "the request is in the queue although nobody waits for it")


@AGENT.check("A46", 3)
async def orders_sessions(scene: AgentScene) -> None:
    """Calls in a session of a service with sticky-sessions are ordered: each entry names the one before it."""
    first = await _in_session(scene, "1")
    if not first.request.get("ordered"):
        raise Broken("`ordered` is not set")
    second = await _in_session(scene, "2")
    if second.after != first.entry:
        raise Broken(f"the field p is {second.after!r}; the entry before it is {first.entry}")


@AGENT.check("A47", 3)
async def remembers_states(scene: AgentScene) -> None:
    """It sends the token that the last `end` frame of the session said with further requests."""
    first = await _in_session(scene, "1")
    await scene.answer(first, state="token-of-the-kit")
    await scene.ended("1")
    second = await _in_session(scene, "2")
    if second.request.get("state") != "token-of-the-kit":
        raise Broken(f"the field state is {second.request.get('state')!r}")


@AGENT.check("A48", 3)
async def announces_its_end(scene: AgentScene) -> None:
    """An agent that leaves publishes `left <agent>` to each queue that it called in a session."""
    async with Ear(scene.port, scene.keys.wake(_STICKY)) as ear:
        taken = await _in_session(scene, "1")
        await scene.answer(taken)
        await scene.ended("1")
        await scene.leave()

        async def is_published() -> bool:
            return f"left {taken.agent}" in ear.heard

        await until(is_published, 2.0, f"the workers were told {ear.heard}")


@AGENT.check("A49", 3)
async def sweeps(scene: AgentScene) -> None:
    """Once a lease it takes workers whose lease has ended out of the registry."""
    instance = await scene.register("conformance-dead", "conformance-unserved")
    await scene.probe.run("ZADD", scene.keys.live, int(time.time() * 1000) - 10_000, f"conformance-dead/{instance}")

    async def is_gone() -> bool:
        scene.check_alive()
        return not await scene.probe.run("HEXISTS", scene.keys.services, "conformance-dead")

    await until(is_gone, 4 * LEASE, "the service of a dead worker is still in the registry")


@AGENT.check("A55", 3)
async def closes_sessions(scene: AgentScene) -> None:
    """A session is closed with `end` on the channel of each queue that was called in it."""
    async with Ear(scene.port, scene.keys.wake(_STICKY)) as ear:
        await scene.answer(await _in_session(scene, "1"))
        await scene.ended("1")
        await scene.close_session("kit", "s")

        async def is_published() -> bool:
            return any(word.startswith("end ") and json.loads(word[4:]) == ["kit", "s"] for word in ear.heard)

        await until(is_published, 3.0, f"the workers were told {ear.heard}")


@AGENT.check("A56", 3)
async def begins_joined_calls_again(scene: AgentScene) -> None:
    """A call that was joined and ended without having run is published again."""
    first = await scene.called("first", key="one key")
    await _joined(scene)
    # As a worker does that ends a call which was cancelled before it ran.
    await scene.probe.run("DEL", scene.keys.shared(session_digest("", "one key")))
    await scene.answer(first, error={"type": "cancelled", "code": "not_begun", "message": "its caller gave up"})
    again = await scene.taken()
    await scene.answer(again, "run after all")
    _is(await scene.ended("second"), "run after all", None)


@AGENT.check("A57", 3)
async def waits_for_people(scene: AgentScene) -> None:
    """The caller's time stands still between the two frames `confirm`."""
    taken = await scene.called("1", timeout=1.5)
    asked = {"id": "a" * 32, "question": "May it?", "timeout": 20.0}
    await scene.send(taken, {"seq": 0, "kind": "confirm", "confirm": asked})
    await asyncio.sleep(2.5)
    scene.check_alive()
    if any("end" in event for event in scene.events.get("1", [])):
        raise Broken("the call's time went on while its handler waited for a person")
    await scene.send(taken, {"seq": 1, "kind": "confirm", "confirm": {"id": "a" * 32, "allowed": True}})
    await scene.send(taken, {"seq": 2, "kind": "end", "end_of_stream": True, "response": "allowed"})
    _is(await scene.ended("1"), "allowed", None)


# -- what no check can see ------------------------------------------------------------------------

AGENT.unchecked(
    "A51",
    3,
    "asks-sentinels",
    "`once` work is published while all Sentinels agree on the server only",
    "the kit runs one server, without Sentinels",
)
