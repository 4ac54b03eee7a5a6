"""Requirements of a worker of level 2: how it leaves, and when it must."""

from __future__ import annotations

import asyncio
import operator
import re
from functools import partial

from toolbus.operations.conformance.checks import Broken, Table, broken_if, until, until_not
from toolbus.operations.conformance.proxy import Proxy
from toolbus.operations.conformance.scene import LEASE, SERVICE, STARTS, fields_of
from toolbus.operations.conformance.worker_calls import check_count, error_of
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene

LEAVING = Table[WorkerScene]()
# Seconds after which a worker whose reads are refused ends.
GIVES_UP = max(3 * LEASE, 30.0)
# Seconds of grace of a worker that has more time than it needs.
_PATIENCE = 6.0


@LEAVING.check("W46", 2)
async def drains(scene: WorkerScene) -> None:
    """On SIGTERM it finishes what runs, within TOOLBUS_GRACE, and beats, renews, cancels and keeps deadlines until then, no more."""
    await scene.need_slots(3)
    await scene.restart(TOOLBUS_GRACE=f"{_PATIENCE:g}")
    instance = await scene.only_instance()
    # With another worker of its revision its stream stays when it has left.
    await scene.play_worker(lives=True, digest=(await scene.row_of(instance)).partition(":")[2])
    cancelled, timed, sent = await scene.begun(1_000), await scene.begun(1_000, timeout=2.0), await scene.begun(35)
    others: Sent | None = None
    stopping = asyncio.create_task(scene.program.stop(scene.worker))
    try:
        while not stopping.done():
            left = await scene.lease_of(instance) - await scene.now()
            is_listed = bool(await scene.row_of(instance))
            # Looked at last, since it retires behind the end.
            if await scene.has_ended(sent):
                break
            broken_if(others and is_listed, "it registers again while it leaves")
            if not others and not is_listed:
                await scene.tell(f"cancel {cancelled.id}")
                others = await scene.orphan("echo", {"text": "of a dead worker"})
                await scene.tell(f"dead {SERVICE}")
            broken_if(left < 0, "its lease ended while it finished what runs, and others take that over")
            await scene.check_renewed(sent, "what it finished")
            await asyncio.sleep(0.1)
        for each, what in ((cancelled, "was cancelled"), (timed, "had no time left")):
            broken_if(not await scene.is_finished(each), f"while it left, a call that {what} went on")
    finally:
        await stopping
    if others is not None:
        broken_if(await scene.frames(others) or await scene.is_finished(others), "it took over what a dead worker held while it left")
        await scene.remove(others)
    frames = await scene.frames(sent)
    broken_if(not frames[-1].get("end_of_stream"), "a call that needed three seconds of its grace period more was cut off")
    check_count(frames, 35, "the call that it finished while it left")


@LEAVING.check("W47", 2)
async def takes_nothing_while_it_leaves(scene: WorkerScene) -> None:
    """A worker that leaves takes no more requests."""
    await scene.begun(9)
    instance = await scene.only_instance()
    stopping = asyncio.create_task(scene.program.stop(scene.worker))
    try:
        await until_not(lambda: scene.row_of(instance), 5.0, "it does not leave the registry when it begins to leave")
        late = await scene.publish("echo", {"text": "late"})
    finally:
        await stopping
    broken_if(await scene.frames(late), "a request that came afterwards was answered")
    broken_if(await scene.is_running(late), "a request that came afterwards was taken")
    await scene.remove(late)


@LEAVING.check("W48", 2)
async def hands_back(scene: WorkerScene) -> None:
    """On SIGTERM, with TOOLBUS_GRACE over, what still runs is handed back for its next attempt, behind its frames, and not lost."""
    sent = await scene.begun(300, timeout=180.0)
    await scene.program.stop(scene.worker)
    holder, idle, count = await scene.holder(sent)
    handed_back = await scene.now() - idle
    [(last, _)] = await scene.probe.run("XREVRANGE", scene.keys.replies(scene.agent), "+", "-", "COUNT", 1)
    frames = await scene.frames(sent)
    key = scene.keys.pause(SERVICE, sent.entry)
    note, ttl = (await scene.probe.run("GET", key) or b"").split(), int(await scene.probe.run("PTTL", key))
    left = int(sent.entry.partition("-")[0]) + 180_000 - await scene.now()
    await scene.remove(sent)
    broken_if(frames[-1].get("end_of_stream"), f"the call was ended as {error_of(frames) or 'a success'} instead of being handed back")
    broken_if(not holder.startswith("~back"), f"the entry is with {holder or 'nobody'}, not with ~back")
    broken_if(count != 2, f"its next run would be attempt {count}, as the one that was cut off was 1")
    if (late := int(last.partition(b"-")[0]) - handed_back) > 0:
        raise Broken(f"frames came {late} ms after the call was handed back, beside those of its next run")
    if note != [b"0", b"0", b"0", b"1"] or not left <= ttl <= left + 120_000:
        raise Broken(
            f"its note says {b' '.join(note)!r} for {ttl} ms, not that it was cut off once, until its deadline ({left} ms) and a minute"
        )


@LEAVING.check("W49", 2)
async def retires(scene: WorkerScene) -> None:
    """A worker that leaves hands back what waits for it, and removes its consumer and its fields of the fence (`retire.lua`)."""
    # One that answers is ready for SIGTERM.
    await scene.call_echo("before")
    instance = await scene.only_instance()
    other = await scene.play_worker(lives=True)
    held = await scene.unseen("echo", {"text": "of another worker"}, other, 1)
    # More than go back at once, also when it runs a part of them before; nobody is answered.
    waiting = await scene.publish_together(900, {"to": 1, "delay": 0.5}, consumer=f"~to:{instance}", agent="")
    await scene.program.stop(scene.worker)
    listed = await scene.probe.run("XINFO", "CONSUMERS", scene.queue, "g")
    consumers = [fields_of(each)[b"name"].decode() for each in listed]
    fields = await scene.probe.run("HKEYS", scene.fence)
    left = await scene.probe.run("XPENDING", scene.queue, "g", "-", "+", len(waiting), f"~to:{instance}")
    await asyncio.gather(*map(scene.remove, (held, *waiting)))
    if left:
        raise Broken(
            f"{len(left)} of {len(waiting)} requests that were handed over to it wait for it although it has left, not under ~back"
        )
    if instance in consumers or f"c:{instance}".encode() in fields:
        raise Broken("its consumer is in the group, or its counter in the fence, after it has left")


async def _is_taken(scene: WorkerScene, entry: str) -> bool:
    """Return whether an entry was delivered, or is gone; it is the only one, and there may be no group yet."""
    if not await scene.waits(entry):
        return True
    return any(fields_of(each)[b"pending"] for each in await scene.probe.run("XINFO", "GROUPS", scene.queue))


async def _ends_for_its_version(scene: WorkerScene, waiting: str, about: str, *, may_register: bool = False) -> None:
    """Check that the worker ends by itself, with an exit code that says so, and that it takes nothing.

    Args:
        scene: with the worker.
        waiting: entry of a request that it must not take, or "".
        about: the namespace's version, in words.
        may_register: whether it may register first, if it unregisters at once.

    Raises:
        Broken: it does not.
    """

    async def has_ended() -> bool:
        is_over = scene.worker.returncode is not None
        broken_if(not is_over and not may_register and await scene.instances(), f"it registers although {about}")
        broken_if(waiting and await _is_taken(scene, waiting), f"it takes a request although {about}")
        return is_over

    await until(has_ended, STARTS, f"it has not ended although {about}")
    broken_if(scene.worker.returncode == 0, f"it ended with exit code 0 although {about}")
    broken_if(await scene.instances(), f"it is still registered when it has ended because {about}")
    await scene.kill_worker()


@LEAVING.check("W51", 2)
async def checks_the_namespace(scene: WorkerScene) -> None:
    """It reads `P format` before it registers (again) and first takes: it ends if it can't speak that version, or the one raised to."""
    async with scene.proxy() as proxy:
        # One that answers has looked for the first time.
        await scene.call_echo("before")
        instance = await scene.only_instance()
        await scene.probe.run("HSET", scene.keys.format, "raising", 9)
        await scene.probe.run("ZREM", scene.keys.live, f"{SERVICE}/{instance}")
        await _ends_for_its_version(scene, "", "a beat called it missing, and the namespace's `raising` is 9")
        _, document, due = scene.unsent("echo", {"text": "waits"})
        waiting = (await scene.probe.run("XADD", scene.queue, "*", "r", document, "d", due)).decode()
        for field in ("version", "raising"):
            await scene.probe.run("DEL", scene.keys.format)
            await scene.probe.run("HSET", scene.keys.format, field, 9)
            scene.worker = await scene.program.start()
            await _ends_for_its_version(scene, waiting, f"the namespace's `{field}` is 9")
        await scene.probe.run("DEL", scene.keys.format)
        # What it publishes is refused once, and meanwhile the version is raised, which it has read before.
        proxy.plan(lambda words: any(b'"tools"' in word for word in words), "refuse", "TRYAGAIN the slot is being moved", after=0.5)
        scene.worker = await scene.program.start(TOOLBUS_URL=scene.url_of(proxy))
        await until(proxy.is_done, STARTS, "it publishes nothing")
        await scene.probe.run("HSET", scene.keys.format, "raising", 9)
        await _ends_for_its_version(scene, waiting, "it was raised to version 9 before it took anything", may_register=True)
        await scene.probe.run("DEL", scene.keys.format, scene.queue)
    broken_if("9" not in re.findall(r"\d+", scene.program.output()), "it did not say that the namespace is of version 9")


@LEAVING.check("W73", 2)
async def outlives_its_revision(scene: WorkerScene) -> None:
    """The last worker of a revision takes what is published for it, until `outlive.lua` says twice in a row that nothing is left."""
    async with scene.behind_proxy(TOOLBUS_GRACE=f"{_PATIENCE:g}") as proxy:
        await _outlives(scene, proxy)


async def _outlives(scene: WorkerScene, proxy: Proxy) -> None:
    # One that answers is ready for SIGTERM.
    await scene.call_echo("before")
    instance, table = await scene.only_instance(), scene.keys.instances(SERVICE)
    digest = (await scene.row_of(instance)).partition(":")[2]
    other = await scene.play_worker(lives=True, digest="kit-revision")
    for kind in ("d", "n"):
        await scene.probe.run("HSET", table, f"{kind}:kit-revision", await scene.probe.run("HGET", table, f"{kind}:{digest}") or "")
    # Its row is to change when it registers again with the start number 1, and that of the other revision to be the newer one.
    await scene.probe.run("HSET", table, f"i:{instance}", f"7:{digest}", f"i:{other}", "8:kit-revision")
    # `outlive.lua` as it is asked about an entry.
    keys = [key.encode() for key in (scene.queue, scene.fence, scene.keys.live, table)]
    asked = proxy.watch(lambda words: words[3:7] == keys and words[-1].replace(b"-", b"").isdigit())
    begun = asyncio.get_running_loop().time()
    stopping = asyncio.create_task(scene.program.stop(scene.worker))
    problem = "it does not register again with the start number 1, although it is the last one of its revision"
    try:
        await until(partial(scene.row_of, instance), 2.0, problem, partial(operator.eq, f"1:{digest}"))
        late = await scene.publish("echo", {"text": "late"}, digest=digest)
    finally:
        await stopping
    if not await scene.has_ended(late):
        raise Broken("a request for its revision, which was published while agents turned to the other one, was left behind")
    if len(asked) < 2 and asyncio.get_running_loop().time() - begun < _PATIENCE / 2:
        raise Broken(f"it left when `outlive.lua` had been asked {len(asked)} times about an entry, and not twice in a row")


@LEAVING.check("W70", 2)
async def gives_up(scene: WorkerScene) -> None:
    """When its reads are refused it tries again; after three leases, half a minute at least, it ends, if nobody waits for its calls."""
    await scene.need_slots(2)
    async with scene.behind_proxy() as proxy:
        await _refuse_reads(proxy, scene.worker, 3.0)
        proxy.played.clear()
        await scene.call_echo("after errors")
        # It runs when the worker may end, and its caller waits.
        sent = await scene.begun(int(2.5 * GIVES_UP), 0.5, timeout=3 * GIVES_UP)
        await _refuse_reads(proxy, scene.worker, 0.75 * GIVES_UP)
        if await scene.program.ended(scene.worker, 0.9 * GIVES_UP) is None:
            raise Broken(f"it goes on, and looks alive, although its reads were refused for {1.65 * GIVES_UP:g} s")
        if not any(frame.get("end_of_stream") for frame in await scene.frames(sent)):
            raise Broken("it ended although it ran a call whose caller waited")
        broken_if(await scene.instances(), "it is still registered after it has ended")


async def _refuse_reads(proxy: Proxy, worker: asyncio.subprocess.Process, seconds: float) -> None:
    """Refuse all reads from now on, and look some seconds later whether the worker runs still.

    Raises:
        Broken: it has ended.
    """
    proxy.played[b"XREADGROUP"] = b"-ERR the kit refuses to read\r\n"
    await asyncio.sleep(seconds)
    broken_if(worker.returncode is not None, f"it has ended after {seconds:g} s in which its reads were refused")
