"""Check a worker: unary calls, streams, cancellation, deadlines, leases, fences, drain, taking over, and calls that run once."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from typing import Any

from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.server import scripts
from toolbus.operations.conformance.checks import Broken, Table, until
from toolbus.operations.conformance.scene import LEASE, SERVICE, Sent, WorkerScene

WORKER = Table[WorkerScene]()
_MOST_PIECE = 65_536
# Seconds of a call that outlives a lease, and of the pieces of its text.
_LONG = {"to": 60, "delay": 0.1}
_TAKES_OVER = 4 * LEASE + 6.0

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
    await _is_gone(scene, await _echo(scene, "hello"))


@WORKER.check(0)
async def draws_runs(scene: WorkerScene) -> None:
    """Each start of a handler has a random run token of its own, and the attempt 1."""
    sent = [await _echo(scene, str(number)) for number in range(3)]
    frames = [frame for each in sent for frame in await scene.frames(each)]
    if len({frame["run"] for frame in frames}) != len(sent):
        raise Broken("calls share a run token")
    if any(frame.get("attempt", 1) != 1 for frame in frames):
        raise Broken(f"the attempt of a first delivery is 1, not {[frame.get('attempt', 1) for frame in frames]}")


@WORKER.check(0)
async def keeps_text(scene: WorkerScene) -> None:
    """Text comes back unchanged: quotes, line breaks, NUL, characters of two to four bytes."""
    await _echo(scene, 'é "quoted" \\ \n \x00 \u2028 中 𝄞')


@WORKER.check(0)
async def answers_many(scene: WorkerScene) -> None:
    """300 calls at once are all answered, each once and with its own text."""
    sent = await asyncio.gather(*(scene.publish("echo", {"text": f"text {number}"}) for number in range(300)))
    for number, each in enumerate(sent):
        frames = await scene.ended(each, 20)
        _check_run(frames)
        if _text_of(frames) != f"text {number}":
            raise Broken(f"call {number} got {_text_of(frames)[:60]!r}")


@WORKER.check(0)
async def refuses_unknown_tools(scene: WorkerScene) -> None:
    """A request for a tool that it does not have ends as not_found."""
    frames = await scene.ended(await scene.publish("nothing-like-this", {}))
    _ended_as(frames, "not_found")


@WORKER.check(0)
async def refuses_other_versions(scene: WorkerScene) -> None:
    """A request with another envelope version ends as invalid_arguments, and is not run."""
    frames = await scene.ended(await scene.publish("echo", {"text": "x"}, v=2))
    _ended_as(frames, "invalid_arguments")


@WORKER.check(0)
async def ignores_unknown_fields(scene: WorkerScene) -> None:
    """Fields that it does not know change nothing."""
    await _echo(scene, "x", surprise={"deep": [1, 2]}, priority=0)


@WORKER.check(0)
async def leaves_expired_requests(scene: WorkerScene) -> None:
    """A request whose deadline has passed is answered with deadline_exceeded and not run."""
    sent = await scene.publish("echo", {"text": "late"}, due=int(time.time() * 1000) - 5_000)
    frames = await scene.ended(sent)
    _ended_as(frames, "deadline_exceeded")
    if "late" in _text_of(frames):
        raise Broken("it was run all the same")


@WORKER.check(0)
async def survives_hostile_deadlines(scene: WorkerScene) -> None:
    """A field d that is no number, or none that makes sense, stops nothing."""
    for due in ("", "abc", "-1", "9" * 400, "NaN", "1e999", str(2**63)):
        await scene.publish("echo", {"text": "x"}, due=due)
    await _echo(scene, "after hostile deadlines")


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
    await _echo(scene, "after unreadable requests")


@WORKER.check(0)
async def survives_callers_that_left(scene: WorkerScene) -> None:
    """A caller without a reply stream gets no stream back, and stops nothing."""
    gone = secrets.token_hex(16)
    sent = await scene.publish("echo", {"text": "x"}, agent=gone)
    await _is_gone(scene, sent)
    kept = await scene.probe.run("PTTL", scene.keys.replies(gone))
    if int(kept) == -1:
        raise Broken("it made a reply stream that is never removed")
    await _echo(scene, "after a caller that left")


@WORKER.check(0)
async def registers_again(scene: WorkerScene) -> None:
    """When the server has lost everything, it registers again and goes on."""
    await scene.probe.run("FLUSHDB")
    await until(scene.instances, 15.0, "it is not in the registry again")
    await scene.listen()
    await until(lambda: scene.exists(scene.queue), 15.0, "its request stream was not made again")
    await _echo(scene, "after a flush")


@WORKER.check(0)
async def leaves(scene: WorkerScene) -> None:
    """On SIGTERM it leaves the registry, answers what runs, and ends with exit code 0."""
    if scene.worker is None:
        raise Broken("there is no worker")
    sent = await scene.publish("count", {"to": 5, "delay": 0.1})
    await until(lambda: _is_running(scene, sent), 5.0, "the call did not begin")
    code = await scene.program.stop(scene.worker)
    if code != 0:
        raise Broken(f"it ended with exit code {code}{scene.program.output()}")
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
    await _begun(scene, sent)
    first = time.monotonic() - begun
    frames = await scene.ended(sent)
    _check_run(frames)
    if _text_of(frames).split() != [str(number) for number in range(1, 9)]:
        raise Broken(f"the text is {_text_of(frames)!r}, not the numbers from 1 to 8")
    if time.monotonic() - begun - first < 0.2:
        raise Broken("all text came at the end")


@WORKER.check(1)
async def cuts_between_characters(scene: WorkerScene) -> None:
    """A piece of text has at most 65,536 bytes of UTF-8 and is cut between characters."""
    text = "x" + "𝄞é中" * 20_000
    sent = await _echo(scene, text)
    for frame in await scene.frames(sent):
        for part in frame.get("texts") or [frame.get("response") or ""]:
            if frame.get("kind", "text") == "text" and len(part.encode("utf-8", "surrogatepass")) > _MOST_PIECE:
                raise Broken(f"a piece of text has {len(part.encode('utf-8', 'surrogatepass')):,} bytes")


@WORKER.check(1)
async def tells_starts(scene: WorkerScene) -> None:
    """With `events`, a frame `start` comes before anything else."""
    frames = await scene.ended(await scene.publish("count", {"to": 2, "delay": 0.1}, events=True))
    _check_run(frames)
    if frames[0].get("kind") != "start":
        raise Broken(f"the first frame is {frames[0].get('kind', 'text')!r}")


@WORKER.check(1)
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


@WORKER.check(1)
async def keeps_deadlines(scene: WorkerScene) -> None:
    """A call is stopped at its deadline and ends as deadline_exceeded."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05}, timeout=1.0)
    frames = await scene.ended(sent, 4.0)
    _check_run(frames)
    _ended_as(frames, "deadline_exceeded")


@WORKER.check(1)
async def stops_for_callers_that_leave(scene: WorkerScene) -> None:
    """A call whose caller's reply stream is gone is stopped, and the stream is not made for good."""
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05})
    await _begun(scene, sent)
    await scene.probe.run("DEL", scene.keys.replies(scene.agent))
    await until(lambda: scene.is_finished(sent), 5.0, "the call went on without a caller")
    await scene.listen()
    await _echo(scene, "another caller")


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
            group.create_task(_echo(scene, f"slot {number}"))


# -- level 2 --------------------------------------------------------------------------------------


async def _dead_worker(scene: WorkerScene) -> str:
    """Return the consumer of a worker that is dead: its lease has ended, and its fence counter stands."""
    name = secrets.token_hex(8)
    await scene.probe.run("XGROUP", "CREATECONSUMER", scene.queue, "g", name)
    await scene.probe.run("HSET", scene.fence, f"c:{name}", "1", f"l:{name}", str(int(LEASE * 1000)), f"x:{name}", "1")
    return name


async def _held_by(scene: WorkerScene, consumer: str, sent: Sent, deliveries: int) -> None:
    """Make a request one that a consumer has taken some times."""
    await scene.probe.run("XCLAIM", scene.queue, "g", consumer, 0, sent.entry, "RETRYCOUNT", deliveries, "FORCE", "JUSTID")


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
    await scene.probe.run("PUBLISH", scene.keys.wake(SERVICE), f"{news} {SERVICE}")
    return await scene.ended(sent, _TAKES_OVER)


@WORKER.check(2)
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


@WORKER.check(2)
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


@WORKER.check(2)
async def drops_what_it_lost(scene: WorkerScene) -> None:
    """A call that was moved to another worker is not answered by this one any more."""
    sent = await scene.publish("count", {"to": 12, "delay": 0.1})
    await _begun(scene, sent)
    mine, _, _ = await scene.holder(sent)
    other = await _dead_worker(scene)
    await scene.probe.run("HDEL", scene.fence, f"x:{other}")
    member = f"{SERVICE}/{other}"
    await scene.beat(member)
    # As every script that moves entries does: the counter of who loses one goes up with the move.
    await scene.probe.run(
        "EVAL",
        "redis.call('HINCRBY', KEYS[2], 'c:' .. ARGV[1], 1) "
        "return redis.call('XCLAIM', KEYS[1], 'g', ARGV[2], 0, ARGV[3], 'RETRYCOUNT', 2, 'JUSTID')",
        2, scene.queue, scene.fence, mine, other, sent.entry,
    )  # fmt: skip
    for _ in range(12):
        # The other one is alive and renews what it holds.
        await scene.beat(member)
        await scene.probe.run("XCLAIM", scene.queue, "g", other, 0, sent.entry, "RETRYCOUNT", 2, "JUSTID")
        await asyncio.sleep(LEASE / 10)
    frames = await scene.frames(sent)
    answered = any(frame.get("end_of_stream") for frame in frames)
    gone = await scene.is_finished(sent)
    await scene.probe.run("XACK", scene.queue, "g", sent.entry)
    await scene.probe.run("XDEL", scene.queue, sent.entry)
    await scene.probe.run("ZREM", scene.keys.live, member)
    if answered or gone:
        raise Broken("it answered a call that had moved to another worker" if answered else "it deleted an entry of another worker")
    await _echo(scene, "after a lost call")


@WORKER.check(2)
async def takes_over(scene: WorkerScene) -> None:
    """It takes over what a dead worker held, as the next attempt."""
    dead = await _dead_worker(scene)
    sent = await _unseen(scene, "echo", {"text": "taken over"}, dead, 1)
    frames = await _taken_over(scene, sent)
    _check_run(frames)
    attempts = {frame.get("attempt", 1) for frame in frames}
    if attempts != {2} or _text_of(frames) != "taken over":
        raise Broken(f"the attempt after one delivery is 2, not {attempts}; the text was {_text_of(frames)[:40]!r}")


@WORKER.check(2)
async def takes_what_was_handed_back(scene: WorkerScene) -> None:
    """It takes what another worker handed back; that delivery counts for nothing."""
    sent = await _unseen(scene, "echo", {"text": "handed back"}, "~back", 1)
    frames = await _taken_over(scene, sent, "back")
    _check_run(frames)
    if _text_of(frames) != "handed back":
        raise Broken(f"the text was {_text_of(frames)[:40]!r} {_error_of(frames)}")


@WORKER.check(2)
async def buries_poison(scene: WorkerScene) -> None:
    """A request that was delivered as often as allowed becomes a dead letter, and its caller is told."""
    dead = await _dead_worker(scene)
    sent = await _unseen(scene, "echo", {"text": "poison"}, dead, scene.settings.max_deliveries)
    frames = await _taken_over(scene, sent)
    if not _error_of(frames):
        raise Broken(f"it was run a {scene.settings.max_deliveries + 1}th time")
    if not await scene.probe.run("XLEN", scene.keys.dead_letters(SERVICE)):
        raise Broken("there is no dead letter")


@WORKER.check(2)
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


@WORKER.check(2)
async def survives_kills(scene: WorkerScene) -> None:
    """When one of two workers is killed in the middle of a stream, the other runs the call again, whole."""
    first = scene.worker
    sent = await scene.publish("count", {"to": 30, "delay": 0.1})
    await _begun(scene, sent)
    second = await scene.program.start()

    async def are_two() -> bool:
        return len(await scene.instances()) > 1

    await until(are_two, 20.0, "the second worker is not in the registry")
    if first is not None:
        await scene.program.kill(first)
    scene.worker = second
    frames = await scene.ended(sent, _TAKES_OVER + 10.0)
    last = [frame for frame in frames if frame["run"] == frames[-1]["run"]]
    _check_run(last)
    if last[0].get("attempt", 1) < 2 or _text_of(last).split() != [str(number) for number in range(1, 31)]:
        raise Broken(f"attempt {last[0].get('attempt', 1)} answered {_text_of(last)[:60]!r}")


# -- level 3 --------------------------------------------------------------------------------------


@WORKER.check(3)
async def marks_once(scene: WorkerScene) -> None:
    """A `once` tool is marked before it runs."""
    sent = await scene.publish("once", {"to": 10, "delay": 0.1}, effect="once")
    await _begun(scene, sent)
    if not await scene.exists(scene.keys.started(sent.id)):
        raise Broken("there is no mark `started:` of a call that runs")
    _check_run(await scene.ended(sent))


@WORKER.check(3)
async def runs_once(scene: WorkerScene) -> None:
    """A `once` call whose mark an earlier attempt set is not run again, and ends as outcome_unknown."""
    dead = await _dead_worker(scene)
    call = secrets.token_hex(16)
    await scene.probe.run("SET", scene.keys.started(call), "earlier-run", "PX", 60_000)
    sent = await _unseen(scene, "once", {"to": 1, "delay": 0.0}, dead, 1, id=call, effect="once")
    frames = await _taken_over(scene, sent)
    _ended_as(frames, "outcome_unknown")


@WORKER.check(3)
async def answers_shared_calls(scene: WorkerScene) -> None:
    """The frames of a shared call go to the call's own stream, and not to an agent's."""
    call = secrets.token_hex(16)
    await scene.probe.run("XADD", scene.keys.call(call), "*", "o", "made")
    await scene.probe.run("PEXPIRE", scene.keys.call(call), 60_000)
    sent = await scene.publish("echo", {"text": "for all"}, id=call, shared=True, idempotency_key="k")

    async def has_ended() -> bool:
        return any(frame.get("end_of_stream") for frame in await scene.shared_frames(sent))

    await until(has_ended, 10.0, "no end came in the call's stream")
    if _text_of(await scene.shared_frames(sent)) != "for all":
        raise Broken("the text is another one")
