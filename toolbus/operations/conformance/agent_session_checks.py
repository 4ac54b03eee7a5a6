"""Requirements of an agent of level 3: calls that run once, shared calls, sessions."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from toolbus.bus.broker.server.keys import session_digest
from toolbus.operations.conformance.agent_scene import AgentScene, Ear, Taken, end
from toolbus.operations.conformance.checks import Broken, Table, broken_if, until, until_not
from toolbus.operations.conformance.scene import LEASE, SERVICE

SESSIONS = Table[AgentScene]()
_STICKY = "conformance-held"


async def _in_session(scene: AgentScene, name: str) -> Taken:
    """Return the request of a call in a session of a service with sticky-sessions."""
    if not await scene.exists(scene.keys.queue(_STICKY)):
        await scene.register(_STICKY, f"{_STICKY}-echo", sticky=True)
        await scene.answer(await scene.found(f"{_STICKY}-echo", _STICKY, 10.0))
    return await scene.called(name, queue=_STICKY, service="", tool=f"{_STICKY}-echo", user="kit", session="s")


@SESSIONS.check("A42", 3)
async def publishes_once_work(scene: AgentScene) -> None:
    """A call of a `once` tool says so, and its entry names the server process by its `run_id`."""
    await scene.register("conformance-careful", "conformance-once", effect="once")
    taken = await scene.found("conformance-once", "conformance-careful", 10.0)
    info = (await scene.probe.run("INFO", "server")).decode()
    (server,) = re.findall(r"^run_id:(\w+)", info, re.MULTILINE)
    if taken.request.get("effect") != "once" or taken.server != server:
        raise Broken(f"the effect is {taken.request.get('effect')!r}, and the field s {taken.server!r}; the server is {server}")


@SESSIONS.check("A43", 3)
async def ends_with_unknown_outcomes(scene: AgentScene) -> None:
    """A `once` call whose time is up ends as deadline_exceeded if it never ran, else as outcome_unknown."""
    await scene.register("conformance-careful", "conformance-once", effect="once")
    await scene.answer(await scene.found("conformance-once", "conformance-careful", 10.0))
    once: dict[str, Any] = {"service": "", "tool": "conformance-once", "queue": "conformance-careful", "timeout": 1.0}
    await scene.called("waits", **once)
    await scene.ended_as("waits", None, "deadline_exceeded", within=5.0)
    await scene.called("runs", **once)
    await scene.take("conformance-careful")
    await scene.ended_as("runs", None, "outcome_unknown", within=5.0)


@SESSIONS.check("A44", 3)
async def shares(scene: AgentScene) -> None:
    """Calls with one idempotency key are one shared request, whose stream each of them reads from its beginning."""
    taken = await scene.called("first", key="one key")
    if not taken.request.get("shared") or taken.request.get("idempotency_key") != "one key":
        raise Broken(f"shared is {taken.request.get('shared')}, idempotency_key {taken.request.get('idempotency_key')!r}")
    await scene.send(taken, {"seq": 0, "response": "for "})
    await until(lambda: scene.has_text("first", "for "), 5.0, "the text of the call's own stream was not told")
    await scene.call("second", key="one key")
    await until(lambda: scene.has_text("second", "for "), 5.0, "who joins a call was not told what came before")
    await scene.send(taken, {"seq": 1, "response": "both"}, end(2))
    for name in ("first", "second"):
        await scene.ended_as(name, "for both", None)
    broken_if(await scene.request_of(SERVICE), "the call was published twice")


async def _two_share(scene: AgentScene) -> bool:
    """Return whether two callers share the call of the idempotency key `one key`."""
    fields = await scene.probe.run("HKEYS", scene.keys.shared(session_digest("", "one key")))
    return sum(bytes(field).startswith(b"c:") for field in fields) == 2


async def _joined(scene: AgentScene) -> None:
    """Have a second caller join the call of that key."""
    await scene.call("second", key="one key")
    await until(lambda: _two_share(scene), 5.0, "the record of the key does not have two callers")


@SESSIONS.check("A45", 3)
async def leaves_shared_calls(scene: AgentScene) -> None:
    """A cancelled shared call goes on while others wait for it; the last one that cancels takes it out of the queue."""
    taken = await scene.called("first", key="one key")
    await _joined(scene)
    await scene.tell(cancel="first")
    await scene.ended_as("first", None, "cancelled", within=3.0)
    await until_not(lambda: _two_share(scene), 3.0, "the record of the key still has the caller that cancelled")
    broken_if(not await scene.waits(taken.entry), "the request is out of the queue although another caller waits for it")
    await scene.tell(cancel="second")
    await until_not(lambda: scene.waits(taken.entry), 3.0, "the request is in the queue although nobody waits for it")


@SESSIONS.check("A46", 3)
async def orders_sessions(scene: AgentScene) -> None:
    """Calls in a session of a service with sticky-sessions are ordered: each entry names the one before it."""
    first = await _in_session(scene, "1")
    broken_if(not first.request.get("ordered"), "`ordered` is not set")
    second = await _in_session(scene, "2")
    broken_if(second.after != first.entry, f"the field p is {second.after!r}; the entry before it is {first.entry}")


@SESSIONS.check("A47", 3)
async def remembers_states(scene: AgentScene) -> None:
    """It sends the token that the last `end` frame of the session said with further requests."""
    first = await _in_session(scene, "1")
    await scene.answer(first, state="token-of-the-kit")
    await scene.ended("1")
    second = await _in_session(scene, "2")
    broken_if(second.request.get("state") != "token-of-the-kit", f"the field state is {second.request.get('state')!r}")


@SESSIONS.check("A48", 3)
async def announces_its_end(scene: AgentScene) -> None:
    """An agent that leaves publishes `left <agent>` to each queue that it called in a session."""
    async with Ear(scene.port, scene.keys.wake(_STICKY)) as ear:
        taken = await _in_session(scene, "1")
        await scene.answer(taken)
        await scene.ended("1")
        await scene.leave()
        await until(lambda: ear.has_received(f"left {taken.agent}"), 2.0, "the workers were not told")


@SESSIONS.check("A49", 3)
async def sweeps(scene: AgentScene) -> None:
    """Once a lease it takes workers whose lease has ended out of the registry."""
    instance = await scene.register("conformance-dead", "conformance-unserved")
    await scene.probe.run("ZADD", scene.keys.live, int(time.time() * 1000) - 10_000, f"conformance-dead/{instance}")

    async def is_gone() -> bool:
        scene.check_alive()
        return not await scene.probe.run("HEXISTS", scene.keys.services, "conformance-dead")

    await until(is_gone, 4 * LEASE, "the service of a dead worker is still in the registry")


@SESSIONS.check("A55", 3)
async def closes_sessions(scene: AgentScene) -> None:
    """A session is closed with `end` on the channel of each queue that was called in it."""
    async with Ear(scene.port, scene.keys.wake(_STICKY)) as ear:
        await scene.answer(await _in_session(scene, "1"))
        await scene.ended("1")
        await scene.tell(close="s", user="kit")

        async def is_published() -> bool:
            return any(word.startswith("end ") and json.loads(word[4:]) == ["kit", "s"] for word in ear.heard)

        await until(is_published, 3.0, f"the workers were told {ear.heard}")


@SESSIONS.check("A56", 3)
async def begins_joined_calls_again(scene: AgentScene) -> None:
    """A call that was joined and ended without having run is published again."""
    first = await scene.called("first", key="one key")
    await _joined(scene)
    # As a worker does that ends a call which was cancelled before it ran.
    await scene.probe.run("DEL", scene.keys.shared(session_digest("", "one key")))
    await scene.answer(first, error={"type": "cancelled", "code": "not_begun", "message": "its caller gave up"})
    await scene.finished("second", await scene.taken(), "run after all")


@SESSIONS.check("A57", 3)
async def waits_for_people(scene: AgentScene) -> None:
    """The caller's time stands still between the two frames `confirm`."""
    taken = await scene.called("1", timeout=1.5)
    asked = {"id": "a" * 32, "question": "May it?", "timeout": 20.0}
    await scene.send(taken, {"seq": 0, "kind": "confirm", "confirm": asked})
    await asyncio.sleep(2.5)
    scene.check_alive()
    broken_if(scene.ends("1"), "the call's time went on while its handler waited for a person")
    await scene.send(taken, {"seq": 1, "kind": "confirm", "confirm": {"id": "a" * 32, "allowed": True}})
    await scene.send(taken, end(2, response="allowed"))
    await scene.ended_as("1", "allowed", None)


# -- what no check can see ------------------------------------------------------------------------

SESSIONS.unchecked(
    "A51",
    3,
    "asks-sentinels",
    "`once` work is published while all Sentinels agree on the server only",
    "a program under test is given the address of one server; where its Sentinels are it is told in a way of its own",
)
