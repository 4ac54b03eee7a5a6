"""Calls that the kit makes of a worker, and its frames: what the checks of all levels use."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from toolbus.bus.broker.lease.dead_letters import DEAD_LETTER_TTL
from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.server.keys import session_digest
from toolbus.bus.values.descriptors import Publication
from toolbus.operations.conformance.checks import Broken, NotChecked, until
from toolbus.operations.conformance.proxy import Proxy
from toolbus.operations.conformance.scene import LEASE, MOST, SERVICE, STARTS
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene

MOST_PIECE = 65_536
MOST_OUTPUT = 16 * 1_048_576
TAKES_OVER = 4 * LEASE + 6.0
# Seconds by which a busy machine may be late.
SLACK = 1.5

Frames = list[dict[str, Any]]


def text_of(frames: Frames) -> str:
    """Return the whole text of a call that has ended."""
    end = frames[-1]
    if isinstance(end.get("response"), str):
        return str(end["response"])
    pieces = [
        part for frame in frames if frame.get("kind", "text") == "text" for part in (frame.get("texts") or [frame.get("response") or ""])
    ]
    return "".join(pieces) + "".join(frame["response"] for frame in frames if frame.get("kind") == "output")


def error_of(frames: Frames) -> str:
    """Return the type of the error with which a call ended; empty when it succeeded."""
    error = frames[-1].get("error")
    return str(error.get("type", "?")) if isinstance(error, dict) else ""


def check_run(frames: Frames) -> None:
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


def ended_as(frames: Frames, error: str) -> None:
    """Check the type of the error with which a call ended."""
    if error_of(frames) != error:
        raise Broken(f"it ended as {error_of(frames) or 'a success'} instead of {error}, with the text {text_of(frames)[:40]!r}")


async def wait_for_text(scene: WorkerScene, sent: Sent) -> None:
    """Wait until a call has sent text."""

    async def has_text() -> bool:
        return any(
            (frame.get("kind", "text") == "text" and frame.get("response")) or frame.get("texts") for frame in await scene.frames(sent)
        )

    await until(has_text, 5.0, "no text came")


async def call_echo(scene: WorkerScene, text: str, role: str = "echo", **fields: Any) -> Sent:
    """Call the tool that returns its text, check its frames, and return the request."""
    sent = await scene.publish(role, {"text": text}, **fields)
    frames = await scene.ended(sent)
    check_run(frames)
    if error_of(frames) or text_of(frames) != text:
        raise Broken(f"{role} of {text[:40]!r} answered {text_of(frames)[:40]!r} {frames[-1].get('error') or ''}")
    return sent


async def wait_until_gone(scene: WorkerScene, sent: Sent, within: float = 5.0) -> None:
    """Wait until a request was acknowledged and deleted."""
    await until(lambda: scene.is_finished(sent), within, "the request was not acknowledged and deleted after its end")


async def need_slots(scene: WorkerScene, number: int) -> int:
    """Return how many calls the worker runs at the same time, 5 at most; go on if that is enough.

    Raises:
        NotChecked: it runs fewer.
    """
    if not scene.slots:
        sent = [await scene.publish("count", {"to": 10, "delay": 0.1}) for _ in range(5)]

        async def has_one_ended() -> bool:
            # All that has come until the last look at the stream: an end stands before what begins in its slot.
            frames = [await scene.frames(each) for each in sent]
            ended = [any(frame.get("end_of_stream") for frame in each) for each in frames]
            scene.slots = max(scene.slots, sum(bool(each) for each in frames) - sum(ended))
            return any(ended)

        await until(has_one_ended, 10.0, "none of five calls of a second ended")
        for each in sent:
            await scene.ended(each)
    if scene.slots < number:
        raise NotChecked(f"it runs {scene.slots} of 5 calls at the same time, and the check needs {number}")
    return scene.slots


async def begin_beside(scene: WorkerScene) -> tuple[Sent, str] | None:
    """Begin a call of another agent, and return it with the agent's id; None when the worker runs one call at a time."""
    if await need_slots(scene, 1) < 2:
        return None
    agent = await scene.draw_neighbour()
    sent = await scene.publish("count", {"to": 20, "delay": 0.1}, agent=agent)

    async def has_begun() -> bool:
        return bool(await scene.frames_of_another(sent, agent))

    await until(has_begun, 5.0, "no text came for another agent")
    return sent, agent


async def check_beside(scene: WorkerScene, beside: tuple[Sent, str] | None) -> None:
    """Check that a call of another agent goes on to its end.

    Raises:
        Broken: it does not.
    """
    if beside is None:
        return
    sent, agent = beside
    await wait_until_gone(scene, sent, 10.0)
    frames = await scene.frames_of_another(sent, agent)
    check_run(frames)
    if error := error_of(frames):
        raise Broken(f"the call of another agent, whose frames are read, ended as {error}")


async def is_running(scene: WorkerScene, sent: Sent) -> bool:
    """Return whether a worker has a request."""
    return bool((await scene.holder(sent))[0])


async def runs_as(scene: WorkerScene, sent: Sent, attempt: int) -> bool:
    """Return whether text of an attempt has come."""
    return any(frame.get("attempt", 1) == attempt and not frame.get("end_of_stream") for frame in await scene.frames(sent))


async def publication_of(scene: WorkerScene) -> Publication:
    """Return what the worker has published."""
    listed = await scene.probe.run("HGET", scene.keys.services, SERVICE)
    if not listed or listed[:1] != b"+":
        raise Broken(f"reg:services has no live row of {SERVICE!r}")
    record = read_record(listed)
    if record.refused:
        raise Broken(f"agents can't read a tool: {record.refused[0].reason}")
    return record.publication


async def tools_of(scene: WorkerScene) -> set[str]:
    """Return the names of the tools that the worker has published."""
    return {tool.name for tool in (await publication_of(scene)).tools}


async def need(scene: WorkerScene, role: str) -> None:
    """Go on if the worker has a tool that it may lack.

    Raises:
        NotChecked: it does not have it.
    """
    if f"{SERVICE}-{role}" not in await tools_of(scene):
        raise NotChecked(f"it has no tool {SERVICE}-{role}")


async def letters(scene: WorkerScene) -> dict[str, dict[str, str]]:
    """Return the fields of the dead letters, by the entries that they were."""
    found = [dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in await scene.probe.run("XRANGE", scene.dead_letters, "-", "+")]
    read = [{name.decode(): value.decode("utf-8", "replace") for name, value in fields.items()} for fields in found]
    return {fields.get("entry", ""): fields for fields in read}


async def check_letter(scene: WorkerScene, entry: str, reason: str, attempts: int, document: bytes, about: str) -> None:
    """Check the dead letter of an entry.

    Args:
        entry: its id.
        reason, attempts: fields of the letter.
        document: of the request; one that is JSON may be written in another way, without what is at its default.
        about: the request, in words.

    Raises:
        Broken: there is none, or it says something else.
    """
    letter = (await letters(scene)).get(entry)
    if letter is None:
        raise Broken(f"{about} has not become a dead letter")
    for field, wanted in (("reason", reason), ("attempts", str(attempts))):
        if letter.get(field) != wanted:
            raise Broken(f"the dead letter of {about} has {letter.get(field)!r} in its field {field!r} instead of {wanted!r}")
    kept = letter.get("r", "")
    if kept != document.decode("utf-8", "replace") and not _is_same_request(kept, document):
        raise Broken(f"the dead letter of {about} does not have the request in its field 'r', but {kept[:60]!r}")
    await check_ttl(scene, scene.dead_letters, DEAD_LETTER_TTL, "dead_letter_ttl")


async def check_ttl(scene: WorkerScene, key: str, ttl: float, name: str) -> None:
    """Check that a key lives as long as a constant of the protocol says, in seconds, which scripts take as milliseconds."""
    left = int(await scene.probe.run("PTTL", key)) / 1000
    if left < ttl - MOST:
        raise Broken(f"{key} is removed in {left:,.1f} s; {name} is {ttl:,} s, and scripts take milliseconds")


def _is_same_request(kept: str, document: bytes) -> bool:
    try:
        one, other = json.loads(kept), json.loads(document)
        return all(one[name] == other[name] for name in ("id", "tool", "arguments"))
    except (ValueError, TypeError, LookupError, RecursionError):
        return False


async def new_session(scene: WorkerScene) -> tuple[str, dict[str, Any]]:
    """Return the key of the owner of a new session, and the fields of its requests.

    Raises:
        NotChecked: the service has no sessions.
    """
    if not (await publication_of(scene)).service.sticky_sessions:
        raise NotChecked("its service has no sticky-sessions")
    session = {"user": "kit", "session": secrets.token_hex(8)}
    return scene.keys.session(SERVICE, session_digest(*session.values())), session


async def start_unsubscribed(scene: WorkerScene, proxy: Proxy) -> None:
    """Start the worker anew, and return when it subscribes to the messages for its service, which it can't before ``proxy.let_go``."""
    await scene.kill_worker()
    wake = scene.keys.wake(SERVICE).encode()
    proxy.hold(lambda words: words[0].upper() == b"SUBSCRIBE" and wake in words)
    scene.worker = await scene.program.start(TOOLBUS_URL=scene.url_of(proxy))

    async def subscribes() -> bool:
        scene.program.check_alive()
        return bool(proxy.held)

    await until(subscribes, STARTS, f"it does not subscribe to {wake.decode()}")


async def only_instance(scene: WorkerScene) -> str:
    """Return the instance of the worker when the leases of those that were killed before have ended."""

    async def only() -> str:
        found = await scene.instances()
        return found[0] if len(found) == 1 else ""

    return await until(only, LEASE + SLACK, "there is not one worker in `live`")


async def check_often(age: Callable[[], Awaitable[int]], what: str) -> None:
    """Check that something is done three times a lease, by the milliseconds since it was done last.

    Raises:
        Broken: in three leases it was never done anew within half a lease.
    """
    before, times = await age(), 0

    async def is_repeated_in_time() -> bool:
        nonlocal before, times
        was, before = before, await age()
        times += before < was
        # The first time may follow something else, as a delivery.
        return before < was <= LEASE * 500 and times > 1

    await until(is_repeated_in_time, 3 * LEASE, f"{what} three times a lease: it never did so within half a lease")


async def check_order(scene: WorkerScene, first: Sent, second: Sent, problem: str) -> None:
    """Wait for the end of a call, and check that another one has not begun before.

    Raises:
        Broken: it has; ``problem`` says so.
    """
    while True:
        has_begun = bool(await scene.frames(second))
        # Looked at last, since both may have happened between two looks.
        if await scene.has_ended(first):
            return
        if has_begun:
            raise Broken(problem)
        await asyncio.sleep(0.02)


async def call_stream(scene: WorkerScene) -> str:
    """Make the stream of a shared call, and return the call's id."""
    call = secrets.token_hex(16)
    await scene.probe.run("XADD", scene.keys.call(call), "*", "o", "made")
    await scene.probe.run("PEXPIRE", scene.keys.call(call), 60_000)
    return call


async def shared_end(scene: WorkerScene, sent: Sent) -> Frames:
    """Return the frames of a shared call when its end has come."""

    async def has_ended() -> bool:
        return any(frame.get("end_of_stream") for frame in await scene.shared_frames(sent))

    await until(has_ended, 10.0, "no end came in the call's stream")
    return await scene.shared_frames(sent)


async def unseen(
    scene: WorkerScene, role: str, arguments: dict[str, object], consumer: str, deliveries: int, *, due: object = None, **fields: Any
) -> Sent:
    """Publish a request that the worker is not delivered, because a consumer took it first; ``due`` is in place of its deadline."""
    call, document, in_time = scene.unsent(role, arguments, **fields)
    # In one script, so that nobody is delivered anything between the commands.
    entry = await scene.probe.run(
        "EVAL",
        "local id = redis.call('XADD', KEYS[1], '*', 'r', ARGV[1], 'd', ARGV[2]) "
        "redis.call('XGROUP', 'SETID', KEYS[1], 'g', id) "
        "redis.call('XCLAIM', KEYS[1], 'g', ARGV[3], 0, id, 'RETRYCOUNT', ARGV[4], 'FORCE', 'JUSTID') return id",
        1, scene.queue, document, in_time if due is None else str(due), consumer, deliveries,
    )  # fmt: skip
    return Sent(call, entry.decode(), document)


async def publish_together(
    scene: WorkerScene,
    number: int,
    arguments: dict[str, Any],
    *,
    services: tuple[str, ...] = (SERVICE,),
    consumer: str = "",
    **fields: Any,
) -> list[tuple[str, Sent]]:
    """Publish calls of `count` in one script, by turns for some services, and return the service of each and the call.

    With a consumer, they are handed to it, and the worker is not delivered them. One by one, a quick worker would never hold many.
    """
    whose = [services[at % len(services)] for at in range(number)]
    calls = [scene.unsent("count", arguments, service=service, **fields) for service in whose]
    entries = await scene.probe.run(
        "EVAL",
        "local ids = {} for i = 2, #ARGV, 2 do local key = KEYS[(i / 2 - 1) % #KEYS + 1] "
        "ids[#ids + 1] = redis.call('XADD', key, '*', 'r', ARGV[i], 'd', ARGV[i + 1]) if ARGV[1] ~= '' then "
        "redis.call('XGROUP', 'SETID', key, 'g', ids[#ids]) "
        "redis.call('XCLAIM', key, 'g', ARGV[1], 0, ids[#ids], 'RETRYCOUNT', 1, 'FORCE', 'JUSTID') end end return ids",
        len(services), *map(scene.keys.queue, services), consumer, *(part for _, *parts in calls for part in parts),
    )  # fmt: skip
    return [
        (service, Sent(call, entry.decode(), document)) for service, entry, (call, document, _) in zip(whose, entries, calls, strict=True)
    ]


async def taken_over(scene: WorkerScene, sent: Sent, news: str = "dead") -> Frames:
    """Tell the worker what there is to take over, and return the frames with which it answered."""
    await scene.tell(f"{news} {SERVICE}")
    return await scene.ended(sent, TAKES_OVER)


async def just_reaped(scene: WorkerScene) -> None:
    """Wait until the worker has looked for entries to take over, which removes consumers of dead workers, so that it soon won't again."""
    dead = await scene.play_worker(lives=False)

    async def is_removed() -> bool:
        return not await scene.probe.run("HEXISTS", scene.fence, f"x:{dead}")

    await until(is_removed, LEASE + SLACK, "it does not run `reap.lua` three times a lease")


async def takes_at_a_message(scene: WorkerScene, word: str) -> None:
    """Check that a message has the worker run `reap.lua` at once: ``dead``, ``back`` or ``to``.

    Raises:
        Broken: it takes what there is only when it looks by itself.
    """
    instance = await only_instance(scene)
    for _ in range(3):
        await just_reaped(scene)
        waits = {"back": "~back", "to": f"~to:{instance}"}
        sent = await unseen(scene, "echo", {"text": word}, waits.get(word) or await scene.play_worker(lives=False), 1)
        begun = time.monotonic()
        await scene.tell(f"{word} {instance} {SERVICE}" if word == "to" else f"{word} {SERVICE}")
        await scene.ended(sent, TAKES_OVER)
        # It looks three times a lease by itself, and the last time may have been seen late.
        if time.monotonic() - begun < LEASE / 8:
            return
    raise Broken(f"the message `{word}` changes nothing: it takes what there is when it looks three times a lease")


async def moved_after_a_renewal(scene: WorkerScene, other: str, beside: int = 0) -> tuple[Sent, list[Sent]]:
    """Return a call that runs and was moved to another worker, and others that run beside it.

    All of them end before the worker renews what it holds again, so that its ends alone can show that it lost the first one.
    """
    long = await scene.publish("count", {"to": 40, "delay": 0.1})
    await wait_for_text(scene, long)
    _, before, _ = await scene.holder(long)

    async def is_renewed() -> bool:
        nonlocal before
        _, idle, _ = await scene.holder(long)
        before, was = idle, before
        return idle < was

    await until(is_renewed, LEASE + SLACK, "it does not renew what it holds")
    for _ in range(5):
        sent, *others = [await scene.publish("count", {"to": 3, "delay": 0.1}) for _ in range(1 + beside)]
        for each in (sent, *others):
            await wait_for_text(scene, each)
        if await scene.move(sent, other):
            return sent, others
        for each in others:
            await scene.ended(each)
    raise NotChecked("its calls of 0.3 s had ended before they could be moved")
