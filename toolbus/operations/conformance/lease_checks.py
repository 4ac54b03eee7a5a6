"""Check a worker at level 2: leases, fences, drain, and taking over from others."""

from __future__ import annotations

import secrets
from typing import Any

from toolbus.operations.conformance.checks import Broken, until
from toolbus.operations.conformance.scene import LEASE, SERVICE, Sent, WorkerScene, check_run, error_of, text_of
from toolbus.operations.conformance.worker_checks import WORKER, echo

# Seconds of a call that outlives a lease, and of the pieces of its text.
_LONG = {"to": 60, "delay": 0.1}
_TAKES_OVER = 4 * LEASE + 6.0


async def _has_text(scene: WorkerScene, sent: Sent) -> bool:
    return any((frame.get("kind", "text") == "text" and frame.get("response")) or frame.get("texts") for frame in await scene.frames(sent))


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


@WORKER.check(2)
async def beats(scene: WorkerScene) -> None:
    """Its lease never ends while it lives, and it uses the lease of TOOLBUS_LEASE."""
    for _ in range(3):
        seconds, micros = await scene.probe.run("TIME")
        now = int(seconds) * 1000 + int(micros) / 1000
        for instance in await scene.instances():
            left = float(await scene.probe.run("ZSCORE", scene.keys.live, f"{SERVICE}/{instance}")) - now
            if left > LEASE * 1000 + 500:
                raise Broken(f"its lease has {left / 1000:.1f} s left; TOOLBUS_LEASE is {LEASE:g}")
        await echo(scene, "alive")
        await scene.wait(LEASE / 2)
        if not await scene.instances():
            raise Broken("its lease has ended although it lives")


@WORKER.check(2)
async def renews(scene: WorkerScene) -> None:
    """It renews what it holds: a call longer than two leases runs once."""
    sent = await scene.publish("count", _LONG)
    await until(lambda: _has_text(scene, sent), 5.0, "no text came")
    longest = 0
    for _ in range(int(2.5 * LEASE / 0.1)):
        _, idle, _ = await scene.holder(sent)
        longest = max(longest, idle)
        await scene.wait(0.1)
    if longest > LEASE * 1000:
        raise Broken(f"the entry was not renewed for {longest / 1000:.1f} s, more than a lease")
    frames = await scene.ended(sent, 15.0)
    check_run(frames)


@WORKER.check(2)
async def drops_what_it_lost(scene: WorkerScene) -> None:
    """A call that was moved to another worker is not answered by this one any more."""
    sent = await scene.publish("count", {"to": 12, "delay": 0.1})
    await until(lambda: _has_text(scene, sent), 5.0, "no text came")
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
        await scene.wait(LEASE / 10)
    frames = await scene.frames(sent)
    answered = any(frame.get("end_of_stream") for frame in frames)
    gone = await scene.is_finished(sent)
    await scene.probe.run("XACK", scene.queue, "g", sent.entry)
    await scene.probe.run("XDEL", scene.queue, sent.entry)
    await scene.probe.run("ZREM", scene.keys.live, member)
    if answered or gone:
        raise Broken("it answered a call that had moved to another worker" if answered else "it deleted an entry of another worker")
    await echo(scene, "after a lost call")


@WORKER.check(2)
async def takes_over(scene: WorkerScene) -> None:
    """It takes over what a dead worker held, as the next attempt."""
    dead = await _dead_worker(scene)
    sent = await _unseen(scene, "echo", {"text": "taken over"}, dead, 1)
    await scene.probe.run("PUBLISH", scene.keys.wake(SERVICE), f"dead {SERVICE}")
    frames = await scene.ended(sent, _TAKES_OVER)
    check_run(frames)
    attempts = {frame.get("attempt", 1) for frame in frames}
    if attempts != {2} or text_of(frames) != "taken over":
        raise Broken(f"the attempt after one delivery is 2, not {attempts}; the text was {text_of(frames)[:40]!r}")


@WORKER.check(2)
async def takes_what_was_handed_back(scene: WorkerScene) -> None:
    """It takes what another worker handed back; that delivery counts for nothing."""
    sent = await _unseen(scene, "echo", {"text": "handed back"}, "~back", 1)
    await scene.probe.run("PUBLISH", scene.keys.wake(SERVICE), f"back {SERVICE}")
    frames = await scene.ended(sent, _TAKES_OVER)
    check_run(frames)
    if text_of(frames) != "handed back":
        raise Broken(f"the text was {text_of(frames)[:40]!r} {error_of(frames)}")


@WORKER.check(2)
async def buries_poison(scene: WorkerScene) -> None:
    """A request that was delivered as often as allowed becomes a dead letter, and its caller is told."""
    dead = await _dead_worker(scene)
    sent = await _unseen(scene, "echo", {"text": "poison"}, dead, scene.settings.max_deliveries)
    await scene.probe.run("PUBLISH", scene.keys.wake(SERVICE), f"dead {SERVICE}")
    frames = await scene.ended(sent, _TAKES_OVER)
    if not error_of(frames):
        raise Broken(f"it was run a {scene.settings.max_deliveries + 1}th time")
    if not await scene.probe.run("XLEN", scene.keys.dead_letters(SERVICE)):
        raise Broken("there is no dead letter")


@WORKER.check(2)
async def hands_back(scene: WorkerScene) -> None:
    """On SIGTERM, with TOOLBUS_GRACE over, what still runs is handed back for its next attempt, not lost."""
    if scene.worker is None:
        raise Broken("there is no worker")
    sent = await scene.publish("count", {"to": 300, "delay": 0.1}, timeout=60.0)
    await until(lambda: _has_text(scene, sent), 5.0, "no text came")
    await scene.program.stop(scene.worker)
    holder, _, count = await scene.holder(sent)
    frames = await scene.frames(sent)
    if frames[-1].get("end_of_stream"):
        raise Broken(f"the call was ended as {error_of(frames) or 'a success'} instead of being handed back")
    if not holder.startswith("~back"):
        raise Broken(f"the entry is with {holder or 'nobody'}, not with ~back")
    if count != 2:
        raise Broken(f"its next run would be attempt {count}, as the one that was cut off was 1")


@WORKER.check(2)
async def survives_kills(scene: WorkerScene) -> None:
    """When one of two workers is killed in the middle of a stream, the other runs the call again, whole."""
    first = scene.worker
    sent = await scene.publish("count", {"to": 30, "delay": 0.1})
    await until(lambda: _has_text(scene, sent), 5.0, "no text came")
    second = await scene.program.start()

    async def are_two() -> bool:
        return len(await scene.instances()) > 1

    await until(are_two, 20.0, "the second worker is not in the registry")
    if first is not None:
        await scene.program.kill(first)
    scene.worker = second
    frames = await scene.ended(sent, _TAKES_OVER + 10.0)
    last = [frame for frame in frames if frame["run"] == frames[-1]["run"]]
    check_run(last)
    if last[0].get("attempt", 1) < 2 or text_of(last).split() != [str(number) for number in range(1, 31)]:
        raise Broken(f"attempt {last[0].get('attempt', 1)} answered {text_of(last)[:60]!r}")


# -- level 3 --------------------------------------------------------------------------------------


@WORKER.check(3)
async def marks_once(scene: WorkerScene) -> None:
    """A `once` tool is marked before it runs."""
    sent = await scene.publish("once", {"to": 10, "delay": 0.1}, effect="once")
    await until(lambda: _has_text(scene, sent), 5.0, "no text came")
    if not await scene.probe.run("EXISTS", scene.keys.started(sent.id)):
        raise Broken("there is no mark `started:` of a call that runs")
    check_run(await scene.ended(sent))


@WORKER.check(3)
async def runs_once(scene: WorkerScene) -> None:
    """A `once` call whose mark an earlier attempt set is not run again, and ends as outcome_unknown."""
    dead = await _dead_worker(scene)
    call = secrets.token_hex(16)
    await scene.probe.run("SET", scene.keys.started(call), "earlier-run", "PX", 60_000)
    sent = await _unseen(scene, "once", {"to": 1, "delay": 0.0}, dead, 1, id=call, effect="once")
    await scene.probe.run("PUBLISH", scene.keys.wake(SERVICE), f"dead {SERVICE}")
    frames = await scene.ended(sent, _TAKES_OVER)
    if error_of(frames) != "outcome_unknown":
        raise Broken(f"it ended as {error_of(frames) or 'a success'}: it ran twice")


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
    if text_of(await scene.shared_frames(sent)) != "for all":
        raise Broken("the text is another one")
