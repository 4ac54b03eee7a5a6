"""Requirements of a worker, by the numbers of docs/protocol.md, and their checks; here those of levels 0 and 1."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from functools import partial

from toolbus.bus.broker.registry.registry import TTL as REGISTRY_TTL
from toolbus.bus.broker.replies.finish import MOST_BYTES
from toolbus.bus.broker.server import scripts
from toolbus.operations.conformance.checks import TENANT, Broken, NotChecked, Table, broken_if, until
from toolbus.operations.conformance.scene import BESIDE, LEASE, SERVICE, STARTS, fields_of
from toolbus.operations.conformance.worker_calls import SLACK, check_count, check_often, check_run, ended_as, text_of
from toolbus.operations.conformance.worker_lease_checks import LEASES
from toolbus.operations.conformance.worker_leaving_checks import LEAVING
from toolbus.operations.conformance.worker_scene import Sent, WorkerScene
from toolbus.operations.conformance.worker_session_checks import SESSIONS
from toolbus.operations.conformance.worker_slot_checks import SLOTS

WORKER = Table[WorkerScene]()
_MOST_PIECE = 65_536
_MOST_OUTPUT = 16 * 1_048_576
# Milliseconds by which an estimate of the server's time may be wrong.
_CLOCKS = 200
# Calls of which a worker runs fewer at once.
_MORE_THAN_SLOTS = 300
# Seconds for which the names of a service that has left are kept for its owner.
_COOLDOWN = 60
# Ids of cancelled calls that a worker remembers, since their entries may be on their way.
_MOST_REMEMBERED = 10_000


@WORKER.check("W1", 0)
async def registers(scene: WorkerScene) -> None:
    """It publishes its service with tools that agents can read, for `registry_ttl`, and ends, serving nothing, if another has its name."""
    names = await scene.tools()
    missing = {f"{SERVICE}-echo", f"{SERVICE}-count"} - names
    broken_if(missing, f"the publication lacks {', '.join(sorted(missing))}; it has {', '.join(sorted(names)) or 'no tools'}")
    for key in (scene.keys.services, scene.keys.names, scene.keys.instances(SERVICE), scene.queue, scene.fence):
        await scene.check_ttl(key, REGISTRY_TTL, "registry_ttl")
    await _heeds_names_of_others(scene)


async def _heeds_names_of_others(scene: WorkerScene) -> None:
    """Check that it serves nothing while another owner has its name, and takes a name of a service that does not exist."""
    await scene.kill_worker()
    table, held = scene.keys.instances("kit-other"), ("HSET", scene.keys.names, f"s:{SERVICE}", "kit\nkit-other\n0")
    await scene.probe.run(*held)
    await scene.probe.run("HSET", table, "owner", "kit")
    # With a group, so that one that serves all the same can.
    await scene.probe.run("DEL", scene.queue)
    await scene.probe.run("XGROUP", "CREATE", scene.queue, "g", "0", "MKSTREAM")
    sent = await scene.publish("echo", {"text": "of nobody"})
    scene.worker = await scene.program.start()

    async def has_ended() -> bool:
        if scene.worker.returncode is not None:
            return True
        if await scene.frames(sent) or await scene.is_running(sent) or await scene.instances():
            raise Broken("it serves although its name belongs to another owner")
        return False

    await until(has_ended, STARTS, "it has not ended although its name belongs to another owner")
    await scene.kill_worker()
    await scene.probe.run("DEL", table)
    await scene.probe.run(*held)
    scene.worker = await scene.program.start()

    async def has_begun() -> bool:
        return scene.worker.returncode is not None or bool(await scene.instances())

    await until(has_begun, STARTS, "it neither registers nor ends")
    if scene.worker.returncode is not None:
        if ((await scene.probe.run("HGET", scene.keys.names, f"s:{SERVICE}")) or b"").endswith(b"\n0"):
            raise Broken("it does not register, although the service for which its name is held does not exist any more")
        # It registered another service first, which lets such names go after a cooldown.
        await scene.kill_worker()
        await scene.probe.run("HDEL", *held[1:3])
        await scene.restart()
    await scene.ended(sent)


@WORKER.check("W2", 0)
async def answers(scene: WorkerScene) -> None:
    """A call is answered by frames with its id, one run, seq from 0 and one end, and then deleted."""
    await scene.wait_until_gone(await scene.call_echo("hello"))


@WORKER.check("W3", 0)
async def draws_runs(scene: WorkerScene) -> None:
    """Each start of a handler has a random run token of its own, the attempt 1, and the worker's instance in its first frame."""
    sent = [await scene.call_echo(str(number)) for number in range(3)]
    frames = [frame for each in sent for frame in await scene.frames(each)]
    broken_if(len({frame["run"] for frame in frames}) != len(sent), "calls share a run token")
    if any(frame.get("attempt", 1) != 1 for frame in frames):
        raise Broken(f"the attempt of a first delivery is 1, not {[frame.get('attempt', 1) for frame in frames]}")
    for frame in frames:
        if not frame.get("seq", 0) and frame.get("worker") not in await scene.instances():
            raise Broken(f"the first frame of a run has the worker {frame.get('worker')!r}, which is no instance in the registry")


@WORKER.check("W4", 0)
async def keeps_text(scene: WorkerScene) -> None:
    """Text comes back unchanged: quotes, line breaks, NUL, characters of two to four bytes."""
    await scene.call_echo('é "quoted" \\ \n \x00 \u2028 中 𝄞')


@WORKER.check("W5", 0)
async def answers_many(scene: WorkerScene) -> None:
    """300 calls at once are all answered, each once and with its own text, and those of two agents each in the stream of its own."""
    sent = await asyncio.gather(*(scene.publish("echo", {"text": f"text {number}"}) for number in range(300)))
    for number, each in enumerate(sent):
        frames = await scene.ended(each, 20)
        check_run(frames)
        broken_if(text_of(frames) != f"text {number}", f"call {number} got {text_of(frames)[:60]!r}")
    agents = [scene.agent, await scene.draw_neighbour()]
    mixed = await asyncio.gather(*(scene.publish("echo", {"text": str(number)}, agent=agents[number % 2]) for number in range(100)))
    await asyncio.gather(*(scene.wait_until_gone(each, 20.0) for each in mixed))
    for number, each in enumerate(mixed):
        frames = await (scene.frames_in(scene.keys.replies(agents[1]), each) if number % 2 else scene.frames(each))
        if not frames or not frames[-1].get("end_of_stream") or text_of(frames) != str(number):
            raise Broken("of calls of two agents, which came together, one was not answered in the stream of its own agent")


@WORKER.check("W6", 0)
async def refuses_unknown_tools(scene: WorkerScene) -> None:
    """A request for a tool or service that it does not have ends as not_found, in the only frame of its run, and leaves nothing behind."""
    other = {"tool": f"{SERVICE}-echo", "service": "kit-nobodys"}
    _, document, due = scene.unsent("echo", {"text": "of another service"})
    request = {**json.loads(document), **other}
    ended_as(await scene.ended(Sent(request["id"], await scene.add(json.dumps(request).encode(), due))), "not_found")
    for each in await asyncio.gather(*(scene.publish("nothing-like-this", {}, events=True) for _ in range(_MORE_THAN_SLOTS))):
        frames = await scene.ended(each)
        ended_as(frames, "not_found")
        if len(frames) > 1:
            raise Broken(f"the `end` of a refused request is its only frame, and a frame {frames[0].get('kind', 'text')!r} came before")
    await scene.call_echo(f"after {_MORE_THAN_SLOTS} refusals")


@WORKER.check("W7", 0)
async def refuses_other_versions(scene: WorkerScene) -> None:
    """A request with another envelope version ends as invalid_arguments, which names both versions, and is not run."""
    frames = await scene.ended(await scene.publish("echo", {"text": "x"}, v=77))
    ended_as(frames, "invalid_arguments")
    _, newest = (await scene.publication()).versions or (1, 1)
    if not {"77", str(newest)} <= set(re.findall(r"\d+", json.dumps(frames[-1]["error"]))):
        raise Broken(f"the error of a request of version 77 does not name that version, and the worker's own, {newest}")


@WORKER.check("W8", 0)
async def ignores_unknown_fields(scene: WorkerScene) -> None:
    """Fields that it does not know change nothing."""
    await scene.call_echo("x", surprise={"deep": [1, 2]}, priority=0)


@WORKER.check("W9", 0)
async def leaves_expired_requests(scene: WorkerScene) -> None:
    """A request whose deadline has passed is answered with deadline_exceeded, is not run, and leaves nothing behind."""
    due = int(time.time() * 1000) - 5_000
    for each in await asyncio.gather(*(scene.publish("echo", {"text": "late"}, due=due) for _ in range(_MORE_THAN_SLOTS))):
        frames = await scene.ended(each)
        ended_as(frames, "deadline_exceeded")
        broken_if("late" in text_of(frames), "it was run all the same")
    await scene.call_echo(f"after {_MORE_THAN_SLOTS} expired requests")


@WORKER.check("W10", 0)
async def survives_hostile_deadlines(scene: WorkerScene) -> None:
    """A field d that is no number, or none that makes sense, stops nothing."""
    for due in ("", "abc", "-1", "9" * 400, "NaN", "1e999", str(2**63)):
        await scene.publish("echo", {"text": "x"}, due=due)
    await scene.call_echo("after hostile deadlines")


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
    await scene.call_echo("after unreadable requests")


@WORKER.check("W12", 0)
async def survives_callers_that_left(scene: WorkerScene) -> None:
    """A caller without a reply stream gets none back that lasts, and stops nothing."""
    gone = secrets.token_hex(16)
    sent = await scene.publish("echo", {"text": "x"}, agent=gone)
    await scene.wait_until_gone(sent)
    kept = int(await scene.probe.run("PTTL", scene.keys.replies(gone)))
    broken_if(kept == -1, "it made a reply stream that is never removed")
    made = await scene.probe.run("XRANGE", scene.keys.replies(gone), "-", "+")
    if kept > 5_000 or not made or made[0][1] != [b"o", b"lost"]:
        raise Broken("a request that had just been published was not answered in a stream that is made anew for 5 s: its agent may live")
    await scene.call_echo("after a caller that left")


@WORKER.check("W13", 0)
async def answers_nobody(scene: WorkerScene) -> None:
    """A request whose agent is empty is run, and nobody is answered."""
    await scene.wait_until_gone(await scene.publish("echo", {"text": "x"}, agent=""))
    broken_if(await scene.exists(scene.keys.replies("")), "it made a reply stream of nobody")


@WORKER.check("W14", 0)
async def draws_instances(scene: WorkerScene) -> None:
    """Each process draws an instance id of its own, and publishes the same tools under the same digest."""
    known = set(await scene.instances())
    second = await scene.program.start()
    new = await scene.joined(known, "a second process did not appear in `live` beside the first one")
    digests = {(await scene.row_of(instance)).partition(":")[2] for instance in known | new}
    await scene.program.kill(second)
    for instance in new:
        await scene.see_the_end(instance)
    if len(digests) > 1:
        raise Broken(f"two processes publish the same tools under the digests {', '.join(sorted(digests))}, as if they were two revisions")


@WORKER.check("W15", 0)
async def beats(scene: WorkerScene) -> None:
    """Its lease never ends while it lives, it uses the lease of TOOLBUS_LEASE, and keeps its services' keys for `registry_ttl`."""
    keys = [key(service) for service in (SERVICE, BESIDE) for key in (scene.keys.queue, scene.keys.fence)]
    # A worker need not serve the second one.
    kept = [key for key in keys if await scene.probe.run("PEXPIRE", key, 600_000)]
    for _ in range(3):
        now = await scene.now()
        for instance in await scene.instances():
            left = float(await scene.probe.run("ZSCORE", scene.keys.live, f"{SERVICE}/{instance}")) - now
            broken_if(left > LEASE * 1000 + 500, f"its lease has {left / 1000:.1f} s left; TOOLBUS_LEASE is {LEASE:g}")
        await scene.call_echo("alive")
        await asyncio.sleep(LEASE / 2)
        broken_if(not await scene.instances(), "its lease has ended although it lives")
    await check_often(partial(scene.age_of_beat, await scene.only_instance()), "it does not beat")
    for key in kept:
        await scene.check_ttl(key, REGISTRY_TTL, "registry_ttl")


@WORKER.check("W16", 0)
async def registers_again(scene: WorkerScene) -> None:
    """When a beat calls it missing, or the server has lost everything, it registers again under its start number, with a new token."""
    instance = await scene.only_instance()
    row = await scene.row_of(instance)
    await scene.probe.run("ZREM", scene.keys.live, f"{SERVICE}/{instance}")
    await until(lambda: scene.lease_of(instance), LEASE / 3 + SLACK, "a beat called it missing, and it does not register again")
    if (now := await scene.row_of(instance)) != row:
        raise Broken(f"it registered again under the start number {now.partition(':')[0]} instead of {row.partition(':')[0]}")
    drawn: set[bytes] = set()
    for _ in range(2):
        await scene.probe.run("FLUSHDB")
        await until(scene.instances, 15.0, "it is not in the registry again")
        await until(lambda: scene.exists(scene.queue), 15.0, "its request stream was not made again")
        tokens = set(await _tokens(scene))
        if again := tokens & drawn:
            raise Broken(
                f"it runs `register.lua` again with the same token, as which the log has {again.pop().decode('utf-8', 'replace')!r}"
            )
        drawn |= tokens
    await scene.listen()
    await scene.call_echo("after a flush")
    await scene.program.stop(scene.worker)
    if len(all_of_them := await _tokens(scene)) > len(set(all_of_them)):
        raise Broken("it runs `unregister.lua` with the token of `register.lua`: the log has it twice")


async def _tokens(scene: WorkerScene) -> list[bytes]:
    """Return the tokens of the log's entries, each of which begins with that of the script's run."""
    entries = await scene.probe.run("XRANGE", scene.keys.log, "-", "+")
    return [fields_of(flat)[b"token"] for _, flat in entries]


@WORKER.check("W17", 0)
async def makes_its_group_again(scene: WorkerScene) -> None:
    """When its consumer group is gone (NOGROUP) it registers again, and goes on with frames of the next epoch."""
    await scene.probe.run("XGROUP", "DESTROY", scene.queue, "g")
    await until(lambda: scene.probe.run("XINFO", "GROUPS", scene.queue), 10.0, "the group was not made again")
    sent, refused = await scene.call_echo("after the loss of the group"), await scene.publish("unknown", {})
    epoch = int((await scene.probe.run("HGET", scene.fence, "generation")).partition(b".")[0])
    if {frame.get("epoch", 0) for frame in (*await scene.frames(sent), *await scene.ended(refused))} != {epoch}:
        raise Broken(f"its frames do not have the epoch {epoch}, which the group's generation begins with")


@WORKER.check("W18", 0)
async def sends_scripts_again(scene: WorkerScene) -> None:
    """When the server has forgotten its scripts (NOSCRIPT) it sends them again."""
    await scene.call_echo("before")
    await scene.probe.run("SCRIPT", "FLUSH")
    await scene.call_echo("after the loss of the scripts")
    await scene.wait_until_gone(await scene.call_echo("once more"))


@WORKER.check("W19", 0)
async def leaves(scene: WorkerScene) -> None:
    """On SIGTERM it leaves the registry, where its names are kept for a minute, answers what runs, and ends with exit code 0."""
    sent = await scene.publish("count", {"to": 5, "delay": 0.1})
    await until(lambda: scene.is_running(sent), 5.0, "the call did not begin")
    code = await scene.program.stop(scene.worker)
    broken_if(code != 0, f"it ended with exit code {code}")
    broken_if(await scene.instances(), "it is still in the registry after its end")
    if any(row.startswith(b"i:") for row in await scene.probe.run("HKEYS", scene.keys.instances(BESIDE))):
        raise Broken(f"it is still in the registry with {BESIDE} after its end")
    # Of its owner, its service, and when it is free; one that is free may be gone.
    name = (await scene.probe.run("HGET", scene.keys.names, f"t:{SERVICE}-echo") or b"").split(b"\n")
    if len(name) < 3 or int(name[2]) - await scene.now() < _COOLDOWN * 500:
        raise Broken(f"its names do not stay its owner's for {_COOLDOWN} s after its end; scripts take the cooldown in milliseconds")
    frames = await scene.frames(sent)
    if not frames or not frames[-1].get("end_of_stream"):
        holder, _, _ = await scene.holder(sent)
        broken_if(not holder.startswith("~back"), "a call that ran at SIGTERM was neither answered nor handed back")


@WORKER.check("W64", 0)
async def checks_tenants(scene: WorkerScene) -> None:
    """A request of a user who is none of the tool's `tenants` is refused with forbidden."""
    await scene.need("private")
    for stranger in ("", "somebody-else"):
        ended_as(await scene.ended(await scene.publish("private", {"text": "x"}, user=stranger)), "forbidden")
    await scene.call_echo("of a tenant", "private", user=TENANT)


# -- level 1 --------------------------------------------------------------------------------------


@WORKER.check("W20", 1)
async def streams(scene: WorkerScene) -> None:
    """Text comes while the tool works, in order, with seq from 0."""
    begun = time.monotonic()
    sent = await scene.begun(8)
    first = time.monotonic() - begun
    check_count(await scene.ended(sent), 8, "a call")
    broken_if(time.monotonic() - begun - first < 0.2, "all text came at the end")


@WORKER.check("W21", 1)
async def cuts_between_characters(scene: WorkerScene) -> None:
    """A piece of text has at most 65,536 bytes of UTF-8 and is cut between characters."""
    text = "x" + "𝄞é中" * 20_000
    sent = await scene.call_echo(text)
    for frame in await scene.frames(sent):
        for part in frame.get("texts") or [frame.get("response") or ""]:
            if frame.get("kind", "text") == "text" and len(part.encode("utf-8", "surrogatepass")) > _MOST_PIECE:
                raise Broken(f"a piece of text has {len(part.encode('utf-8', 'surrogatepass')):,} bytes")


@WORKER.check("W22", 1)
async def tells_starts(scene: WorkerScene) -> None:
    """With `events`, a frame `start` comes before anything else."""
    frames = await scene.ended(await scene.publish("count", {"to": 2, "delay": 0.1}, events=True))
    check_run(frames)
    broken_if(frames[0].get("kind") != "start", f"the first frame is {frames[0].get('kind', 'text')!r}")


@WORKER.check("W23", 1)
async def cuts_large_ends(scene: WorkerScene) -> None:
    """Before an `end` whose `response` would take more than 65,536 bytes come `output` frames with its pieces; it has null instead."""
    text = "é" * 100_000
    for frame in await scene.frames(await scene.call_echo(text)):
        piece = frame.get("response")
        if frame.get("kind") in {"end", "output"} and isinstance(piece, str) and len(piece.encode()) > _MOST_PIECE:
            raise Broken(f"`response` of a frame `{frame['kind']}` has {len(piece.encode()):,} bytes")


@WORKER.check("W24", 1)
async def cuts_large_data(scene: WorkerScene) -> None:
    """Before an `end` whose `data` would take more than 65,536 bytes come `data` frames with pieces of the JSON; it has null instead."""
    await scene.need("data")
    frames = await scene.ended(await scene.publish("data", {"size": 600_000}))
    check_run(frames)
    broken_if(frames[-1].get("data") is not None, "`data` of the end is not null")
    pieces = [frame.get("response") or frame.get("data") or "" for frame in frames if frame.get("kind") == "data"]
    if any(len(piece.encode()) > _MOST_PIECE for piece in pieces):
        raise Broken(f"the pieces of `data` have {[len(piece.encode()) for piece in pieces]} bytes")
    try:
        whole = json.loads("".join(pieces))
    except ValueError as error:
        raise Broken(f"the pieces of `data`, joined, are no JSON: {error}") from None
    broken_if(whole != {"text": "x" * 600_000}, "the pieces of `data`, joined, are another value")


@WORKER.check("W25", 1)
async def cancels(scene: WorkerScene) -> None:
    """A cancelled call stops soon, with the error that `over` names, and no text follows; also one whose id came before its entry."""
    await scene.need_slots(2)
    keys, why = (scene.queue, scene.keys.cancelled(SERVICE)), ("cancelled", "deadline_exceeded")
    sent = [await scene.begun(1_000, 0.05) for _ in why]
    for each, error in zip(sent, why, strict=True):
        found = await scene.probe.script(scripts.CANCEL, keys, each.entry, each.id, 30_000, scene.keys.wake(SERVICE), error)
        broken_if(found != b"signalled", f"the call was {found!r} instead of running")
    for each in sent:
        await until(partial(scene.is_finished, each), 3.0, "the call went on after it was cancelled")
    told = [len(await scene.frames(each)) for each in sent]
    await asyncio.sleep(0.3)
    broken_if([len(await scene.frames(each)) for each in sent] != told, "frames came after the end of a cancelled call")
    for each, error in zip(sent, why, strict=True):
        if await scene.has_ended(each):
            ended_as(await scene.frames(each), error)
    early = secrets.token_hex(16)
    await scene.tell(f"over {early} deadline_exceeded")
    await scene.tell(f"cancel {early}")
    # Of others that are on their way.
    await scene.probe.run(
        "EVAL",
        "for i = 1, ARGV[2] do redis.call('PUBLISH', ARGV[1], 'cancel kit-' .. i) end",
        0, scene.keys.wake(SERVICE), _MOST_REMEMBERED - 1,
    )  # fmt: skip
    # One that has not heard of all of them yet stops the call a little later.
    ended_as(await scene.ended(await scene.publish("count", {"to": 100, "delay": 0.05}, id=early)), "deadline_exceeded")
    for _ in range(_MORE_THAN_SLOTS // 100):
        many = await asyncio.gather(*(scene.publish("count", {"to": 100, "delay": 0.5}) for _ in range(100)))
        # What does not fit into its slots is cancelled while it waits.
        await scene.wait_for_text(many[0])
        for each in many:
            await scene.tell(f"cancel {each.id}")
        for each in many:
            await until(partial(scene.is_finished, each), 5.0, "a call of a hundred that were cancelled together goes on, or is not taken")
    await scene.call_echo(f"after {_MORE_THAN_SLOTS} cancelled calls")


@WORKER.check("W26", 1)
async def catches_up_on_cancellations(scene: WorkerScene) -> None:
    """It reads `cancelled:` after it has subscribed and before it takes: what was cancelled before is refused, with its `queued_ms`."""
    await scene.program.kill(scene.worker)
    sent = await scene.publish("echo", {"text": "cancelled before"})
    await asyncio.sleep(0.5)
    least = await scene.now() - int(sent.entry.partition("-")[0])
    async with scene.proxy() as proxy:
        await scene.start_unsubscribed(proxy)
        await scene.probe.run("ZADD", scene.keys.cancelled(SERVICE), await scene.now() + 60_000, sent.id)
        proxy.let_go()
        frames = await scene.ended(sent, STARTS)
        most = await scene.now() - int(sent.entry.partition("-")[0])
        kept = await scene.probe.run("ZSCORE", scene.keys.cancelled(SERVICE), sent.id)
    ended_as(frames, "cancelled")
    said = frames[0].get("queued_ms", 0)
    # It estimates the server's time.
    if not least - _CLOCKS <= said <= most + _CLOCKS:
        raise Broken(f"the request waited for between {least} and {most} ms, and `queued_ms` of its first frame is {said}")
    broken_if(kept is None, "it removed the id of a cancelled call from `cancelled:`, where other workers look for it")


@WORKER.check("W27", 1)
async def keeps_deadlines(scene: WorkerScene) -> None:
    """A call is stopped at the deadline of its entry, ends as deadline_exceeded, and is acknowledged and deleted."""
    # Its `timeout` alone would be later, as if it had waited for most of that.
    sent = await scene.publish("count", {"to": 1_000, "delay": 0.05}, due=int(time.time() * 1000) + 1_000)
    frames = await scene.ended(sent, 4.0)
    check_run(frames)
    ended_as(frames, "deadline_exceeded")
    # Before it could be taken over, which would end it once more.
    await scene.wait_until_gone(sent, SLACK)


@WORKER.check("W28", 1)
async def stops_for_callers_that_leave(scene: WorkerScene) -> None:
    """The calls of a caller whose reply stream is gone are stopped, and no others, and the stream is not made for good."""
    beside = await scene.begin_beside()
    sent = [await scene.begun(1_000, 0.05) for _ in range(2 if scene.slots > 2 else 1)]
    await scene.probe.run("DEL", scene.keys.replies(scene.agent))
    for each in sent:
        await until(partial(scene.is_finished, each), 4.0, "the call went on without a caller")
    await scene.listen()
    await scene.check_beside(beside)
    await scene.call_echo("another caller")


async def some_ended(scene: WorkerScene, waiting: list[Sent], stopped: int) -> list[Sent]:
    """Return which of some calls have ended, as soon as one has.

    Raises:
        Broken: none does, long after the deadlines of all.
    """

    async def found() -> list[Sent]:
        return [each for each in waiting if await scene.has_ended(each)]

    try:
        return await until(found, 10.0, "no end came")
    except Broken:
        taken = sum([await scene.is_running(each) for each in waiting])
        raise Broken(
            f"after {stopped} calls were stopped at their deadline it answers no more: {len(waiting)} requests wait, of which it has taken "
            f"{taken}; a call that was stopped must give its slot back"
        ) from None


@WORKER.check("W29", 1)
async def frees_slots(scene: WorkerScene) -> None:
    """Calls stopped at their deadline leave nothing behind: more of them than twice what it runs at once, and the next are answered."""
    stopped = most = 0
    for _ in range(10):
        # They say something now and then: the check is about slots, and not about how much a worker can send.
        publishing = (scene.publish("count", {"to": 1_000, "delay": 0.5}, timeout=1.0) for _ in range(100))
        waiting = await asyncio.gather(*publishing)
        before = stopped
        while waiting:
            ended = await some_ended(scene, waiting, stopped)
            # A call that expired in the queue has one frame: it never held a slot.
            stopped += sum([len(await scene.frames(each)) > 1 for each in ended])
            waiting = [each for each in waiting if each not in ended]
        most = max(most, stopped - before)
        if stopped > 2 * most:
            break
    else:
        raise Broken(
            f"it began {most} calls of the first hundred in time, and {stopped} of 1000: a call that was stopped must give its slot back"
        )
    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(scene.call_echo(f"slot {number}"))


@WORKER.check("W65", 1)
async def bounds_output(scene: WorkerScene) -> None:
    """A call's output ends at 16 MiB, with a tool_error of the code output_limit: text that was sent as it was made, and data."""
    was_sent = False
    for role in ("large", "data"):
        await scene.need(role)
        frames = await scene.ended(await scene.publish(role, {"size": _MOST_OUTPUT + _MOST_PIECE}), 30.0)
        check_run(frames)
        ended_as(frames, "tool_error", "output_limit")
        broken_if(len(text_of(frames)) > _MOST_OUTPUT, f"it ended after {len(text_of(frames)):,} bytes")
        was_sent |= any(frame.get("kind", "text") == "text" for frame in frames)
    if not was_sent:
        raise NotChecked(f"{SERVICE}-large sends no text before its end, so nothing is sent as it is made; what it returns is bounded")


@WORKER.check("W78", 1)
async def bounds_its_scripts(scene: WorkerScene) -> None:
    """An entry, and all that one script writes, has at most 262,144 bytes of frames, if it is more than one frame."""
    largest = 0

    def measure(words: list[bytes]) -> bool:
        nonlocal largest
        frames = [word for word in words if b'"run"' in word and word[:2] in {b"[{", b'{"'}]
        if words[0].upper().startswith(b"EVAL") and sum(word.count(b'"run"') for word in frames) > 1:
            largest = max(largest, sum(len(word) - word.count(b'"run"') - 1 for word in frames))
        return False

    async with scene.behind_proxy() as proxy:
        proxy.plan(measure, "late")
        slow = await scene.publish("count", {"to": 4, "delay": 0.1})
        # While one answer is on its way, the others gather.
        proxy.plan(slow.is_named_in, "late", after=0.4)
        sent = [await scene.publish("echo", {"text": "x" * 60_000}, agent=agent) for agent in [secrets.token_hex(8) for _ in range(8)]]
        sent += [await scene.publish("echo", {"text": "x" * 60_000}) for _ in range(8)]
        if f"{SERVICE}-data" in await scene.tools():
            sent.append(await scene.publish("data", {"size": 600_000}))
        for each in (*sent, slow):
            await scene.wait_until_gone(each)
        await scene.ended(slow)
    broken_if(largest > MOST_BYTES, f"one script writes {largest:,} bytes of several frames, more than {MOST_BYTES:,}")


@WORKER.check("W66", 1)
async def sends_in_order(scene: WorkerScene) -> None:
    """While anything of a call is in flight nothing else of it is sent, and what was refused is sent again in order."""
    async with scene.behind_proxy() as proxy:
        sent = await scene.begun(24, 0.05)
        for refusal in ("TRYAGAIN the slot is being moved", "BUSY a script runs", "NOREPLICAS not enough of them"):
            # While a refusal is on its way, whatever is sent of the call overtakes what was refused.
            proxy.plan(sent.is_named_in, "refuse", refusal, after=0.2)
        frames = await scene.ended(sent)
        broken_if(not proxy.done, "it sends frames that do not have the id of their call")
        check_count(frames, 24, "a call whose frames were refused for a moment")


WORKER.requirements += [*LEASES.requirements, *SLOTS.requirements, *LEAVING.requirements, *SESSIONS.requirements]
