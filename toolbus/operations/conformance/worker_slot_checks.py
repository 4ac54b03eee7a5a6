"""Requirements of a worker of level 2: how it shares its slots, and frees them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial

from toolbus.operations.conformance.checks import Broken, Table, broken_if, not_checked_if, until
from toolbus.operations.conformance.scene import BESIDE, LEASE, SERVICE
from toolbus.operations.conformance.worker_calls import SLACK, TAKES_OVER
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene

SLOTS = Table[WorkerScene]()


@SLOTS.check("W69", 2)
async def shares_its_slots(scene: WorkerScene) -> None:
    """With several services it waits for all of their streams, and takes no more than it has slots."""
    not_checked_if(not await scene.exists(scene.keys.queue(BESIDE)), f"it does not serve {BESIDE} as well")
    await scene.need_slots(2)
    services, instance = (SERVICE, BESIDE), await scene.only_instance()
    one = {"to": 1, "delay": 0.0}
    # One that reads the streams in turns, two seconds long each, is late for the second request in a row, unless that itself comes late.
    for service in 4 * (SERVICE, SERVICE, BESIDE, BESIDE):
        single = await scene.publish("count", one, service=service)
        problem = f"a request of {service} was not answered although the worker does nothing else: it waits for another stream"
        await scene.ended(single, 1.6, problem)
    # So many that slots for one stream are fewer than the calls of both.
    lasting = {"to": 3, "delay": 1.0}
    together = await scene.publish_together(300, lasting, services=services, timeout=5.0, events=True)
    sent = {(service, each.entry): each for service, each in zip(itertools.cycle(services), together, strict=False)}

    async def held() -> set[tuple[str, str]]:
        found = [await scene.probe.run("XPENDING", scene.keys.queue(service), "g", "-", "+", 1_000, instance) for service in services]
        return {(service, entry[0].decode()) for service, entries in zip(services, found, strict=True) for entry in entries}

    taken = await held()
    await asyncio.sleep(1.0)
    waiting = [call for call in taken & await held() if not await scene.frames(sent[call])]
    for each in sent.values():
        await scene.ended(each, 15.0)
    broken_if(waiting, f"{len(waiting)} of {len(taken)} requests that it has taken wait in it, and no other worker can run them")


# As many calls are more than most workers run at once.
_MANY = 100


@SLOTS.check("W80", 2)
async def frees_every_slot(scene: WorkerScene) -> None:
    """A call that it refuses, sets aside, buries, passes on, loses, or whose caller goes, leaves its slot free."""
    for about, end in _ENDS.items():
        try:
            await end(scene)
            await scene.ended(await scene.publish("echo", {"text": "x"}), 5.0)
        except Broken as error:
            raise Broken(f"calls that {about} must leave their slots free: {error}") from None


async def _fail(scene: WorkerScene) -> None:
    for each in await asyncio.gather(*(scene.publish("echo", {}) for _ in range(3 * _MANY))):
        await scene.ended(each, 5.0)


async def _are_forbidden(scene: WorkerScene) -> None:
    if f"{SERVICE}-private" in await scene.tools():
        for each in await asyncio.gather(*(scene.publish("private", {"text": "x"}, user="nobody") for _ in range(3 * _MANY))):
            await scene.ended(each, 5.0)


async def _are_set_aside(scene: WorkerScene) -> None:
    due = str(await scene.now() + 30_000)
    for entry in await asyncio.gather(*(scene.add(b"{", due) for _ in range(3 * _MANY))):
        await scene.wait_until_gone(Sent("", entry))


async def _are_buried(scene: WorkerScene) -> None:
    # It lives until it has all of them, or it could be taken out of the registry as one that holds nothing.
    dead = await scene.play_worker(lives=True)
    sent = [await scene.unseen("echo", {"text": "poison"}, dead, scene.settings.max_deliveries) for _ in range(_MANY)]
    await scene.see_the_end(dead)
    for each in sent:

        async def is_gone(entry: Sent = each) -> bool:
            await scene.tell(f"dead {SERVICE}")
            return await scene.is_finished(entry)

        await until(is_gone, TAKES_OVER, "one was not taken over")


async def _are_passed_on(scene: WorkerScene) -> None:
    other = await scene.play_worker(lives=True, digest="kit-revision")
    for each in await asyncio.gather(*(scene.publish("of-another-revision", {}, digest="kit-revision") for _ in range(3 * _MANY))):
        await until(partial(scene.waits_for, each, other), 5.0, "one was not passed on")
        await scene.remove(each)


async def _are_lost(scene: WorkerScene) -> None:
    other = await scene.play_worker(lives=True)
    async for running in _filled(scene):
        for each in running:
            await scene.move(each, other)
        await asyncio.sleep(LEASE / 3 + SLACK)
        for each in running:
            await scene.remove(each)


async def _are_abandoned(scene: WorkerScene) -> None:
    async for running in _filled(scene):
        await scene.probe.run("DEL", scene.keys.replies(scene.agent))
        for each in running:
            await scene.wait_until_gone(each)
        await scene.listen()


_ENDS = {
    "fail": _fail,
    "are refused as forbidden": _are_forbidden,
    "are set aside, since they can't be read,": _are_set_aside,
    "are buried": _are_buried,
    "are passed on to another revision": _are_passed_on,
    "are lost": _are_lost,
    "run while their caller goes": _are_abandoned,
}


async def _filled(scene: WorkerScene) -> AsyncIterator[list[Sent]]:
    """Yield the calls that the worker runs, a hundred at most, until that were more than twice what it runs at once."""
    total = most = 0
    while total <= 2 * most:
        running = await _fill(scene)
        yield running
        most, total = max(most, len(running)), total + len(running)


async def _fill(scene: WorkerScene) -> list[Sent]:
    """Have the worker run calls that last, a hundred at most, and return them."""
    sent = await asyncio.gather(*(scene.publish("count", {"to": 1_000, "delay": 0.2}) for _ in range(_MANY)))
    await scene.wait_for_text(sent[0])
    # In one script: one that it took between a look and the removal would run on, unknown to the check.
    taken = await scene.probe.run(
        "EVAL",
        "local taken = {} for i = 1, #ARGV do if #redis.call('XPENDING', KEYS[1], 'g', ARGV[i], ARGV[i], 1) > 0 then taken[#taken + 1] = i "
        "else redis.call('XDEL', KEYS[1], ARGV[i]) end end return taken",
        1, scene.queue, *(each.entry for each in sent),
    )  # fmt: skip
    running = [sent[at - 1] for at in taken]
    for each in running:
        await scene.wait_for_text(each)
    return running


@SLOTS.check("W81", 2)
async def takes_over_first(scene: WorkerScene) -> None:
    """When it had no free slot to take over what dead workers held, it does so with the next one, before it takes anything else."""
    other = await scene.play_worker(lives=True)
    sent = await scene.unseen("echo", {"text": "of a dead worker"}, other, 1)
    running = await _fill(scene)
    for _ in range(_MANY):
        await scene.publish("count", {"to": 1_000, "delay": 0.2})
    # Those which there is a slot for have begun when no more are taken.
    before, taken = -1, 0
    while taken > before:
        await asyncio.sleep(0.5)
        before, taken = taken, (await scene.probe.run("XPENDING", scene.queue, "g"))[0]
    await scene.see_the_end(other)
    await asyncio.sleep(LEASE / 3 + SLACK)
    not_checked_if(await scene.frames(sent), f"it runs more than {_MANY} calls at the same time")
    for each in running[:2]:
        await scene.tell(f"cancel {each.id}")
    problem = "what a dead worker held waits behind requests that were taken when a slot had become free"
    await scene.ended(sent, 2 * SLACK, problem)
