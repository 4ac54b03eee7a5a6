"""Requirements of a worker of level 2: leases, fences, taking over, pauses."""

from __future__ import annotations

import asyncio
import operator
import secrets
from collections.abc import Callable
from functools import partial

from toolbus.bus.broker.server import scripts
from toolbus.operations.conformance.checks import Broken, Table, broken_if, not_checked_if, until
from toolbus.operations.conformance.proxy import Proxy
from toolbus.operations.conformance.scene import LEASE, SERVICE, STARTS
from toolbus.operations.conformance.worker_calls import SLACK, TAKES_OVER, check_count, check_often, check_run, ended_as, error_of, text_of
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene

LEASES = Table[WorkerScene]()


@LEASES.check("W30", 1)
async def renews(scene: WorkerScene) -> None:
    """It renews what it holds: a call longer than two leases runs once."""
    # It outlives a lease.
    sent = await scene.begun(60)

    async def idle_time() -> int:
        return (await scene.holder(sent))[1]

    await check_often(idle_time, "it does not renew what it holds")
    for _ in range(int(2.5 * LEASE / 0.1)):
        await scene.check_renewed(sent, "the entry")
        await asyncio.sleep(0.1)
    check_run(await scene.ended(sent, 15.0))


@LEASES.check("W31", 2)
async def stops_what_it_lost(scene: WorkerScene) -> None:
    """A call that `renew.lua` calls lost is stopped within a beat, and nothing more of it is sent; the others go on."""
    beside = [await scene.publish("count", {"to": 25, "delay": 0.1}) for _ in range(min(3, await scene.need_slots(1) - 1))]
    sent = await scene.begun(100)
    other = await scene.play_worker(lives=True)
    await scene.move(sent, other)
    await asyncio.sleep(LEASE / 3 + SLACK)
    await scene.keep(sent, other)
    told = len(await scene.frames(sent))
    await asyncio.sleep(0.5)
    more = len(await scene.frames(sent)) - told
    await scene.remove(sent)
    broken_if(more, f"it sent {more} more frames of a call that another worker has had for a beat")
    for each in beside:
        await scene.wait_until_gone(each, LEASE + SLACK)
        if not (frames := await scene.frames(each)) or error_of(frames) or len(text_of(frames).split()) != 25:
            raise Broken("when one of several calls was lost at a renewal, another one did not go on to its end")


@LEASES.check("W32", 2)
async def drops_what_it_lost(scene: WorkerScene) -> None:
    """A call that was moved to another worker, and that ends before the next renewal, is neither answered nor deleted."""
    await scene.need_slots(2)
    other = await scene.play_worker(lives=True)
    await _drops_what_it_lost_on_its_way(scene, other)
    await scene.prepare()
    for _ in range(2):
        sent, _ = await scene.moved_after_a_renewal(other)
        await _keep(scene, sent, other, LEASE)
        if did := await _done_with_a_lost_call(scene, sent):
            raise Broken(f"it {did} a call that had moved to another worker")
    await scene.call_echo("after a lost call")


async def _keep(scene: WorkerScene, sent: Sent, owner: str, seconds: float) -> None:
    """Renew an entry that a worker holds which the kit plays, for some seconds."""
    for _ in range(int(seconds / 0.1)):
        await scene.keep(sent, owner)
        await asyncio.sleep(0.1)


async def _done_with_a_lost_call(scene: WorkerScene, sent: Sent) -> str:
    """Return whether the worker has ``answered`` or ``deleted`` a call, empty for neither, and take its entry out of the queue."""
    answered, deleted = await scene.has_ended(sent), await scene.is_finished(sent)
    await scene.remove(sent)
    return "answered" if answered else "deleted" if deleted else ""


async def _drops_what_it_lost_on_its_way(scene: WorkerScene, other: str) -> None:
    """Check that a call is dropped which moved while the answer of its read was on its way, and another one ended meanwhile."""
    async with scene.behind_proxy() as proxy:
        beside = await scene.begun(1_000)
        proxy.plan(lambda words: words[0].upper() == b"XREADGROUP", "late", after=1.5)
        await scene.end_reads()
        sent = await scene.publish("echo", {"text": "lost on its way"})
        await until(partial(scene.is_running, sent), 5.0, "it does not take a request")
        await scene.move(sent, other)
        # Its end is answered with the fence of after the loss.
        await scene.tell(f"cancel {beside.id}")
        await scene.wait_until_gone(beside)
        is_on_its_way = bool(proxy.withheld)
        await _keep(scene, sent, other, 2.0)
        if (did := await _done_with_a_lost_call(scene, sent)) and is_on_its_way:
            raise Broken(f"it {did} a call that another worker had before the read's answer came, as the fence of before the read tells")


@LEASES.check("W33", 2)
async def finishes_each(scene: WorkerScene) -> None:
    """When one of several calls was lost, the others, also second attempts, are answered and deleted, and the lost one is dropped."""
    slots = await scene.need_slots(3)
    other = await scene.play_worker(lives=True)
    sent, beside = await scene.moved_after_a_renewal(other, min(3, slots - 2))
    for each in beside:
        frames = await scene.ended(each)
        check_run(frames)
        await scene.wait_until_gone(each)
    await asyncio.sleep(0.3)
    if did := await _done_with_a_lost_call(scene, sent):
        raise Broken(f"it {did} the call that it had lost")
    instance = await scene.only_instance()
    again = await scene.unseen("count", {"to": 3, "delay": 0.1}, "~back", 2)
    await scene.tell(f"back {SERVICE}")

    async def ends() -> bool:
        # As if it lost others all the time, so that the entry and its attempt alone tell that this call is its own.
        await scene.probe.run("HSET", scene.fence, f"c:{instance}", secrets.token_hex(8))
        return await scene.has_ended(again)

    await until(ends, 5.0, "a second attempt was not answered when other calls were lost: `finish_each.lua` is given each call's attempt")


@LEASES.check("W34", 2)
async def leaves_what_was_delivered(scene: WorkerScene) -> None:
    """When the group was set back, neither a call that it runs is begun again nor one of another worker that `reap.lua` told of."""
    sent = await scene.begun(15)
    other = await scene.play_worker(lives=True)
    held = await scene.unseen("echo", {"text": "of another worker"}, other, 1)
    await scene.just_reaped()
    await scene.end_reads()
    await scene.probe.run("XGROUP", "SETID", scene.queue, "g", "0")
    # A read that waits looks at the group again when something is published.
    for text in ("after the group was set back", "once more"):
        await scene.call_echo(text)
    broken_if(await scene.frames(held), "it runs a call that another worker has, and of which `reap.lua` had told it")
    gone = [each for each in (held, sent) if await scene.is_finished(each)]
    if held in gone or (gone and not await scene.has_ended(sent)):
        raise Broken("it deleted an entry that came again when the group was set back, and that is not its to finish")
    await scene.remove(held)
    check_count(await scene.ended(sent), 15, "a call that ran when the group was set back")


@LEASES.check("W35", 2)
async def takes_over(scene: WorkerScene) -> None:
    """It takes over what a dead worker held, as the next attempt with its deadline, at once when told `dead`, and runs no cancelled one."""
    sent = await scene.orphan("echo", {"text": "taken over"})
    frames = await scene.taken_over(sent)
    check_run(frames)
    attempts = {frame.get("attempt", 1) for frame in frames}
    if attempts != {2} or text_of(frames) != "taken over":
        raise Broken(f"the attempt after one delivery is 2, not {attempts}; the text was {text_of(frames)[:40]!r}")
    await scene.takes_at_a_message("dead")
    # Its `timeout` counted anew would be far beyond the time for taking it over.
    due = await scene.now() + 1_500
    late = await scene.orphan("count", {"to": 1_000, "delay": 0.05}, due=due, timeout=10 * TAKES_OVER)
    ended_as(await scene.taken_over(late), "deadline_exceeded")
    call = secrets.token_hex(16)
    await scene.tell(f"cancel {call}")
    cancelled = await scene.orphan("echo", {"text": "cancelled"}, id=call)
    ended_as(await scene.taken_over(cancelled), "cancelled")


@LEASES.check("W36", 2)
async def counts_attempts(scene: WorkerScene) -> None:
    """It counts a further attempt with `count.lua` before it runs, if that allows it: who kills each worker becomes a dead letter."""
    async with scene.proxy() as proxy:
        await _counts_until_the_last(scene, proxy)
        sent = await scene.orphan("echo", {"text": "of another"})
        _counts_nothing(proxy)
        await scene.tell(f"dead {SERVICE}")
        await _is_not_run(scene, proxy, sent)
        await _counts_under_the_fence_that_it_knows(scene, proxy)


async def _counts_under_the_fence_that_it_knows(scene: WorkerScene, proxy: Proxy) -> None:
    """Check that an attempt does not run whose entry moved on while the answer of `reap.lua` was on its way."""
    await scene.just_reaped()
    other, dead = await scene.play_worker(lives=True), await scene.play_worker(lives=False)
    proxy.plan(_runs(scripts.REAP), "late", after=1.0)
    asked = proxy.watch(_runs(scripts.REAP))
    sent = await scene.unseen("echo", {"text": "moved on"}, dead, 1)
    await scene.tell(f"dead {SERVICE}")
    await until(partial(scene.holder, sent), TAKES_OVER, "what a dead worker held is not taken over", lambda holder: holder[0] != dead)
    await scene.move(sent, other)
    await asyncio.sleep(0.1)
    # The one that took it, if no other has been sent.
    is_on_its_way = proxy.withheld and len(asked) == 1
    await _keep(scene, sent, other, 2.0)
    runs = await scene.runs_as(sent, 2) or await scene.has_ended(sent)
    await scene.remove(sent)
    if is_on_its_way and runs:
        raise Broken(
            "attempt 2 runs although another worker had the entry: `take/count.lua` gets the fence that `reap.lua` answered with it"
        )


def _runs(script: scripts.Script) -> Callable[[list[bytes]], bool]:
    """Return what tells whether a command runs a script."""
    known = {script.sha.encode(), script.source.encode()}
    return lambda words: words[0].upper().startswith(b"EVAL") and words[1] in known


def _counts_nothing(proxy: Proxy) -> None:
    """Have the next `take/count.lua` answer 0, as for an entry that another worker has by then."""
    proxy.forget()
    proxy.plan(_runs(scripts.COUNT), "instead", ":0\r\n", after=0.1)


async def _is_not_run(scene: WorkerScene, proxy: Proxy, sent: Sent) -> None:
    """Check that the second attempt, for which `take/count.lua` answered 0, does not run, and take the entry out of the queue.

    Raises:
        Broken: it does, or the script is not run.
    """
    other = await scene.play_worker(lives=True)
    await until(proxy.is_done, TAKES_OVER, "it does not run `take/count.lua` before attempt 2")
    # The answer is still on its way.
    await scene.move(sent, other)
    await asyncio.sleep(0.5)
    runs = await scene.runs_as(sent, 2) or await scene.has_ended(sent)
    await scene.remove(sent)
    broken_if(runs, "attempt 2 runs although `take/count.lua` answered 0: another worker has the entry")


async def _counts_until_the_last(scene: WorkerScene, proxy: Proxy) -> None:
    """Kill each worker that runs a call, and check that the server counts each attempt before it runs."""
    sent = await scene.publish("count", {"to": 600, "delay": 0.1}, timeout=120.0)
    for attempt in range(1, scene.settings.max_deliveries + 1):
        await until(partial(scene.runs_as, sent, attempt), TAKES_OVER, f"attempt {attempt} did not begin")
        instance, _, counted = await scene.holder(sent)
        broken_if(counted != attempt, f"attempt {attempt} runs, and the server counts {counted}: when it kills its worker nobody will know")
        await scene.program.kill(scene.worker)
        await scene.see_the_end(instance)
        scene.worker = await scene.program.start(TOOLBUS_URL=scene.url_of(proxy))
    frames = await scene.ended(sent, STARTS + TAKES_OVER)
    if not error_of(frames) or await scene.runs_as(sent, scene.settings.max_deliveries + 1):
        raise Broken(f"after {scene.settings.max_deliveries} workers that it killed the call was run once more")
    broken_if(not await scene.probe.run("XLEN", scene.keys.dead_letters(SERVICE)), "there is no dead letter")


@LEASES.check("W37", 2)
async def buries_poison(scene: WorkerScene) -> None:
    """A request that was delivered as often as allowed becomes a dead letter, and its caller is told, both under the attempt beyond."""
    dead = await scene.play_worker(lives=False)
    most = scene.settings.max_deliveries
    # Leaving workers have cut two of its attempts off: it has as many left.
    cut_off = await scene.unseen("echo", {"text": "cut off"}, await scene.play_worker(lives=True), most)
    await scene.probe.run("SET", scene.keys.pause(SERVICE, cut_off.entry), "0 0 0 2", "PX", 60_000)
    # No earlier, or it could be taken over before its note is there.
    await scene.keep(cut_off, dead, most)
    sent = await scene.unseen("echo", {"text": "poison"}, dead, most)
    frames = await scene.taken_over(sent)
    broken_if(not error_of(frames), f"it was run a {most + 1}th time")
    await scene.check_letter(sent.entry, "max_deliveries", most + 1, sent.document, "a request that failed too often")
    ended_as(frames, "tool_error", "max_deliveries")
    if (attempt := frames[-1].get("attempt", 1)) != most + 1:
        raise Broken(f"its caller is told so under the attempt {attempt} instead of {most + 1}")
    if error := error_of(await scene.ended(cut_off, TAKES_OVER)):
        raise Broken(f"a request whose note says that two of its {most} attempts were cut off ended as {error}")


@LEASES.check("W38", 2)
async def runs_suspects_alone(scene: WorkerScene) -> None:
    """An entry is run alone for its last two attempts: a worker makes room for it, and takes no others beside it."""
    await scene.need_slots(2)
    await scene.probe.run("HDEL", scene.fence, "room")
    instance = await scene.only_instance()
    long = await scene.begun(12)
    suspect = await scene.orphan("count", {"to": 10, "delay": 0.1}, scene.settings.max_deliveries - 2)
    await scene.tell(f"dead {SERVICE}")

    async def makes_room() -> bool:
        return instance.encode() in (await scene.probe.run("HGET", scene.fence, "room") or b"")

    await until(makes_room, LEASE / 3 + SLACK, "`reap.lua` does not hear from it that it can make room for an entry that must run alone")
    await scene.end_reads()
    late = await scene.publish("echo", {"text": "late"})
    await asyncio.gather(
        scene.check_order(long, suspect, "it runs beside a call that had begun before"),
        scene.check_order(long, late, "it took another call although `reap.lua` had asked it to make room"),
    )
    await until(lambda: scene.frames(suspect), TAKES_OVER, "it was not taken over")
    broken_if(await scene.frames(late), "it took another call before it or beside it, although `reap.lua` had asked it to make room")
    beside = await scene.publish("echo", {"text": "beside"})
    await scene.check_order(suspect, beside, "another call was run beside it")
    check_run(await scene.frames(suspect))
    for each in (late, beside):
        await scene.ended(each)
    suspect = await scene.orphan("count", {"to": 1_000, "delay": 0.05}, scene.settings.max_deliveries - 2)
    await scene.tell(f"dead {SERVICE}")
    await until(lambda: scene.frames(suspect), TAKES_OVER, "it was not taken over")
    await scene.tell(f"cancel {suspect.id}")
    await scene.wait_until_gone(suspect)
    await scene.call_echo("after one that ran alone was cancelled")
    long = await scene.begun(300)
    await scene.probe.run("HDEL", scene.fence, "room")
    suspect = await scene.orphan("echo", {"text": "alone"}, scene.settings.max_deliveries - 2)
    await scene.tell(f"dead {SERVICE}")
    await until(makes_room, LEASE + SLACK, "it was not asked to make room")
    await scene.end_reads()
    waiting = await scene.publish("echo", {"text": "waiting"})
    problem = "it takes no calls any more, although it was asked to make room more than three leases ago"
    await scene.ended(waiting, 3 * LEASE + 2 * SLACK, problem)
    await scene.tell(f"cancel {long.id}")
    await scene.ended(suspect, TAKES_OVER)


@LEASES.check("W39", 2)
async def takes_what_was_handed_back(scene: WorkerScene) -> None:
    """It takes what was handed back, or over to it, within a beat, and at once when it is told; that delivery counts for nothing."""
    sent = await scene.unseen("echo", {"text": "handed back"}, "~back", 1)
    frames = await scene.ended(sent, LEASE / 3 + 2.0)
    check_run(frames)
    broken_if(text_of(frames) != "handed back", f"the text was {text_of(frames)[:40]!r} {error_of(frames)}")
    broken_if({frame.get("attempt", 1) for frame in frames} != {1}, "the delivery to the worker that handed it back was counted")
    for word in ("back", "to"):
        await scene.takes_at_a_message(word)


@LEASES.check("W40", 2)
async def rescues(scene: WorkerScene) -> None:
    """It runs `rescue.lua` once a lease, from where it stopped: a request that the group passed over is run, behind many others, too."""
    other = await scene.play_worker(lives=True)
    # One look goes as far as these.
    before = [await scene.unseen("echo", {"text": "of another worker"}, other, 1) for _ in range(16)]
    sent = await scene.unseen("echo", {"text": "passed over"}, other, 1)
    await scene.probe.run("XACK", scene.queue, "g", sent.entry)
    frames = await scene.ended(sent, 5 * LEASE + SLACK + 2.0)
    for each in before:
        await scene.remove(each)
    broken_if(text_of(frames) != "passed over", f"the text was {text_of(frames)[:40]!r} {error_of(frames)}")


@LEASES.check("W41", 2)
async def restores_its_registration(scene: WorkerScene) -> None:
    """Once a lease it looks whether what `register.lua` writes is there, and registers again if a part of it is gone."""
    instance = await scene.only_instance()
    keys = scene.keys
    for what, key, field in (
        ("the service's row", keys.services, SERVICE),
        ("the table of names", keys.names, ""),
        ("the service's table", keys.instances(SERVICE), ""),
        ("the counter of starts", keys.meta, "start"),
        ("its counter in the fence", scene.fence, f"c:{instance}"),
        ("its lease in the fence", scene.fence, f"l:{instance}"),
        ("the group's generation", scene.fence, "generation"),
    ):

        async def is_back(key: str = key, field: str = field) -> bool:
            return bool(await scene.probe.run("HEXISTS", key, field) if field else await scene.exists(key))

        broken_if(not await is_back(), f"{what} was never written")
        await scene.probe.run(*(("HDEL", key, field) if field else ("DEL", key)))
        await until(is_back, 2 * LEASE + SLACK, f"{what} was not written again")
    await scene.call_echo("after all was restored")


@LEASES.check("W42", 2)
async def pauses(scene: WorkerScene) -> None:
    """It takes and reaps nothing of a paused service, as a message or beat tells, renews what runs, and hands back what a read brings."""
    await scene.need_slots(2)
    instance = await scene.only_instance()
    running = await scene.begun(1_000)
    for told in (True, False):
        lease = await scene.lease_of(instance)
        # So that the next beat comes too late to tell what the message does.
        await until(partial(scene.lease_of, instance), LEASE, "it does not beat", partial(operator.ne, lease))
        await scene.pause(told=told)
        await asyncio.sleep(0.4 if told else LEASE / 3 + 0.7)
        back = await scene.unseen("echo", {"text": "paused"}, "~back", 1)
        sent = await scene.publish("echo", {"text": "paused"})
        # With a message beyond a lease, so that a call that is not renewed shows.
        for _ in range(int(LEASE / 0.1) if told else 12):
            await asyncio.sleep(0.1)
            await scene.check_renewed(running, "while the service was paused, a call that ran")
            for each, about in ((sent, "came"), (back, "was handed back")):
                if await scene.frames(each) or await scene.is_running(each):
                    by = "a message" if told else "beats alone"
                    raise Broken(f"a request that {about} after the service was paused, as {by} told, was taken")
        await scene.resume(told=told)
        for each in (sent, back):
            broken_if(text_of(await scene.ended(each, LEASE + 2.0)) != "paused", "a request was not run after the pause")
    await scene.tell(f"cancel {running.id}")
    await scene.wait_until_gone(running)
    await _is_paused_after_a_late_beat(scene)
    await _is_paused_before_it_listens(scene)


async def _is_paused_after_a_late_beat(scene: WorkerScene) -> None:
    """Check that the answer to a beat that was sent before a message does not undo what the message said."""
    async with scene.behind_proxy() as proxy:
        # One that answers listens.
        await scene.call_echo("before the pause")
        keys = [key.encode() for key in (scene.keys.live, scene.keys.paused, scene.keys.pulse)]
        # The second one for those who beat by the clock: its answer would undo at once what the first one did.
        for _ in range(2):
            proxy.plan(lambda words: words[3:6] == keys, "late", after=1.0)
        await until(proxy.withholds, LEASE + SLACK, "it does not beat")
        await scene.pause()
        await asyncio.sleep(0.4)
        sent = await scene.publish("echo", {"text": "paused"})
        await asyncio.sleep(1.0)
        # One with a single connection may not have handed it back yet.
        began = await scene.frames(sent)
        await scene.resume()
        broken_if(began, "the answer to a beat that was sent before the message about a pause has ended the pause")
        await scene.ended(sent, LEASE + 2.0)


async def _is_paused_before_it_listens(scene: WorkerScene) -> None:
    """Check that a worker which subscribes after the message about a pause takes nothing, although it may have beaten before."""
    async with scene.proxy() as proxy:
        await scene.start_unsubscribed(proxy)
        await scene.pause()
        proxy.let_go()
        await scene.joined(set(), "it is not in the registry when it is started anew")
        sent = await scene.publish("echo", {"text": "paused"})
        problem = "it takes requests of a service that was paused before it had subscribed to the messages about pauses"
        await scene.check_untaken(sent, 0.5, problem)
        await scene.resume()
        await scene.ended(sent, LEASE + 2.0)


@LEASES.check("W43", 2)
async def hands_over(scene: WorkerScene) -> None:
    """A call of another revision that it would refuse goes to a worker of that one, or ends as `unavailable` (`other_revision`)."""
    other = await scene.play_worker(lives=True, digest="kit-revision")
    sent = await scene.publish("of-another-revision", {}, digest="kit-revision")
    await scene.wait_until_passed_on(sent, other, "the worker of its revision")
    await scene.remove(sent)
    frames = await scene.ended(await scene.publish("of-another-revision", {}, digest="of-nobody"))
    ended_as(frames, "unavailable", "other_revision")
    broken_if(not frames[-1]["error"].get("retryable"), "the error is not retryable")


@LEASES.check("W44", 2)
async def ends_slow_callers(scene: WorkerScene) -> None:
    """Beyond `reply_limit` or `reply_bytes` of what a caller has not read its calls end as slow_consumer, and no others."""
    await scene.draw_agent()
    beside = await scene.begin_beside()
    replies, fill = scene.keys.replies(scene.agent), "for _ = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'x', '') end"
    sent = await scene.begun(4_000, 0.005)
    await scene.probe.run("EVAL", fill, 1, replies, scene.settings.reply_limit + 1)
    frames = await scene.ended(sent)
    ended_as(frames, "slow_consumer")
    await asyncio.sleep(0.3)
    broken_if(len(await scene.frames(sent)) > len(frames), "frames came after the end")
    await scene.check_beside(beside)
    await scene.probe.run("XTRIM", replies, "MAXLEN", 0)
    # Large entries beside many small ones of others: an agent of its own, since the average is of all that was written to it.
    await scene.need("large")
    await scene.need_slots(2)
    await scene.draw_agent()
    await scene.probe.run("EVAL", fill, 1, scene.keys.replies(scene.agent), scene.settings.reply_limit - 1_000)
    sent = await scene.begun(4_000, 0.05)
    await scene.publish("large", {"size": 8 * 1_048_576})
    ended_as(await scene.ended(sent), "slow_consumer")
    await scene.probe.run("DEL", scene.keys.replies(scene.agent))
    await scene.draw_agent()


# What keeps a request from being read, and how its document has it; with the first ones its id and agent can be found by everybody.
_UNREADABLE = {
    "has `arguments` that are text": ('"arguments": {}', '"arguments": "text"'),
    "has null as `arguments`": ('"arguments": {}', '"arguments": null'),
    "has no `service`": (f'"service": "{SERVICE}", ', ""),
    "has null as `user`": ("{", '{"user": null, '),
    "has 1.5 as `priority`": ("{", '{"priority": 1.5, '),
    "is of another version": ("{", '{"v": 77, '),
    "has half of a surrogate pair": ('"arguments": {}', '"arguments": {"text": "\\ud800"}'),
    "has a number beyond a double": ('"arguments": {}', '"arguments": {"text": "x", "more": 1e999}'),
    "has more than 262,144 bytes": ('"arguments": {}', f'"arguments": {{"text": "{"x" * 270_000}"}}'),
    "is no UTF-8": ('"arguments": {}', '"arguments": {"text": "\udcff"}'),
    "is no JSON": ("{", ""),
}
_CAN_BE_ANSWERED = 6


@LEASES.check("W45", 2)
async def sets_aside_unreadable_requests(scene: WorkerScene) -> None:
    """A request that can't be read becomes a dead letter, and is answered with invalid_arguments when its id and agent can be found."""
    sent = {}
    for what, (good, bad) in _UNREADABLE.items():
        call, document, due = scene.unsent("echo", {})
        wrong = document.decode().replace(good, bad, 1).encode("utf-8", "surrogateescape")
        sent[what] = Sent(call, await scene.add(wrong, due), wrong)
    for what, due in (("has no deadline that is a number", "soon"), ("has a deadline beyond 2^53", "9" * 17)):
        sent[what] = await scene.publish("echo", {"text": "x"}, due=due)
    for what, each in sent.items():
        await until(partial(scene.is_finished, each), 5.0, f"a request that {what} is still in the queue")
        error = error_of(frames) if (frames := await scene.frames(each)) else "nothing"
        if error not in {"invalid_arguments", *(() if what in list(_UNREADABLE)[:_CAN_BE_ANSWERED] else ("nothing",))}:
            raise Broken(f"a request that {what} was answered with {error or 'a success'}")
        await scene.check_letter(each.entry, "malformed", 1, each.document, f"a request that {what}")


@LEASES.check("W50", 2)
async def survives_kills(scene: WorkerScene) -> None:
    """When one of two workers is killed in the middle of a stream, the other runs the call again, whole."""
    instance = await scene.only_instance()
    second = await scene.program.start()
    await scene.joined({instance}, "the second worker is not in the registry")
    sent = await scene.begun(30)
    holder, _, _ = await scene.holder(sent)
    killed, scene.worker = (scene.worker, second) if holder == instance else (second, scene.worker)
    await scene.program.kill(killed)
    frames = await scene.ended(sent, TAKES_OVER + 10.0)
    last = [frame for frame in frames if frame["run"] == frames[-1]["run"]]
    check_count(last, 30, f"attempt {last[0].get('attempt', 1)}")
    broken_if(last[0].get("attempt", 1) < 2, "the first attempt answered, whose worker was killed")


@LEASES.check("W67", 2)
async def beats_beside_handlers(scene: WorkerScene) -> None:
    """Beats come from a thread that a busy handler can't block."""
    await scene.need("block")
    sent = await scene.publish("block", {"seconds": 2 * LEASE})
    instance = await scene.only_instance()
    until_free = asyncio.get_running_loop().time() + 2 * LEASE
    while asyncio.get_running_loop().time() < until_free:
        broken_if(instance not in await scene.instances(), "its lease ended while a handler kept its thread busy")
        await scene.check_renewed(sent, "the call of a handler that kept its thread busy")
        await asyncio.sleep(0.1)
    check_run(await scene.ended(sent))


@LEASES.check("W68", 2)
async def leaves_replicas(scene: WorkerScene) -> None:
    """It asks for the ROLE with its beats, and leaves a server that is a replica: it closes its connections, and takes nothing."""
    async with scene.behind_proxy() as proxy:
        # A replica that takes writes, so that the role alone tells.
        proxy.played[b"ROLE"] = b"*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:0\r\n"
        before = proxy.connections()
        await asyncio.sleep(LEASE / 3 + SLACK)
        if kept := before & proxy.connections():
            raise Broken(f"{len(kept)} of its {len(before)} connections to a server that has become a replica stay open")
        sent = await scene.publish("echo", {"text": "of a master"})
        await scene.check_untaken(sent, 1.0, "it takes requests from a server that has been a replica for longer than a beat")
        proxy.played.clear()
        broken_if(text_of(await scene.ended(sent, STARTS)) != "of a master", "it does not go on when the server is a master again")


@LEASES.check("W71", 2)
async def drops_old_requests(scene: WorkerScene) -> None:
    """A request that waited for over five seconds and whose reply stream is gone is finished without being run."""
    await scene.need("block")
    await scene.pause()
    await asyncio.sleep(0.5)
    sent = await scene.publish("block", {"seconds": 4.0}, agent=secrets.token_hex(16))
    await asyncio.sleep(5.2)
    waited = await scene.waits(sent.entry) and not await scene.is_running(sent)
    await scene.resume()
    not_checked_if(not waited, "no request can be made to wait for it, since it takes those of a paused service")
    await scene.wait_until_gone(sent, 3.0)


@LEASES.check("W72", 2)
async def counts_retries(scene: WorkerScene) -> None:
    """A run that is tried again is counted first, if `count.lua` allows it, and has a new run token."""
    await scene.need("retry")
    async with scene.behind_proxy() as proxy:
        await _counts_its_retry(scene)
        _counts_nothing(proxy)
        # So that no renewal calls the entry lost before the answer comes.
        await scene.just_renewed()
        await _is_not_run(scene, proxy, await scene.publish("retry", {"to": 10, "delay": 0.1}))


async def _counts_its_retry(scene: WorkerScene) -> None:
    sent = await scene.publish("retry", {"to": 10, "delay": 0.1}, events=True)
    await until(lambda: scene.runs_as(sent, 2), 5.0, "no text of a second attempt came after the first one had failed")
    _, _, counted = await scene.holder(sent)
    broken_if(counted != 2, f"attempt 2 runs, and the server counts {counted}")
    frames = await scene.ended(sent)
    first, second = ({frame["run"] for frame in frames if frame.get("attempt", 1) == attempt} for attempt in (1, 2))
    broken_if(first & second, "both attempts have one run token")
    again = [frame for frame in frames if frame["run"] == frames[-1]["run"]]
    check_run(again)
    broken_if(again[0].get("kind") != "start", "with `events`, the first frame of each run is a `start`, also of one that is tried again")


@LEASES.check("W79", 2)
async def ends_refused_calls(scene: WorkerScene) -> None:
    """Frames refused for good, not for a moment, end their call as `unavailable` (`frames_refused`); a refused end is left to others."""
    async with scene.behind_proxy() as proxy:
        for refusal in ("OOM command not allowed when used memory > 'maxmemory'.", "MISCONF Redis can't write to its disk"):
            passing = await scene.begun(10)
            proxy.plan(passing.is_named_in, "refuse", refusal)
            frames = await scene.ended(passing, 20.0)
            check_count(frames, 10, f"after one refusal of its frames, {refusal!r}, a call")
        sent = await scene.begun(200, 0.05)
        proxy.plan(sent.is_named_in, "refuse", "NOPERM the user has no permission to do so")
        ended_as(await scene.ended(sent), "unavailable", "frames_refused")
        await scene.call_echo("after refused frames")
        proxy.plan(lambda words: any(b"end_of_stream" in word for word in words), "refuse", "NOPERM the user has no permission to do so")
        sent = await scene.publish("echo", {"text": "taken over"})
        await scene.ended(sent, TAKES_OVER, "a call for which `finish.lua` was refused is not taken over: it is renewed all the same")


@LEASES.check("W77", 2)
async def reconnects(scene: WorkerScene) -> None:
    """When its connections end, it connects again: what runs is answered, and what was cancelled meanwhile is stopped."""
    async with scene.behind_proxy() as proxy:
        cancelled, kept = await scene.begun(200), await scene.begun(30)
        # As `cancel.lua` does, whose message comes while nobody listens.
        await scene.probe.run("ZADD", scene.keys.cancelled(SERVICE), await scene.now() + 30_000, cancelled.id)
        proxy.cut()

        async def is_stopped() -> bool:
            scene.program.check_alive()
            return await scene.is_finished(cancelled)

        await until(is_stopped, 10.0, "a call that was cancelled while it had no connection goes on")
        # A script that was not answered is run again, so frames may come twice.
        frames = {frame.get("seq", 0): frame for frame in await scene.ended(kept)}
        check_count([frames[seq] for seq in sorted(frames)], 30, "a call that ran meanwhile")
        await scene.wait_until_gone(kept)
        await scene.call_echo("after the cut")
