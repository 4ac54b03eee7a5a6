"""Check an agent: what it publishes, and what it makes of frames."""

from __future__ import annotations

import asyncio
import re
import time

from toolbus.operations.conformance.checks import Broken, Table, until
from toolbus.operations.conformance.scene import SERVICE, AgentScene

AGENT = Table[AgentScene]()
_IDENT = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


def _is(end: dict[str, object], text: str | None, error: str | None) -> None:
    found = end.get("error")
    kind = found.get("type") if isinstance(found, dict) else None
    if kind != error or (text is not None and end.get("text") != text):
        raise Broken(f"the call ended with {end.get('text')!r} and the error {kind}; expected were {text!r} and {error}")


@AGENT.check(0)
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


@AGENT.check(0)
async def keeps_its_reply_stream(scene: AgentScene) -> None:
    """Its reply stream exists before a request is published, and has a TTL that it renews."""
    taken = await scene.called()
    ttl = int(await scene.probe.run("PTTL", scene.keys.replies(taken.request["agent"])))
    if ttl < 0:
        raise Broken("the reply stream does not exist" if ttl == -2 else "the reply stream has no TTL")
    await scene.answer(taken)
    await scene.ended("1")


@AGENT.check(0)
async def tells_errors(scene: AgentScene) -> None:
    """A call that failed ends with the error of its `end` frame."""
    taken = await scene.called()
    await scene.answer(taken, error={"type": "tool_error", "code": "broken", "message": "no luck"})
    _is(await scene.ended("1"), None, "tool_error")


@AGENT.check(0)
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


@AGENT.check(0)
async def knows_absent_services(scene: AgentScene) -> None:
    """A call to a service that nobody serves ends at once as unavailable or not_found."""
    await scene.call("1", service="nobody", tool="nothing")
    end = await scene.ended("1", 10.0)
    kind = (end.get("error") or {}).get("type")
    if kind not in {"unavailable", "not_found"}:
        raise Broken(f"it ended as {kind}")


@AGENT.check(0)
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


@AGENT.check(0)
async def gives_up_in_time(scene: AgentScene) -> None:
    """A call without an answer ends at its own timeout as deadline_exceeded."""
    await scene.called("1", timeout=1.0)
    _is(await scene.ended("1", 5.0), None, "deadline_exceeded")


@AGENT.check(0)
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


@AGENT.check(1)
async def streams(scene: AgentScene) -> None:
    """Text is told piece by piece, also when a frame has several pieces in `texts`."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "one "})
    await until(lambda: _has_text(scene, "1", "one "), 5.0, "the first piece was not told before the second")
    await scene.send(taken, {"seq": 1, "texts": ["two ", "three "]}, {"seq": 2, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "one two three ", None)


async def _has_text(scene: AgentScene, name: str, text: str) -> bool:
    return scene.text(name) == text


@AGENT.check(1)
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


@AGENT.check(1)
async def waits_for_missing_frames(scene: AgentScene) -> None:
    """Frames that skip a seq are held back until those before them have come."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 1, "response": "b"}, {"seq": 2, "kind": "end", "end_of_stream": True})
    await asyncio.sleep(0.2)
    if scene.text("1"):
        raise Broken(f"it told {scene.text('1')!r} before the first piece had come")
    await scene.send(taken, {"seq": 0, "response": "a"})
    _is(await scene.ended("1"), "ab", None)


@AGENT.check(1)
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


@AGENT.check(1)
async def ignores_earlier_attempts(scene: AgentScene) -> None:
    """A run of an earlier attempt than the current one is ignored; a later epoch counts more than an attempt."""
    taken = await scene.called()
    await scene.send(taken, {"attempt": 3, "seq": 0, "response": "third"})
    await scene.send(taken, {"run": "second", "attempt": 2, "seq": 0, "kind": "end", "end_of_stream": True, "response": "second"})
    await scene.send(taken, {"run": "next", "epoch": 1, "attempt": 1, "seq": 0, "response": "next epoch"})
    await scene.send(taken, {"attempt": 3, "seq": 1, "kind": "end", "end_of_stream": True})
    await scene.send(taken, {"run": "next", "epoch": 1, "attempt": 1, "seq": 1, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "next epoch", None)


@AGENT.check(1)
async def takes_resets(scene: AgentScene) -> None:
    """A frame `reset` voids the text that came before it."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "void"}, {"seq": 1, "kind": "reset"}, {"seq": 2, "response": "valid"})
    await scene.send(taken, {"seq": 3, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "valid", None)


@AGENT.check(1)
async def joins_long_output(scene: AgentScene) -> None:
    """Pieces of kind `output` are the output of the call."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "kind": "output", "response": "first "}, {"seq": 1, "kind": "output", "response": "second"})
    await scene.send(taken, {"seq": 2, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1"), "first second", None)


@AGENT.check(1)
async def cancels(scene: AgentScene) -> None:
    """A cancelled call ends at once as cancelled, and is taken out of the queue or among the cancelled calls."""
    waiting = await scene.called("waits")
    await scene.cancel("waits")
    _is(await scene.ended("waits", 3.0), None, "cancelled")

    async def is_out() -> bool:
        return not await scene.waits(waiting.entry)

    await until(is_out, 3.0, "a cancelled request that nobody had taken is still in the queue")
    running = await scene.called("runs")
    await scene.probe.run("XREADGROUP", "GROUP", "g", "kit", "COUNT", 10, "STREAMS", scene.queue, ">")
    await scene.cancel("runs")
    await scene.ended("runs", 3.0)

    async def is_marked() -> bool:
        return await scene.probe.run("ZSCORE", scene.keys.cancelled(SERVICE), running.id) is not None

    await until(is_marked, 3.0, "a cancelled call that a worker has is not in `cancelled:`")


@AGENT.check(1)
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


@AGENT.check(2)
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


@AGENT.check(2)
async def tells_gaps(scene: AgentScene) -> None:
    """When missing frames do not come, the call ends as outcome_unknown."""
    taken = await scene.called()
    await scene.send(taken, {"seq": 0, "response": "a"}, {"seq": 2, "kind": "end", "end_of_stream": True})
    _is(await scene.ended("1", 8.0), None, "outcome_unknown")


@AGENT.check(2)
async def makes_its_stream_again(scene: AgentScene) -> None:
    """When its reply stream is lost it makes it again, and reads it from the start."""
    taken = await scene.called()
    stream = scene.keys.replies(taken.request["agent"])
    await scene.probe.run("DEL", stream)
    await until(lambda: scene.exists(stream), 20.0, "the reply stream was not made again")
    await scene.answer(taken, "after the loss")
    _is(await scene.ended("1", 15.0), "after the loss", None)
