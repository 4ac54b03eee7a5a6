"""Requirements of a worker, by the numbers of docs/protocol.md, and their checks."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.values.descriptors import Publication
from toolbus.operations.conformance.checks import Broken, NotChecked, Table, until
from toolbus.operations.conformance.scene import LEASE, SERVICE, STARTS, Sent, WorkerScene

WORKER = Table[WorkerScene]()
_MOST_PIECE = 65_536
# Seconds of a call that outlives a lease, and of the pieces of its text.
_LONG = {"to": 60, "delay": 0.1}
_TAKES_OVER = 4 * LEASE + 6.0
# Seconds by which a busy machine may be late.
_SLACK = 1.5

Frames = list[dict[str, Any]]


def _text_of(frames: Frames) -> str:
    """Return the whole text of a call that has ended."""
    end = frames[-1]
    if isinstance(end.get("response"), str):
        return str(end["response"])
    pieces = [
        part for frame in frames if frame.get("kind", "text") == "text" for part in (frame.get("texts") or [frame.get("response") or ""])
    ]
    return "".join(pieces) + "".join(frame["response"] for frame in frames if frame.get("kind") == "output")


def _error_of(frames: Frames) -> str:
    """Return the type of the error with which a call ended; empty when it succeeded."""
    error = frames[-1].get("error")
    return str(error.get("type", "?")) if isinstance(error, dict) else ""


def _check_run(frames: Frames) -> None:
    """Check the frames of a call with one run: numbered from 0 without gaps, and one end, which is the last.

    Raises:
        Broken: they are not.
    """
    runs = {frame.get("run") for frame in frames}
    if len(runs) != 1 or not all(isinstance(run, str) and run for run in runs):
        raise Broken(f"the frames of one run must have the same token in `run`, not {sorted(map(str, runs))}")
    numbers = [frame.get("seq", 0) for frame in frames]
    if numbers != list(range(len(frames))):
        raise Broken(f"`seq` must count from 0 without gaps, and was {numbers[:20]}")
    ends = [bool(frame.get("end_of_stream")) for frame in frames]
    if ends.count(True) != 1 or not ends[-1]:
        raise Broken(f"exactly one frame has end_of_stream, the last one; there were {ends.count(True)}")


def _ended_as(frames: Frames, error: str) -> None:
    """Check the type of the error with which a call ended."""
    if _error_of(frames) != error:
        raise Broken(f"it ended as {_error_of(frames) or 'a success'} instead of {error}, with the text {_text_of(frames)[:40]!r}")


async def _begun(scene: WorkerScene, sent: Sent) -> None:
    """Wait until a call has sent text."""

    async def has_text() -> bool:
        return any(
            (frame.get("kind", "text") == "text" and frame.get("response")) or frame.get("texts") for frame in await scene.frames(sent)
        )

    await until(has_text, 5.0, "no text came")


async def _echo(scene: WorkerScene, text: str, role: str = "echo", **fields: Any) -> Sent:
    """Call the tool that returns its text, check its frames, and return the request."""
    sent = await scene.publish(role, {"text": text}, **fields)
    frames = await scene.ended(sent)
    _check_run(frames)
    if _error_of(frames) or _text_of(frames) != text:
        raise Broken(f"{role} of {text[:40]!r} answered {_text_of(frames)[:40]!r} {frames[-1].get('error') or ''}")
    return sent


async def _is_gone(scene: WorkerScene, sent: Sent, within: float = 5.0) -> None:
    await until(lambda: scene.is_finished(sent), within, "the request was not acknowledged and deleted after its end")


async def _is_running(scene: WorkerScene, sent: Sent) -> bool:
    return bool((await scene.holder(sent))[0])


async def _runs_as(scene: WorkerScene, sent: Sent, attempt: int) -> bool:
    """Return whether text of an attempt has come."""
    return any(frame.get("attempt", 1) == attempt and not frame.get("end_of_stream") for frame in await scene.frames(sent))


async def _publication(scene: WorkerScene) -> Publication:
    """Return what the worker has published."""
    listed = await scene.probe.run("HGET", scene.keys.services, SERVICE)
    if not listed or listed[:1] != b"+":
        raise Broken(f"reg:services has no live row of {SERVICE!r}")
    record = read_record(listed)
    if record.refused:
        raise Broken(f"agents can't read a tool: {record.refused[0].reason}")
    return record.publication


async def _tools(scene: WorkerScene) -> set[str]:
    return {tool.name for tool in (await _publication(scene)).tools}


async def _session(scene: WorkerScene) -> tuple[str, dict[str, Any]]:
    """Return the key of the owner of a new session, and the fields of its requests.

    Raises:
        NotChecked: the service has no sessions.
    """
    if not (await _publication(scene)).service.sticky_sessions:
        raise NotChecked("its service has no sticky-sessions")
    session = {"user": "kit", "session": secrets.token_hex(8)}
    return scene.keys.session(SERVICE, session_digest(*session.values())), session


async def _only_instance(scene: WorkerScene) -> str:
    """Return the instance of the worker when the leases of those that were killed before have ended."""

    async def only() -> str:
        found = await scene.instances()
        return found[0] if len(found) == 1 else ""

    return await until(only, LEASE + _SLACK, "there is not one worker in `live`")


async def _call_stream(scene: WorkerScene) -> str:
    """Make the stream of a shared call, and return the call's id."""
    call = secrets.token_hex(16)
    await scene.probe.run("XADD", scene.keys.call(call), "*", "o", "made")
    await scene.probe.run("PEXPIRE", scene.keys.call(call), 60_000)
    return call


async def _shared_end(scene: WorkerScene, sent: Sent) -> Frames:
    """Return the frames of a shared call when its end has come."""

    async def has_ended() -> bool:
        return any(frame.get("end_of_stream") for frame in await scene.shared_frames(sent))

    await until(has_ended, 10.0, "no end came in the call's stream")
    return await scene.shared_frames(sent)


async def _unseen(scene: WorkerScene, role: str, arguments: dict[str, object], consumer: str, deliveries: int, **fields: Any) -> Sent:
    """Publish a request that the worker is not delivered, because a consumer took it first."""
    call, document, due = scene.unsent(role, arguments, **fields)
    # In one script, so that nobody is delivered anything between the commands.
    entry = await scene.probe.run(
        "EVAL",
        "local id = redis.call('XADD', KEYS[1], '*', 'r', ARGV[1], 'd', ARGV[2]) "
        "redis.call('XGROUP', 'SETID', KEYS[1], 'g', id) "
        "redis.call('XCLAIM', KEYS[1], 'g', ARGV[3], 0, id, 'RETRYCOUNT', ARGV[4], 'FORCE', 'JUSTID') return id",
        1, scene.queue, document, due, consumer, deliveries,
    )  # fmt: skip
    return Sent(call, entry.decode())


async def _taken_over(scene: WorkerScene, sent: Sent, news: str = "dead") -> Frames:
    """Tell the worker what there is to take over, and return the frames with which it answered."""
    await scene.tell(f"{news} {SERVICE}")
    return await scene.ended(sent, _TAKES_OVER)


async def _moved_after_a_renewal(scene: WorkerScene, other: str, beside: int = 0) -> tuple[Sent, list[Sent]]:
    """Return a call that runs and was moved to another worker, and others that run beside it.

    All of them end before the worker renews what it holds again, so that its ends alone can show that it lost the first one.
    """
    long = await scene.publish("count", {"to": 40, "delay": 0.1})
    await _begun(scene, long)
    _, before, _ = await scene.holder(long)

    async def is_renewed() -> bool:
        nonlocal before
        _, idle, _ = await scene.holder(long)
        before, was = idle, before
        return idle < was

    await until(is_renewed, LEASE + _SLACK, "it does not renew what it holds")
    sent, *others = [await scene.publish("count", {"to": 3, "delay": 0.1}) for _ in range(1 + beside)]
    for each in (sent, *others):
        await _begun(scene, each)
    await scene.move(sent, other)
    return sent, others


@WORKER.check("W1", 0)
async def registers(scene: WorkerScene) -> None:
    """It publishes its service with tools that agents can read."""
    names = await _tools(scene)
    missing = {f"{SERVICE}-echo", f"{SERVICE}-count"} - names
    if missing:
        raise Broken(f"the publication lacks {', '.join(sorted(missing))}; it has {', '.join(sorted(names)) or 'no tools'}")


@WORKER.check("W2", 0)
async def answers(scene: WorkerScene) -> None:
    """A call is answered by frames with its id, one run, seq from 0 and one end, and then deleted."""
    await _is_gone(scene, await _echo(scene, "hello"))


@WORKER.check("W3", 0)
async def draws_runs(scene: WorkerScene) -> None:
    """Each start of a handler has a random run token of its own, and the attempt 1."""
    sent = [await _echo(scene, str(number)) for number in range(3)]
    frames = [frame for each in sent for frame in await scene.frames(each)]
    if len({frame["run"] for frame in frames}) != len(sent):
        raise Broken("calls share a run token")
    if any(frame.get("attempt", 1) != 1 for frame in frames):
        raise Broken(f"the attempt of a first delivery is 1, not {[frame.get('attempt', 1) for frame in frames]}")


@WORKER.check("W4", 0)
async def keeps_text(scene: WorkerScene) -> None:
    """Text comes back unchanged: quotes, line breaks, NUL, characters of two to four bytes."""
    await _echo(scene, 'é "quoted" \\ \n \x00 \u2028 中 𝄞')


@WORKER.check("W5", 0)
async def answers_many(scene: WorkerScene) -> None:
    """300 calls at once are all answered, each once and with its own text."""
    sent = await asyncio.gather(*(scene.publish("echo", {"text": f"text {number}"}) for number in range(300)))
    for number, each in enumerate(sent):
        frames = await scene.ended(each, 20)
        _check_run(frames)
        if _text_of(frames) != f"text {number}":
            raise Broken(f"call {number} got {_text_of(frames)[:60]!r}")


@WORKER.check("W6", 0)
async def refuses_unknown_tools(scene: WorkerScene) -> None:
    """A request for a tool that it does not have ends as not_found."""
    frames = await scene.ended(await scene.publish("nothing-like-this", {}))
    _ended_as(frames, "not_found")


@WORKER.check("W7", 0)
async def refuses_other_versions(scene: WorkerScene) -> None:
    """A request with another envelope version ends as invalid_arguments, and is not run."""
    frames = await scene.ended(await scene.publish("echo", {"text": "x"}, v=2))
    _ended_as(frames, "invalid_arguments")


@WORKER.check("W8", 0)
async def ignores_unknown_fields(scene: WorkerScene) -> None:
    """Fields that it does not know change nothing."""
    await _echo(scene, "x", surprise={"deep": [1, 2]}, priority=0)


@WORKER.check("W9", 0)
async def leaves_expired_requests(scene: WorkerScene) -> None:
    """A request whose deadline has passed is answered with deadline_exceeded and not run."""
    sent = await scene.publish("echo", {"text": "late"}, due=int(time.time() * 1000) - 5_000)
    frames = await scene.ended(sent)
    _ended_as(frames, "deadline_exceeded")
    if "late" in _text_of(frames):
        raise Broken("it was run all the same")


@WORKER.check("W10", 0)
async def survives_hostile_deadlines(scene: WorkerScene) -> None:
    """A field d that is no number, or none that makes sense, stops nothing."""
    for due in ("", "abc", "-1", "9" * 400, "NaN", "1e999", str(2**63)):
        await scene.publish("echo", {"text": "x"}, due=due)
    await _echo(scene, "after hostile deadlines")


@WORKER.check("W11", 0)
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
    await _echo(scene, "after unreadable requests")


@WORKER.check("W12", 0)
async def survives_callers_that_left(scene: WorkerScene) -> None:
    """A caller without a reply stream gets no stream back, and stops nothing."""
    gone = secrets.token_hex(16)
    sent = await scene.publish("echo", {"text": "x"}, agent=gone)
    await _is_gone(scene, sent)
    kept = await scene.probe.run("PTTL", scene.keys.replies(gone))
    if int(kept) == -1:
        raise Broken("it made a reply stream that is never removed")
    await _echo(scene, "after a caller that left")


@WORKER.check("W13", 0)
async def answers_nobody(scene: WorkerScene) -> None:
    """A request whose agent is empty is run, and nobody is answered."""
    await _is_gone(scene, await scene.publish("echo", {"text": "x"}, agent=""))
    if await scene.exists(scene.keys.replies("")):
        raise Broken("it made a reply stream of nobody")


@WORKER.check("W14", 0)
async def draws_instances(scene: WorkerScene) -> None:
    """Each process draws an instance id of its own."""
    known = set(await scene.instances())
    second = await scene.program.start()

    async def joined() -> set[str]:
        return set(await scene.instances()) - known

    new = await until(joined, STARTS, "a second process did not appear in `live` beside the first one")
    await scene.program.kill(second)
    for instance in new:
        await scene.see_the_end(instance)


@WORKER.check("W15", 0)
async def beats(scene: WorkerScene) -> None:
    """Its lease never ends while it lives, and it uses the lease of TOOLBUS_LEASE."""
    for _ in range(3):
        now = await scene.now()
        for instance in await scene.instances():
            left = float(await scene.probe.run("ZSCORE", scene.keys.live, f"{SERVICE}/{instance}")) - now
            if left > LEASE * 1000 + 500:
                raise Broken(f"its lease has {left / 1000:.1f} s left; TOOLBUS_LEASE is {LEASE:g}")
        await _echo(scene, "alive")
        await asyncio.sleep(LEASE / 2)
        if not await scene.instances():
            raise Broken("its lease has ended although it lives")


@WORKER.check("W16", 0)
async def registers_again(scene: WorkerScene) -> None:
    """When the server has lost everything, it registers again and goes on."""
    await scene.probe.run("FLUSHDB")
    await until(scene.instances, 15.0, "it is not in the registry again")
    await scene.listen()
    await until(lambda: scene.exists(scene.queue), 15.0, "its request stream was not made again")
    await _echo(scene, "after a flush")


@WORKER.check("W17", 0)
async def makes_its_group_again(scene: WorkerScene) -> None:
    """When its consumer group is gone (NOGROUP) it registers again, and goes on."""
    await scene.probe.run("XGROUP", "DESTROY", scene.queue, "g")

    async def has_group() -> bool:
        return bool(await scene.probe.run("XINFO", "GROUPS", scene.queue))

    await until(has_group, 10.0, "the group was not made again")
    await _echo(scene, "after the loss of the group")


@WORKER.check("W18", 0)
async def sends_scripts_again(scene: WorkerScene) -> None:
    """When the server has forgotten its scripts (NOSCRIPT) it sends them again."""
    await _echo(scene, "before")
    await scene.probe.run("SCRIPT", "FLUSH")
    await _echo(scene, "after the loss of the scripts")
    await _is_gone(scene, await _echo(scene, "once more"))


@WORKER.check("W19", 0)
async def leaves(scene: WorkerScene) -> None:
    """On SIGTERM it leaves the registry, answers what runs, and ends with exit code 0."""
    if scene.worker is None:
        raise Broken("there is no worker")
    sent = await scene.publish("count", {"to": 5, "delay": 0.1})
    await until(lambda: _is_running(scene, sent), 5.0, "the call did not begin")
    code = await scene.program.stop(scene.worker)
    if code != 0:
        raise Broken(f"it ended with exit code {code}")
    if await scene.instances():
        raise Broken("it is still in `live` after its end")
    frames = await scene.frames(sent)
    if not frames or not frames[-1].get("end_of_stream"):
        holder, _, _ = await scene.holder(sent)
        if not holder.startswith("~back"):
            raise Broken("a call that ran at SIGTERM was neither answered nor handed back")


# -- level 1 --------------------------------------------------------------------------------------


@WORKER.check("W20", 1)
async def streams(scene: WorkerScene) -> None:
    """Text comes while the tool works, in order, with seq from 0."""
    begun = time.monotonic()
    sent = await scene.publish("count", {"to": 8, "delay": 0.1})
    await _begun(scene, sent)
    first = time.monotonic() - begun
    frames = await scene.ended(sent)
    _check_run(frames)
    if _text_of(frames).split() != [str(number) for number in range(1, 9)]:
        raise Broken(f"the text is {_text_of(frames)!r}, not the numbers from 1 to 8")
    if time.monotonic() - begun - first < 0.2:
        raise Broken("all text came at the end")


@WORKER.check("W21", 1)
async def cuts_between_characters(scene: WorkerScene) -> None:
    """A piece of text has at most 65,536 bytes of UTF-8 and is cut between characters."""
    text = "x" + "𝄞é中" * 20_000
    sent = await _echo(scene, text)
    for frame in await scene.frames(sent):
        for part in frame.get("texts") or [frame.get("response") or ""]:
            if frame.get("kind", "text") == "text" and len(part.encode("utf-8", "surrogatepass")) > _MOST_PIECE:
                raise Broken(f"a piece of text has {len(part.encode('utf-8', 'surrogatepass')):,} bytes")


@WORKER.check("W22", 1)
async def tells_starts(scene: WorkerScene) -> None:
    """With `events`, a frame `start` comes before anything else."""
    frames = await scene.ended(await scene.publish("count", {"to": 2, "delay": 0.1}, events=True))
    _check_run(frames)
    if frames[0].get("kind") != "start":
        raise Broken(f"the first frame is {frames[0].get('kind', 'text')!r}")


@WORKER.check("W23", 1)
async def cuts_large_ends(scene: WorkerScene) -> None:
    """Before an `end` whose `response` would take more than 65,536 bytes come `output` frames with its pieces; it has null instead."""
    text = "é" * 100_000
    for frame in await scene.frames(await _echo(scene, text)):
        piece = frame.get("response")
        if frame.get("kind") in {"end", "output"} and isinstance(piece, str) and len(piece.encode()) > _MOST_PIECE:
            raise Broken(f"`response` of a frame `{frame['kind']}` has {len(piece.encode()):,} bytes")


@WORKER.check("W24", 1)
async def cuts_large_data(scene: WorkerScene) -> None:
    """Before an `end` whose `data` would take more than 65,536 bytes come `data` frames with pieces of the JSON; it has null instead."""
    if f"{SERVICE}-data" not in await _tools(scene):
        raise NotChecked(f"it has no tool {SERVICE}-data")
    frames = await scene.ended(await scene.publish("data", {"size": 100_000}))
    _check_run(frames)
    if frames[-1].get("data") is not None:
        raise Broken("`data` of the end is not null")
    pieces = [frame.get("response") or frame.get("data") or "" for frame in frames if frame.get("kind") == "data"]
    if any(len(piece.encode()) > _MOST_PIECE for piece in pieces):
        raise Broken(f"the pieces of `data` have {[len(piece.encode()) for piece in pieces]} bytes")
    try:
        whole = json.loads("".join(pieces))
    except ValueError as error:
        raise Broken(f"the pieces of `data`, joined, are no JSON: {error}") from None
    if whole != {"text": "x" * 100_000}:
        raise Broken("the pieces of `data`, joined, are another value")


@WORKER.check("W25", 1)
async def cancels(scene: WorkerScene) -> None:
    """A cancelled call stops soon: it is deleted, and no text follows."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05})
    await _begun(scene, sent)
    keys = (scene.queue, scene.keys.cancelled(SERVICE))
    found = await scene.probe.script(scripts.CANCEL, keys, sent.entry, sent.id, 30_000, scene.keys.wake(SERVICE))
    if found != b"signalled":
        raise Broken(f"the call was {found!r} instead of running")
    await until(lambda: scene.is_finished(sent), 3.0, "the call went on after it was cancelled")
    told = len(await scene.frames(sent))
    await asyncio.sleep(0.3)
    if len(await scene.frames(sent)) > told:
        raise Broken("frames came after the end of a cancelled call")


@WORKER.check("W26", 1)
async def catches_up_on_cancellations(scene: WorkerScene) -> None:
    """It reads `cancelled:` after it has subscribed and before it takes: a call that was cancelled before is refused as cancelled."""
    if scene.worker is not None:
        await scene.program.kill(scene.worker)
    call = secrets.token_hex(16)
    await scene.probe.run("ZADD", scene.keys.cancelled(SERVICE), await scene.now() + 30_000, call)
    sent = await scene.publish("echo", {"text": "cancelled before"}, id=call)
    scene.worker = await scene.program.start()
    _ended_as(await scene.ended(sent, STARTS), "cancelled")


@WORKER.check("W27", 1)
async def keeps_deadlines(scene: WorkerScene) -> None:
    """A call is stopped at its deadline and ends as deadline_exceeded."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05}, timeout=1.0)
    frames = await scene.ended(sent, 4.0)
    _check_run(frames)
    _ended_as(frames, "deadline_exceeded")


@WORKER.check("W28", 1)
async def stops_for_callers_that_leave(scene: WorkerScene) -> None:
    """A call whose caller's reply stream is gone is stopped, and the stream is not made for good."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05})
    await _begun(scene, sent)
    await scene.probe.run("DEL", scene.keys.replies(scene.agent))
    await until(lambda: scene.is_finished(sent), 5.0, "the call went on without a caller")
    await scene.listen()
    await _echo(scene, "another caller")


@WORKER.check("W29", 1)
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
            group.create_task(_echo(scene, f"slot {number}"))


# -- level 2 --------------------------------------------------------------------------------------


@WORKER.check("W30", 2)
async def renews(scene: WorkerScene) -> None:
    """It renews what it holds: a call longer than two leases runs once."""
    sent = await scene.publish("count", _LONG)
    await _begun(scene, sent)
    longest = 0
    for _ in range(int(2.5 * LEASE / 0.1)):
        _, idle, _ = await scene.holder(sent)
        longest = max(longest, idle)
        await asyncio.sleep(0.1)
    if longest > LEASE * 1000:
        raise Broken(f"the entry was not renewed for {longest / 1000:.1f} s, more than a lease")
    frames = await scene.ended(sent, 15.0)
    _check_run(frames)


@WORKER.check("W31", 2)
async def stops_what_it_lost(scene: WorkerScene) -> None:
    """A call that `renew.lua` calls lost is stopped within a beat, and nothing more of it is sent."""
    sent = await scene.publish("count", {"to": 100, "delay": 0.1})
    await _begun(scene, sent)
    other = await scene.play_worker(lives=True)
    await scene.move(sent, other)
    await asyncio.sleep(LEASE / 3 + _SLACK)
    await scene.keep(sent, other)
    told = len(await scene.frames(sent))
    await asyncio.sleep(0.5)
    more = len(await scene.frames(sent)) - told
    await scene.remove(sent)
    if more:
        raise Broken(f"it sent {more} more frames of a call that another worker has had for a beat")


@WORKER.check("W32", 2)
async def drops_what_it_lost(scene: WorkerScene) -> None:
    """A call that was moved to another worker, and that ends before the next renewal, is neither answered nor deleted."""
    other = await scene.play_worker(lives=True)
    for _ in range(2):
        sent, _ = await _moved_after_a_renewal(scene, other)
        for _ in range(int(LEASE / 0.1)):
            await scene.keep(sent, other)
            await asyncio.sleep(0.1)
        answered = any(frame.get("end_of_stream") for frame in await scene.frames(sent))
        gone = await scene.is_finished(sent)
        await scene.remove(sent)
        if answered or gone:
            raise Broken("it answered a call that had moved to another worker" if answered else "it deleted an entry of another worker")
    await _echo(scene, "after a lost call")


@WORKER.check("W33", 2)
async def finishes_each(scene: WorkerScene) -> None:
    """When one of several calls was lost, the others are answered and deleted all the same, and the lost one is dropped."""
    other = await scene.play_worker(lives=True)
    sent, beside = await _moved_after_a_renewal(scene, other, 3)
    for each in beside:
        frames = await scene.ended(each)
        _check_run(frames)
        await _is_gone(scene, each)
    await asyncio.sleep(0.3)
    answered = any(frame.get("end_of_stream") for frame in await scene.frames(sent))
    gone = await scene.is_finished(sent)
    await scene.remove(sent)
    if answered or gone:
        raise Broken("it answered the call that it had lost" if answered else "it deleted the entry that it had lost")


@WORKER.check("W34", 2)
async def leaves_what_was_delivered(scene: WorkerScene) -> None:
    """When the group was set back, a call that it runs is not begun again."""
    sent = await scene.publish("count", {"to": 15, "delay": 0.1})
    await _begun(scene, sent)
    await scene.probe.run("XGROUP", "SETID", scene.queue, "g", "0")
    # A read that waits looks at the group again when something is published.
    await _echo(scene, "after the group was set back")
    await scene.ended(sent)
    await _echo(scene, "once more")
    frames = await scene.frames(sent)
    _check_run(frames)
    if len(_text_of(frames).split()) != 15:
        raise Broken(f"the text is {_text_of(frames)[:60]!r}")


@WORKER.check("W35", 2)
async def takes_over(scene: WorkerScene) -> None:
    """It takes over what a dead worker held, as the next attempt."""
    dead = await scene.play_worker(lives=False)
    sent = await _unseen(scene, "echo", {"text": "taken over"}, dead, 1)
    frames = await _taken_over(scene, sent)
    _check_run(frames)
    attempts = {frame.get("attempt", 1) for frame in frames}
    if attempts != {2} or _text_of(frames) != "taken over":
        raise Broken(f"the attempt after one delivery is 2, not {attempts}; the text was {_text_of(frames)[:40]!r}")


@WORKER.check("W36", 2)
async def counts_attempts(scene: WorkerScene) -> None:
    """It counts a further attempt with `count.lua` before it runs: a call whose worker is killed each time becomes a dead letter."""
    sent = await scene.publish("count", {"to": 600, "delay": 0.1}, timeout=120.0)
    for attempt in range(1, scene.settings.max_deliveries + 1):

        async def runs(number: int = attempt) -> bool:
            return await _runs_as(scene, sent, number)

        await until(runs, _TAKES_OVER, f"attempt {attempt} did not begin")
        instance, _, counted = await scene.holder(sent)
        if counted != attempt:
            raise Broken(f"attempt {attempt} runs, and the server counts {counted}: when it kills its worker nobody will know")
        if scene.worker is not None:
            await scene.program.kill(scene.worker)
        await scene.see_the_end(instance)
        scene.worker = await scene.program.start()
    frames = await scene.ended(sent, STARTS + _TAKES_OVER)
    if not _error_of(frames) or await _runs_as(scene, sent, scene.settings.max_deliveries + 1):
        raise Broken(f"after {scene.settings.max_deliveries} workers that it killed the call was run once more")
    if not await scene.probe.run("XLEN", scene.keys.dead_letters(SERVICE)):
        raise Broken("there is no dead letter")


@WORKER.check("W37", 2)
async def buries_poison(scene: WorkerScene) -> None:
    """A request that was delivered as often as allowed becomes a dead letter, and its caller is told."""
    dead = await scene.play_worker(lives=False)
    sent = await _unseen(scene, "echo", {"text": "poison"}, dead, scene.settings.max_deliveries)
    frames = await _taken_over(scene, sent)
    if not _error_of(frames):
        raise Broken(f"it was run a {scene.settings.max_deliveries + 1}th time")
    if not await scene.probe.run("XLEN", scene.keys.dead_letters(SERVICE)):
        raise Broken("there is no dead letter")


@WORKER.check("W38", 2)
async def runs_suspects_alone(scene: WorkerScene) -> None:
    """An entry is run alone for its last two attempts: neither beside calls that run, nor with others taken beside it."""
    long = await scene.publish("count", {"to": 12, "delay": 0.1})
    await _begun(scene, long)
    dead = await scene.play_worker(lives=False)
    suspect = await _unseen(scene, "count", {"to": 10, "delay": 0.1}, dead, scene.settings.max_deliveries - 2)
    await scene.tell(f"dead {SERVICE}")

    async def has_begun() -> bool:
        return bool(await scene.frames(suspect))

    while not any(frame.get("end_of_stream") for frame in await scene.frames(long)):
        if await has_begun():
            raise Broken("it runs beside a call that had begun before")
        await asyncio.sleep(0.02)
    await until(has_begun, _TAKES_OVER, "it was not taken over")
    beside = await scene.publish("echo", {"text": "beside"})
    while not any(frame.get("end_of_stream") for frame in await scene.frames(suspect)):
        if await scene.frames(beside):
            raise Broken("another call was run beside it")
        await asyncio.sleep(0.02)
    _check_run(await scene.frames(suspect))
    await scene.ended(beside)


@WORKER.check("W39", 2)
async def takes_what_was_handed_back(scene: WorkerScene) -> None:
    """It takes what another worker handed back within a beat, told of it or not; that delivery counts for nothing."""
    for told in (True, False):
        sent = await _unseen(scene, "echo", {"text": "handed back"}, "~back", 1)
        if told:
            await scene.tell(f"back {SERVICE}")
        frames = await scene.ended(sent, LEASE / 3 + 2.0)
        _check_run(frames)
        if _text_of(frames) != "handed back":
            raise Broken(f"the text was {_text_of(frames)[:40]!r} {_error_of(frames)}")
        if {frame.get("attempt", 1) for frame in frames} != {1}:
            raise Broken("the delivery to the worker that handed it back was counted")


@WORKER.check("W40", 2)
async def rescues(scene: WorkerScene) -> None:
    """It runs `rescue.lua` once a lease: a request that the group passed over is run."""
    call, document, due = scene.unsent("echo", {"text": "passed over"})
    # In one script, so that nobody is delivered anything between the commands.
    entry = await scene.probe.run(
        "EVAL",
        "local id = redis.call('XADD', KEYS[1], '*', 'r', ARGV[1], 'd', ARGV[2]) redis.call('XGROUP', 'SETID', KEYS[1], 'g', id) return id",
        1, scene.queue, document, due,
    )  # fmt: skip
    frames = await scene.ended(Sent(call, entry.decode()), 4 * LEASE + _SLACK + 2.0)
    if _text_of(frames) != "passed over":
        raise Broken(f"the text was {_text_of(frames)[:40]!r} {_error_of(frames)}")


@WORKER.check("W41", 2)
async def restores_its_registration(scene: WorkerScene) -> None:
    """Once a lease it looks whether what `register.lua` writes is there, and registers again if a part of it is gone."""
    instance = await _only_instance(scene)
    keys = scene.keys
    for what, key, field in (
        ("the service's row", keys.services, SERVICE),
        ("the table of names", keys.names, ""),
        ("the service's table", keys.instances(SERVICE), ""),
        ("the counter of starts", keys.meta, "start"),
        ("its counter in the fence", scene.fence, f"c:{instance}"),
    ):

        async def is_back(key: str = key, field: str = field) -> bool:
            return bool(await scene.probe.run("HEXISTS", key, field) if field else await scene.exists(key))

        if not await is_back():
            raise Broken(f"{what} was never written")
        await scene.probe.run(*(("HDEL", key, field) if field else ("DEL", key)))
        await until(is_back, 2 * LEASE + _SLACK, f"{what} was not written again")
    await _echo(scene, "after all was restored")


@WORKER.check("W42", 2)
async def pauses(scene: WorkerScene) -> None:
    """It takes nothing of a paused service, as a message or a beat tells: it ends the blocked read, and hands back what that brings."""
    for told in (True, False):
        await scene.probe.script(scripts.PAUSE, (scene.keys.paused,), SERVICE, 60_000)
        if told:
            await scene.tell(f"pause {SERVICE}")
        await asyncio.sleep(0.5 if told else LEASE / 3 + 0.7)
        sent = await scene.publish("echo", {"text": "paused"})
        for _ in range(12):
            await asyncio.sleep(0.1)
            holder, _, _ = await scene.holder(sent)
            if await scene.frames(sent) or (holder and not holder.startswith("~back")):
                raise Broken(f"a request that came after the service was paused was taken{'' if told else ', of which only beats told'}")
        await scene.probe.run("SREM", scene.keys.paused, SERVICE)
        if told:
            await scene.tell(f"resume {SERVICE}")
        if _text_of(await scene.ended(sent, LEASE + 2.0)) != "paused":
            raise Broken("the request was not run after the pause")


@WORKER.check("W43", 2)
async def hands_over(scene: WorkerScene) -> None:
    """A call of another revision that it would refuse goes to a worker of that one, or ends as `unavailable` (`other_revision`)."""
    other = await scene.play_worker(lives=True, digest="kit-revision")
    sent = await scene.publish("of-another-revision", {}, digest="kit-revision")

    async def waits_there() -> bool:
        if await scene.frames(sent):
            raise Broken(f"it ended as {_error_of(await scene.frames(sent))}, although a worker of its revision lives")
        return (await scene.holder(sent))[0] == f"~to:{other}"

    await until(waits_there, 5.0, "it does not wait for the worker of its revision")
    await scene.remove(sent)
    frames = await scene.ended(await scene.publish("of-another-revision", {}, digest="of-nobody"))
    _ended_as(frames, "unavailable")
    error = frames[-1]["error"]
    if error.get("code") != "other_revision" or not error.get("retryable"):
        raise Broken(f"the error has the code {error.get('code')!r} and retryable {error.get('retryable')}")


@WORKER.check("W44", 2)
async def ends_slow_callers(scene: WorkerScene) -> None:
    """It looks at the reply stream after each 64 entries: beyond `reply_limit` its calls end as slow_consumer, and nothing more is sent."""
    replies = scene.keys.replies(scene.agent)
    sent = await scene.publish("count", {"to": 4_000, "delay": 0.005})
    await _begun(scene, sent)
    await scene.probe.run(
        "EVAL", "for _ = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'x', '') end", 1, replies, scene.settings.reply_limit + 1
    )  # fmt: skip
    frames = await scene.ended(sent)
    _ended_as(frames, "slow_consumer")
    await asyncio.sleep(0.3)
    if len(await scene.frames(sent)) > len(frames):
        raise Broken("frames came after the end")
    await scene.probe.run("XTRIM", replies, "MAXLEN", 0)


@WORKER.check("W45", 2)
async def sets_aside_unreadable_requests(scene: WorkerScene) -> None:
    """A request that can't be read becomes a dead letter, and is answered with invalid_arguments when its id and agent can be found."""
    before = int(await scene.probe.run("XLEN", scene.keys.dead_letters(SERVICE)))
    call, document, due = scene.unsent("echo", {})
    wrong = json.dumps({**json.loads(document), "arguments": "text"}).encode()
    frames = await scene.ended(Sent(call, await scene.add(wrong, due)))
    _ended_as(frames, "invalid_arguments")
    await scene.add(b"{", due)

    async def are_two() -> bool:
        return int(await scene.probe.run("XLEN", scene.keys.dead_letters(SERVICE))) == before + 2

    await until(are_two, 5.0, "two unreadable requests are not two dead letters")


@WORKER.check("W46", 2)
async def drains(scene: WorkerScene) -> None:
    """On SIGTERM it finishes what runs, if that is over within TOOLBUS_GRACE."""
    if scene.worker is None:
        raise Broken("there is no worker")
    sent = await scene.publish("count", {"to": 5, "delay": 0.1})
    await _begun(scene, sent)
    await scene.program.stop(scene.worker)
    frames = await scene.frames(sent)
    if not frames[-1].get("end_of_stream"):
        raise Broken("a call that needed half a second more was cut off")
    _check_run(frames)
    if _error_of(frames) or len(_text_of(frames).split()) != 5:
        raise Broken(f"it ended as {_error_of(frames) or 'a success'} with the text {_text_of(frames)!r}")


@WORKER.check("W47", 2)
async def takes_nothing_while_it_leaves(scene: WorkerScene) -> None:
    """A worker that leaves takes no more requests."""
    if scene.worker is None:
        raise Broken("there is no worker")
    running = await scene.publish("count", {"to": 9, "delay": 0.1})
    await _begun(scene, running)
    stopping = asyncio.create_task(scene.program.stop(scene.worker))

    async def is_unregistered() -> bool:
        return not await scene.probe.run("HEXISTS", scene.keys.services, SERVICE)

    try:
        await until(is_unregistered, 5.0, "it does not leave the registry when it begins to leave")
        late = await scene.publish("echo", {"text": "late"})
    finally:
        await stopping
    holder, _, _ = await scene.holder(late)
    if await scene.frames(late) or (holder and not holder.startswith("~back")):
        raise Broken(f"a request that came afterwards was {'answered' if await scene.frames(late) else 'taken'}")
    await scene.remove(late)


@WORKER.check("W48", 2)
async def hands_back(scene: WorkerScene) -> None:
    """On SIGTERM, with TOOLBUS_GRACE over, what still runs is handed back for its next attempt, not lost."""
    if scene.worker is None:
        raise Broken("there is no worker")
    sent = await scene.publish("count", {"to": 300, "delay": 0.1}, timeout=60.0)
    await _begun(scene, sent)
    await scene.program.stop(scene.worker)
    holder, _, count = await scene.holder(sent)
    frames = await scene.frames(sent)
    if frames[-1].get("end_of_stream"):
        raise Broken(f"the call was ended as {_error_of(frames) or 'a success'} instead of being handed back")
    if not holder.startswith("~back"):
        raise Broken(f"the entry is with {holder or 'nobody'}, not with ~back")
    if count != 2:
        raise Broken(f"its next run would be attempt {count}, as the one that was cut off was 1")


@WORKER.check("W49", 2)
async def retires(scene: WorkerScene) -> None:
    """A worker that leaves removes its consumer and its fields of the fence (`retire.lua`)."""
    if scene.worker is None:
        raise Broken("there is no worker")
    instance = await _only_instance(scene)
    other = await scene.play_worker(lives=True)
    held = await _unseen(scene, "echo", {"text": "of another worker"}, other, 1)
    await scene.program.stop(scene.worker)
    # Of each consumer a map from field to value in RESP3, and a list of both in RESP2.
    listed = await scene.probe.run("XINFO", "CONSUMERS", scene.queue, "g")
    consumers = [(each[b"name"] if isinstance(each, dict) else each[1]).decode() for each in listed]
    fields = await scene.probe.run("HKEYS", scene.fence)
    await scene.remove(held)
    if instance in consumers or f"c:{instance}".encode() in fields:
        raise Broken("its consumer is in the group, or its counter in the fence, after it has left")


@WORKER.check("W50", 2)
async def survives_kills(scene: WorkerScene) -> None:
    """When one of two workers is killed in the middle of a stream, the other runs the call again, whole."""
    instance = await _only_instance(scene)
    second = await scene.program.start()

    async def are_two() -> bool:
        return len(await scene.instances()) > 1

    await until(are_two, STARTS, "the second worker is not in the registry")
    sent = await scene.publish("count", {"to": 30, "delay": 0.1})
    await _begun(scene, sent)
    holder, _, _ = await scene.holder(sent)
    killed, scene.worker = (scene.worker, second) if holder == instance else (second, scene.worker)
    if killed is not None:
        await scene.program.kill(killed)
    frames = await scene.ended(sent, _TAKES_OVER + 10.0)
    last = [frame for frame in frames if frame["run"] == frames[-1]["run"]]
    _check_run(last)
    if last[0].get("attempt", 1) < 2 or _text_of(last).split() != [str(number) for number in range(1, 31)]:
        raise Broken(f"attempt {last[0].get('attempt', 1)} answered {_text_of(last)[:60]!r}")


@WORKER.check("W51", 2)
async def checks_the_namespace(scene: WorkerScene) -> None:
    """It reads `P format` before it registers: in a namespace of a version that it does not speak it registers nothing, and ends."""
    if scene.worker is not None:
        await scene.program.stop(scene.worker)
        scene.worker = None
    await scene.probe.run("HSET", scene.keys.format, "version", 9)
    try:
        process = await scene.program.start()
        async with asyncio.timeout(STARTS):
            while process.returncode is None:
                if await scene.instances():
                    raise Broken("it registered in a namespace of version 9")
                await asyncio.sleep(0.02)
        await scene.program.kill(process)
    except TimeoutError:
        raise Broken(f"it has not ended within {STARTS:g} s in a namespace of version 9") from None
    finally:
        await scene.probe.run("DEL", scene.keys.format)


# -- level 3 --------------------------------------------------------------------------------------


@WORKER.check("W52", 3)
async def marks_once(scene: WorkerScene) -> None:
    """A `once` tool is marked before it runs."""
    sent = await scene.publish("once", {"to": 10, "delay": 0.1}, effect="once")
    await _begun(scene, sent)
    if not await scene.exists(scene.keys.started(sent.id)):
        raise Broken("there is no mark `started:` of a call that runs")
    _check_run(await scene.ended(sent))


@WORKER.check("W53", 3)
async def runs_once(scene: WorkerScene) -> None:
    """A `once` call whose mark an earlier attempt set is not run again, and ends as outcome_unknown."""
    dead = await scene.play_worker(lives=False)
    call = secrets.token_hex(16)
    await scene.probe.run("SET", scene.keys.started(call), "earlier-run", "PX", 60_000)
    sent = await _unseen(scene, "once", {"to": 1, "delay": 0.0}, dead, 1, id=call, effect="once")
    frames = await _taken_over(scene, sent)
    _ended_as(frames, "outcome_unknown")


@WORKER.check("W54", 3)
async def asks_for_the_server(scene: WorkerScene) -> None:
    """A `once` request whose `s` is not the `run_id` of a server that may have lost marks is not run, and ends as outcome_unknown."""
    call, document, due = scene.unsent("once", {"to": 1, "delay": 0.0}, effect="once")
    sent = Sent(call, await scene.add(document, due, "s", "0" * 40))
    _ended_as(await scene.ended(sent), "outcome_unknown")


@WORKER.check("W55", 3)
async def answers_shared_calls(scene: WorkerScene) -> None:
    """The frames of a shared call go to the call's own stream, and not to an agent's."""
    call = await _call_stream(scene)
    sent = await scene.publish("echo", {"text": "for all"}, id=call, shared=True, idempotency_key="k")
    if _text_of(await _shared_end(scene, sent)) != "for all":
        raise Broken("the text is another one")
    scene.forget_frames()
    if await scene.frames(sent):
        raise Broken("frames went to the agent's stream, too")


@WORKER.check("W56", 3)
async def extends(scene: WorkerScene) -> None:
    """A call that is extended has the later deadline, also when the message comes before the entry."""
    for early in (False, True):
        call = await _call_stream(scene)
        later = f"extend {call} {await scene.now() + 30_000}"
        if early:
            await scene.tell(later)
            # What was published before a later message has been taken in, too, when that one has shown its effect.
            await _echo(scene, "in between")
        sent = await scene.publish("count", {"to": 20, "delay": 0.1}, timeout=1.0, id=call, shared=True, idempotency_key=call)
        if not early:
            await scene.tell(later)
        frames = await _shared_end(scene, sent)
        if _error_of(frames):
            raise Broken(f"it ended as {_error_of(frames)} although it was extended {'before' if early else 'after'} its entry came")


@WORKER.check("W57", 3)
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
    _ended_as(await _shared_end(scene, Sent(call, entry.decode())), "not_found")

    async def is_free() -> bool:
        return not await scene.exists(record)

    await until(is_free, 5.0, "the key still names the call that failed")


@WORKER.check("W58", 3)
async def owns_sessions(scene: WorkerScene) -> None:
    """A worker of a service with sticky-sessions asks `own.lua` for a call's session before it runs."""
    owner, session = await _session(scene)
    await _echo(scene, "of a session", **session)
    found = await scene.probe.run("GET", owner)
    if found is None or found.decode() not in await scene.instances():
        raise Broken(f"the session belongs to {found!r}, not to the worker that ran its call")


@WORKER.check("W59", 3)
async def passes_sessions_on(scene: WorkerScene) -> None:
    """A call of a session that another live worker has waits for that one."""
    owner, session = await _session(scene)
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


@WORKER.check("W60", 3)
async def keeps_order(scene: WorkerScene) -> None:
    """Ordered requests of a session run one at a time, the lowest id first."""
    _, session = await _session(scene)
    first = await scene.publish("count", {"to": 8, "delay": 0.1}, ordered=True, **session)
    call, document, due = scene.unsent("echo", {"text": "second"}, ordered=True, **session)
    second = Sent(call, await scene.add(document, due, "p", first.entry))
    await _begun(scene, first)
    while not any(frame.get("end_of_stream") for frame in await scene.frames(first)):
        if await scene.frames(second):
            raise Broken("the second request of the session ran beside the first one")
        await asyncio.sleep(0.02)
    if _text_of(await scene.ended(second)) != "second":
        raise Broken("the second request was not run")


@WORKER.check("W61", 3)
async def waits_for_the_one_before(scene: WorkerScene) -> None:
    """An ordered request waits until the one of its field `p` has ended, also at another worker."""
    _, session = await _session(scene)
    other = await scene.play_worker(lives=True)
    before = await _unseen(scene, "echo", {"text": "elsewhere"}, other, 1, ordered=True, **session)
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
    if _text_of(await scene.ended(sent)) != "after":
        raise Broken("it was not run after the one before it had ended")


@WORKER.check("W62", 3)
async def reports_lost_states(scene: WorkerScene) -> None:
    """A request that names a state which the worker does not have fails with session_lost, or says `restarted`; ends say the new token."""
    _, session = await _session(scene)
    frames = await scene.ended(await scene.publish("echo", {"text": "x"}, state="a-state-of-nobody", **session))
    end = frames[-1]
    lost = _error_of(frames) == "tool_error" and end["error"].get("code") == "session_lost"
    if not lost and not end.get("restarted"):
        raise Broken("the caller was not told that its state is lost")
    if not lost and end.get("state") in {None, "", "a-state-of-nobody"}:
        raise Broken(f"the end names the state {end.get('state')!r}")


@WORKER.check("W63", 3)
async def gives_sessions_up(scene: WorkerScene) -> None:
    """A session that a caller has closed is given up."""
    owner, session = await _session(scene)
    await _echo(scene, "of a session", **session)
    await scene.tell(f"end {json.dumps([session['user'], session['session']])}")

    async def is_free() -> bool:
        return not await scene.exists(owner)

    await until(is_free, 5.0, "the session still belongs to the worker")


# -- what no check can see ------------------------------------------------------------------------

WORKER.unchecked(
    "W64",
    0,
    "checks-tenants",
    "A request of a user who is none of the tool's `tenants` is refused with forbidden",
    "the kit's tools have no tenants",
)
WORKER.unchecked("W65", 1, "bounds-output", "A call's output ends at 16 MiB", "it would take longer than everything else")
WORKER.unchecked(
    "W66",
    1,
    "sends-in-order",
    "While anything of a call is in flight nothing else of it is sent, and what was refused is sent again in order",
    "it shows only when a server refuses commands",
)
WORKER.unchecked(
    "W67", 2, "beats-beside-handlers", "Beats come from a thread that a busy handler can't block", "the kit's tools do not block"
)
WORKER.unchecked(
    "W68", 2, "leaves-replicas", "It asks for the ROLE with its beats, and leaves a server that is a replica", "there is one server"
)
WORKER.unchecked(
    "W69",
    2,
    "shares-its-slots",
    "With several services it waits for all of their streams, and takes no more than it has slots",
    "the kit calls one service",
)
WORKER.unchecked(
    "W70", 2, "gives-up", "It unregisters and ends when errors last for three leases and half a minute", "it takes longer than a level may"
)
WORKER.unchecked(
    "W71",
    2,
    "drops-old-requests",
    "A request that waited for over five seconds and whose reply stream is gone is finished without being run",
    "nobody can see whether it ran",
)
WORKER.unchecked(
    "W72",
    2,
    "counts-retries",
    "A run that is tried again is counted first, and has a new run token",
    "the kit's tools do not fail at first",
)
WORKER.unchecked(
    "W73",
    2,
    "outlives-its-revision",
    "The last worker of a revision takes what was published for it before it leaves",
    "there is one revision",
)
WORKER.unchecked(
    "W74",
    3,
    "says-not-begun",
    "A cancellation of a `once` call before its handler was called has the code not_begun",
    "there is no time at which it can be cancelled for sure",
)
WORKER.unchecked(
    "W75",
    3,
    "cleans-up",
    "A service that cleans up after sessions does so two leases after their last agent has gone",
    "the kit's service does not",
)
WORKER.unchecked(
    "W76",
    3,
    "notes-waits",
    "The time of a call whose handler waits for a person stands still, and `extend.lua` notes it for the next run",
    "the kit's tools ask nobody",
)
