"""Check a worker at levels 0 and 1: unary calls, streams, cancellation and deadlines."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

from toolbus.bus.broker import scripts
from toolbus.bus.broker.registry.publications import read_record
from toolbus.operations.conformance.checks import Broken, Table, until
from toolbus.operations.conformance.scene import SERVICE, Sent, WorkerScene, check_run, error_of, text_of

WORKER = Table[WorkerScene]()
_MOST_PIECE = 65_536


async def echo(scene: WorkerScene, text: str, role: str = "echo", **fields: Any) -> Sent:
    """Call the tool that returns its text, check its frames, and return the request."""
    sent = await scene.publish(role, {"text": text}, **fields)
    frames = await scene.ended(sent)
    check_run(frames)
    if error_of(frames) or text_of(frames) != text:
        raise Broken(f"{role} of {text[:40]!r} answered {text_of(frames)[:40]!r} {frames[-1].get('error') or ''}")
    return sent


async def _is_gone(scene: WorkerScene, sent: Sent, within: float = 5.0) -> None:
    await until(lambda: scene.is_finished(sent), within, "the request was not acknowledged and deleted after its end")


@WORKER.check(0)
async def registers(scene: WorkerScene) -> None:
    """It publishes its service with tools that agents can read."""
    listed = await scene.probe.run("HGET", scene.keys.services, SERVICE)
    if not listed or listed[:1] != b"+":
        raise Broken(f"reg:services has no live row of {SERVICE!r}")
    record = read_record(listed)
    names = {tool.name for tool in record.publication.tools}
    missing = {f"{SERVICE}-echo", f"{SERVICE}-count"} - names
    if missing:
        raise Broken(f"the publication lacks {', '.join(sorted(missing))}; it has {', '.join(sorted(names)) or 'no tools'}")
    if record.refused:
        raise Broken(f"agents can't read a tool: {record.refused[0].reason}")


@WORKER.check(0)
async def answers(scene: WorkerScene) -> None:
    """A call is answered by frames with its id, one run, seq from 0 and one end, and then deleted."""
    await _is_gone(scene, await echo(scene, "hello"))


@WORKER.check(0)
async def draws_runs(scene: WorkerScene) -> None:
    """Each start of a handler has a random run token of its own, and the attempt 1."""
    sent = [await echo(scene, str(number)) for number in range(3)]
    frames = [frame for each in sent for frame in await scene.frames(each)]
    if len({frame["run"] for frame in frames}) != len(sent):
        raise Broken("calls share a run token")
    if any(frame.get("attempt", 1) != 1 for frame in frames):
        raise Broken(f"the attempt of a first delivery is 1, not {[frame.get('attempt', 1) for frame in frames]}")


@WORKER.check(0)
async def keeps_text(scene: WorkerScene) -> None:
    """Text comes back unchanged: quotes, line breaks, NUL, characters of two to four bytes."""
    await echo(scene, 'é "quoted" \\ \n \x00 \u2028 中 𝄞')


@WORKER.check(0)
async def answers_many(scene: WorkerScene) -> None:
    """300 calls at once are all answered, each once and with its own text."""
    sent = await asyncio.gather(*(scene.publish("echo", {"text": f"text {number}"}) for number in range(300)))
    for number, each in enumerate(sent):
        frames = await scene.ended(each, 20)
        check_run(frames)
        if text_of(frames) != f"text {number}":
            raise Broken(f"call {number} got {text_of(frames)[:60]!r}")


@WORKER.check(0)
async def refuses_unknown_tools(scene: WorkerScene) -> None:
    """A request for a tool that it does not have ends as not_found."""
    frames = await scene.ended(await scene.publish("nothing-like-this", {}))
    if error_of(frames) != "not_found":
        raise Broken(f"it ended as {error_of(frames) or 'a success'}")


@WORKER.check(0)
async def refuses_other_versions(scene: WorkerScene) -> None:
    """A request with another envelope version ends as invalid_arguments, and is not run."""
    frames = await scene.ended(await scene.publish("echo", {"text": "x"}, v=2))
    if error_of(frames) != "invalid_arguments":
        raise Broken(f"it ended as {error_of(frames) or 'a success'}")


@WORKER.check(0)
async def ignores_unknown_fields(scene: WorkerScene) -> None:
    """Fields that it does not know change nothing."""
    await echo(scene, "x", surprise={"deep": [1, 2]}, priority=0)


@WORKER.check(0)
async def leaves_expired_requests(scene: WorkerScene) -> None:
    """A request whose deadline has passed is answered with deadline_exceeded and not run."""
    sent = await scene.publish("echo", {"text": "late"}, due=int(time.time() * 1000) - 5_000)
    frames = await scene.ended(sent)
    if error_of(frames) != "deadline_exceeded" or "late" in text_of(frames):
        raise Broken(f"it ended as {error_of(frames) or 'a success'} with the text {text_of(frames)[:40]!r}")


@WORKER.check(0)
async def survives_hostile_deadlines(scene: WorkerScene) -> None:
    """A field d that is no number, or none that makes sense, stops nothing."""
    for due in ("", "abc", "-1", "9" * 400, "NaN", "1e999", str(2**63)):
        await scene.publish("echo", {"text": "x"}, due=due)
    await echo(scene, "after hostile deadlines")


@WORKER.check(0)
async def survives_unreadable_requests(scene: WorkerScene) -> None:
    """Requests that are no JSON, no objects, or have fields of wrong types stop nothing."""
    due = str(int(time.time() * 1000) + 30_000)
    good = {"id": secrets.token_hex(16), "agent": scene.agent, "service": SERVICE, "tool": f"{SERVICE}-echo", "arguments": {"text": "x"}}
    wrong = [
        b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"id": 5}',
        *(json.dumps({**good, name: value}).encode() for name, value in (
            ("id", None), ("agent", ["a"]), ("agent", "../x"), ("tool", 7), ("arguments", "text"), ("arguments", None), ("arguments", [1]),
            ("timeout", "soon"), ("config", 3), ("metadata", []), ("v", "1"), ("session", {}), ("id", "x" * 10_000),
        )),
    ]  # fmt: skip
    for document in wrong:
        await scene.add(document, due)
    await scene.probe.run("XADD", scene.queue, "*", "unknown", "field")
    await echo(scene, "after unreadable requests")


@WORKER.check(0)
async def survives_callers_that_left(scene: WorkerScene) -> None:
    """A caller without a reply stream gets no stream back, and stops nothing."""
    gone = secrets.token_hex(16)
    sent = await scene.publish("echo", {"text": "x"}, agent=gone)
    await _is_gone(scene, sent)
    kept = await scene.probe.run("PTTL", scene.keys.replies(gone))
    if int(kept) == -1:
        raise Broken("it made a reply stream that is never removed")
    await echo(scene, "after a caller that left")


@WORKER.check(0)
async def registers_again(scene: WorkerScene) -> None:
    """When the server has lost everything, it registers again and goes on."""
    await scene.probe.run("FLUSHDB")
    await until(scene.instances, 15.0, "it is not in the registry again")
    await scene.listen()
    await until(lambda: scene.probe.run("EXISTS", scene.queue), 15.0, "its request stream was not made again")
    await echo(scene, "after a flush")


@WORKER.check(0)
async def leaves(scene: WorkerScene) -> None:
    """On SIGTERM it leaves the registry, answers what runs, and ends with exit code 0."""
    if scene.worker is None:
        raise Broken("there is no worker")
    sent = await scene.publish("count", {"to": 5, "delay": 0.1})
    await until(lambda: _is_running(scene, sent), 5.0, "the call did not begin")
    code = await scene.program.stop(scene.worker)
    if code != 0:
        raise Broken(f"it ended with exit code {code}{scene.program.said()}")
    if await scene.instances():
        raise Broken("it is still in `live` after its end")
    frames = await scene.frames(sent)
    if not frames or not frames[-1].get("end_of_stream"):
        holder, _, _ = await scene.holder(sent)
        if not holder.startswith("~back"):
            raise Broken("a call that ran at SIGTERM was neither answered nor handed back")


async def _is_running(scene: WorkerScene, sent: Sent) -> bool:
    return bool((await scene.holder(sent))[0])


# -- level 1 --------------------------------------------------------------------------------------


@WORKER.check(1)
async def streams(scene: WorkerScene) -> None:
    """Text comes while the tool works, in order, with seq from 0."""
    begun = time.monotonic()
    sent = await scene.publish("count", {"to": 8, "delay": 0.1})

    async def has_text() -> bool:
        return bool(text_of([*await scene.frames(sent), {}]))

    await until(has_text, 5.0, "no text came")
    first = time.monotonic() - begun
    frames = await scene.ended(sent)
    check_run(frames)
    if text_of(frames).split() != [str(number) for number in range(1, 9)]:
        raise Broken(f"the text is {text_of(frames)!r}, not the numbers from 1 to 8")
    if time.monotonic() - begun - first < 0.2:
        raise Broken("all text came at the end")


@WORKER.check(1)
async def cuts_between_characters(scene: WorkerScene) -> None:
    """A piece of text has at most 65,536 bytes of UTF-8 and is cut between characters."""
    text = "x" + "𝄞é中" * 20_000
    sent = await echo(scene, text)
    for frame in await scene.frames(sent):
        for part in frame.get("texts") or [frame.get("response") or ""]:
            if frame.get("kind", "text") == "text" and len(part.encode("utf-8", "surrogatepass")) > _MOST_PIECE:
                raise Broken(f"a piece of text has {len(part.encode('utf-8', 'surrogatepass')):,} bytes")


@WORKER.check(1)
async def tells_starts(scene: WorkerScene) -> None:
    """With `events`, a frame `start` comes before anything else."""
    frames = await scene.ended(await scene.publish("count", {"to": 2, "delay": 0.1}, events=True))
    check_run(frames)
    if frames[0].get("kind") != "start":
        raise Broken(f"the first frame is {frames[0].get('kind', 'text')!r}")


@WORKER.check(1)
async def cancels(scene: WorkerScene) -> None:
    """A cancelled call stops soon: it is deleted, and no text follows."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05})
    await until(lambda: _has_begun(scene, sent), 5.0, "no text came")
    keys = (scene.queue, scene.keys.cancelled(SERVICE))
    found = await scene.probe.script(scripts.CANCEL, keys, sent.entry, sent.id, 30_000, scene.keys.wake(SERVICE))
    if found != b"signalled":
        raise Broken(f"the call was {found!r} instead of running")
    await until(lambda: scene.is_finished(sent), 3.0, "the call went on after it was cancelled")
    told = len(await scene.frames(sent))
    await asyncio.sleep(0.3)
    if len(await scene.frames(sent)) > told:
        raise Broken("frames came after the end of a cancelled call")


async def _has_begun(scene: WorkerScene, sent: Sent) -> bool:
    return bool(await scene.frames(sent))


@WORKER.check(1)
async def keeps_deadlines(scene: WorkerScene) -> None:
    """A call is stopped at its deadline and ends as deadline_exceeded."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05}, timeout=1.0)
    frames = await scene.ended(sent, 4.0)
    check_run(frames)
    if error_of(frames) != "deadline_exceeded":
        raise Broken(f"it ended as {error_of(frames) or 'a success'}")


@WORKER.check(1)
async def stops_for_callers_that_leave(scene: WorkerScene) -> None:
    """A call whose caller's reply stream is gone is stopped, and the stream is not made for good."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05})
    await until(lambda: _has_begun(scene, sent), 5.0, "no text came")
    await scene.probe.run("DEL", scene.keys.replies(scene.agent))
    await until(lambda: scene.is_finished(sent), 5.0, "the call went on without a caller")
    await scene.listen()
    await echo(scene, "another caller")


@WORKER.check(1)
async def frees_slots(scene: WorkerScene) -> None:
    """Calls stopped at their deadline leave nothing behind: a hundred of them, and the next calls are answered."""
    stopped = 0
    for _ in range(10):
        publishing = (scene.publish("count", {"to": 1_000, "delay": 0.05}, timeout=1.0) for _ in range(100))
        sent = await asyncio.gather(*publishing)
        for each in sent:
            # A call that expired in the queue has one frame: it never held a slot.
            stopped += len(await scene.ended(each, 60.0)) > 1
        if stopped >= 100:
            break
    else:
        raise Broken(f"of 1000 calls with a second each, only {stopped} were begun in time")
    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(echo(scene, f"slot {number}"))
