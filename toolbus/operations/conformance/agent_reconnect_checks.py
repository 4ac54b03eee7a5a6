"""Requirements of an agent of level 2: the registry and its log, new runs, lost connections, refusals."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from toolbus.operations.conformance.agent_scene import AgentScene, end
from toolbus.operations.conformance.checks import TENANT, Broken, Table, broken_if, until
from toolbus.operations.conformance.scene import LEASE, SERVICE, STARTS

RECONNECTS = Table[AgentScene]()


def _publishes(words: list[bytes]) -> bool:
    """Return whether a command publishes requests."""
    return words[0].upper() in {b"EVAL", b"EVALSHA", b"FCALL"} and any(b":pub:" in word[:200] for word in words[3:4])


async def _refused(scene: AgentScene, error: str) -> None:
    """Refuse a flush with an error; its calls are to be published and answered all the same."""
    await scene.answered("first")
    scene.proxy.plan(_publishes, "refuse", error)
    taken = await scene.called("refused")
    broken_if(not scene.proxy.done, "it does not publish with a script that has `pub:<agent>` as its first key")
    await scene.finished("refused", taken, "fine")


@RECONNECTS.check("A26", 2)
async def hides_equal_runs(scene: AgentScene) -> None:
    """A later attempt with the same text goes on where the old one stood, without a reset."""
    taken = await scene.streamed("the same ")
    again = {"run": "second", "attempt": 2}
    await scene.send(taken, {**again, "seq": 0, "response": "the "}, {**again, "seq": 1, "response": "same text"})
    await scene.send(taken, end(2, **again))
    await scene.ended_as("1", "the same text", None)
    broken_if(any(event.get("reset") for event in scene.events["1"]), "it told a reset although the text is the same")


@RECONNECTS.check("A27", 2)
async def tells_gaps(scene: AgentScene) -> None:
    """When missing frames do not come, the call ends as outcome_unknown."""
    await scene.answered_by(None, [{"seq": 0, "response": "a"}, end(2)], error="outcome_unknown", within=8.0)


@RECONNECTS.check("A28", 2)
async def waits_for_no_refused_frames(scene: AgentScene) -> None:
    """An end with the code `frames_refused` ends the call at once, also when frames before it are missing."""
    error = {"type": "unavailable", "code": "frames_refused", "message": "too large"}
    await scene.answered_by(None, [{"seq": 0, "response": "a"}, end(5, error=error)], error="unavailable", within=2.0)


@RECONNECTS.check("A29", 2)
async def ends_at_malformed_frames(scene: AgentScene) -> None:
    """An end that can't be read, but for its `id`, `run` and numbers, ends the call as outcome_unknown."""
    await scene.answered_by(None, [{"seq": 0, "response": "a"}, end(1, error="no object")], error="outcome_unknown", within=3.0)


@RECONNECTS.check("A30", 2)
async def makes_its_stream_again(scene: AgentScene) -> None:
    """When its reply stream is lost it makes it again, and reads it from the start."""
    taken = await scene.called()
    stream = scene.keys.replies(taken.agent)
    await scene.probe.run("DEL", stream)
    await until(lambda: scene.exists(stream), 20.0, "the reply stream was not made again")
    await scene.answer(taken, "after the loss")
    await scene.ended_as("1", "after the loss", None, within=15.0)


@RECONNECTS.check("A31", 2)
async def reads_the_registry(scene: AgentScene) -> None:
    """It finds a tool by its name in the registry."""
    taken = await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    broken_if(taken.request.get("service") != SERVICE, f"it called the service {taken.request.get('service')!r}")


@RECONNECTS.check("A32", 2)
async def follows_the_log(scene: AgentScene) -> None:
    """It reads the log: a tool that is published while it runs can be called."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    await scene.write_into_the_log("conformance-late", "conformance-later")
    await scene.found("conformance-later", "conformance-late", 3 * LEASE)


@RECONNECTS.check("A33", 2)
async def sees_gaps_in_the_log(scene: AgentScene) -> None:
    """When `prev` of a log entry is not the token of the entry before, it loads a fresh snapshot."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    await scene.write_silently("conformance-silent", "conformance-untold", "untold")
    fields = {"op": "gone", "key": "conformance-of-nobody", "doc": "", "token": "told", "prev": "untold"}
    await scene.probe.run("HSET", scene.keys.meta, "token", "told")
    await scene.probe.run("XADD", scene.keys.log, "*", *(word for pair in fields.items() for word in pair))
    await scene.found("conformance-untold", "conformance-silent", LEASE)


@RECONNECTS.check("A34", 2)
async def looks_at_the_token(scene: AgentScene) -> None:
    """When `reg:meta` has a token that no log entry brings, it loads a fresh snapshot."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    await scene.write_silently("conformance-silent", "conformance-untold", "untold")
    await scene.found("conformance-untold", "conformance-silent", LEASE + 2.0)


@RECONNECTS.check("A35", 2)
async def leaves_out_unreadable_tools(scene: AgentScene) -> None:
    """It reads a publication tool by tool: one with an impossible value is left out, and the others can be called."""
    await scene.found(f"{SERVICE}-echo", SERVICE, 10.0)
    await scene.register("conformance-mixed", "conformance-wrong", "conformance-right", first={"effect": "sometimes"})
    await scene.found("conformance-right", "conformance-mixed", LEASE)
    await _is_omitted(scene, "of a tool whose effect it can't know", "conformance-mixed", tool="conformance-wrong")


@RECONNECTS.check("A36", 2)
async def publishes_once(scene: AgentScene) -> None:
    """A flush that a lost connection left open is written again under its number: its calls are published once, and answered."""
    await scene.answered("first")
    for fault in ("cut before", "cut after"):
        scene.proxy.plan(_publishes, fault)
        taken = await scene.called(fault)
        broken_if(not scene.proxy.done, "it does not publish with a script that has `pub:<agent>` among its keys")
        scene.proxy.forget()
        await scene.finished(fault, taken, "fine")
        # Whatever was written again came before this one.
        await scene.answered(f"after {fault}")
        if again := await scene.request_of(SERVICE):
            raise Broken(f"the call was published twice; once more as {again.entry}, with the id {again.id}")


@RECONNECTS.check("A37", 2)
async def reads_on(scene: AgentScene) -> None:
    """When a connection ends in the middle of a read, it reads on behind the entry that it read last: nothing is lost or told twice."""
    taken = await scene.streamed("one ")
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
    await scene.send(taken, {"seq": 3, "response": "four "}, end(4))
    await scene.ended_as("1", "one two three four ", None)
    broken_if(scene.text("1") != "one two three four ", f"the pieces that it told are {scene.text('1')!r}")


@RECONNECTS.check("A38", 2)
async def reconnects(scene: AgentScene) -> None:
    """When its connections end while it waits, it connects again: its calls are answered, and it makes others."""
    taken = await scene.called("1")
    scene.proxy.cut()
    await scene.finished("1", taken, "after the cut")
    await scene.finished("2", await scene.called("2"), "another one")


@RECONNECTS.check("A39", 2)
async def sends_refused_flushes_again(scene: AgentScene) -> None:
    """A flush that is answered with NOTYET is sent again."""
    await _refused(scene, "NOTYET flush 0 was not carried out")


@RECONNECTS.check("A40", 2)
async def sends_refused_commands_again(scene: AgentScene) -> None:
    """A command that a server refuses while it loads its data, and was not carried out, is sent again."""
    await _refused(scene, "LOADING the server is loading the dataset in memory")


@RECONNECTS.check("A41", 2)
async def checks_the_namespace(scene: AgentScene) -> None:
    """It reads `P format` when it begins: in a namespace of a version that it does not speak it calls nothing, and ends."""
    await scene.end()
    await scene.probe.run("HSET", scene.keys.format, "version", 9)
    await scene.start()
    code = await scene.exit_code_of(STARTS)
    broken_if(not code, f"in a namespace of version 9 it {'went on' if code is None else 'ended with exit code 0'}")


async def _is_omitted(scene: AgentScene, name: str, queue: str, **more: Any) -> None:
    """Check that a call ends without having been published; ``more`` says what is called."""
    await scene.call(name, service="", timeout=3.0, **more)

    async def has_ended() -> bool:
        broken_if(await scene.request_of(queue), f"it published the call {name!r}")
        return bool(scene.ends(name))

    await until(has_ended, 10.0, f"the call {name!r} does not end")
    broken_if(not (await scene.ended(name)).get("error"), f"the call {name!r}, which was not published, ended as a success")


@RECONNECTS.check("A50", 2)
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


@RECONNECTS.check("A52", 2)
async def checks_arguments(scene: AgentScene) -> None:
    """Arguments are checked against the tool's schema before they are published."""
    await scene.answer(await scene.found(f"{SERVICE}-echo", SERVICE, 10.0))
    await _is_omitted(scene, "without its argument", SERVICE, text=None)


@RECONNECTS.check("A53", 2)
async def hides_tenants(scene: AgentScene) -> None:
    """A tool with `tenants` is hidden from other users."""
    await scene.answer(await scene.found(f"{SERVICE}-echo", SERVICE, 10.0))
    await scene.register("conformance-tenants", "conformance-private", "conformance-public", first={"tenants": [TENANT]})
    await scene.answer(await scene.found("conformance-public", "conformance-tenants", LEASE))
    private: dict[str, Any] = {"service": "", "tool": "conformance-private"}
    taken = await scene.called("of its tenant", queue="conformance-tenants", user=TENANT, **private)
    await scene.finished("of its tenant", taken, "fine")
    await _is_omitted(scene, "of another user", "conformance-tenants", tool="conformance-private", user="somebody-else")


@RECONNECTS.check("A54", 2)
async def names_open_flushes(scene: AgentScene) -> None:
    """A flush that is sent while earlier ones are unanswered names the latest of them."""
    # Each with how many answers the agent lacked when it was sent.
    flushes: list[tuple[list[bytes], int]] = []

    def is_flush(words: list[bytes]) -> bool:
        if _publishes(words):
            flushes.append((words[3 + int(words[2]) :], scene.proxy.withheld))
        return _publishes(words)

    await scene.answered("first")
    scene.proxy.plan(is_flush, "late", after=1.0)
    scene.proxy.plan(is_flush, "late")
    for name in ("open", "behind"):
        taken = await scene.called(name)
        broken_if(name == "open" and not scene.proxy.withheld, "it does not publish with a script that has `pub:<agent>` as its first key")
        await scene.answer(taken, "fine")
    for name in ("open", "behind"):
        await scene.ended_as(name, "fine", None)
    # One that waits for the answer has no flush to name.
    [first, *_], _ = flushes[0]
    latest, unanswered = flushes[-1]
    if unanswered and ((len(latest) - 3) % 4 != 1 or latest[-1] != first):
        raise Broken(f"a flush that was sent before the answer of flush {first.decode()} has the end {latest[-1][:40]!r}")


RECONNECTS.unchecked(
    "A58",
    2,
    "asks-people",
    "A model's call of a tool with `confirm` is published only once a person has allowed it",
    "the kit calls as a program does, which may allow its own calls",
)
