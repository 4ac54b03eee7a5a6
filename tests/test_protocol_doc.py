"""An agent and a worker written from docs/protocol.md alone, with nothing of toolbus but its Lua files."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.contract import Place
from toolbus import invocation, tool
from toolbus.bus.values.events import Answered, Asked, Finished, Started, Text

pytestmark = pytest.mark.anyio

LUA = Path(__file__).parents[1] / "toolbus" / "bus" / "broker" / "server" / "lua"


def script(name: str) -> str:
    """Return a script as the page shows it, with its includes inserted."""
    (file,) = LUA.rglob(f"{name}.lua")
    include = re.compile(r"^-- include ([\w/]+)$", re.MULTILINE)
    return include.sub(lambda found: (LUA / f"{found[1]}.lua").read_text("utf-8"), file.read_text("utf-8"))


class Server:
    """A connection and a namespace's prefix."""

    def __init__(self, place: Place) -> None:
        self.redis = redis.Redis.from_url(place.settings.url)
        self.prefix = f"tb:{{{place.settings.namespace}}}:"

    def run(self, name: str, keys: list[str], *args: Any) -> Any:
        """Run a script."""
        return self.redis.eval(script(name), len(keys), *(self.prefix + key for key in keys), *args)

    @staticmethod
    def entries(answer: Any) -> list[Any]:
        """Return the entries of a read of one stream, which redis-py returns as a list or as a dict."""
        if not answer:
            return []
        found = next(iter(answer.values()))[0] if isinstance(answer, dict) else answer[0][1]
        return list(found)

    @property
    def registry(self) -> list[str]:
        """The keys of every registry script."""
        return ["reg:services", "reg:names", "reg:meta", "reg:items", "live", "log"]

    @property
    def common(self) -> tuple[Any, ...]:
        """The first four arguments of every registry script."""
        return (self.prefix, secrets.token_hex(6), 86_400_000, 60_000)


@tool(service="documented", effect="read")
async def spell(word: str):
    """Spell a word."""
    for letter in word:
        yield letter


def call_by_hand(server: Server) -> tuple[str, dict[str, Any]]:
    """Act as an agent: reply stream, publish, read, trim, delete."""
    agent, call = secrets.token_hex(8), secrets.token_hex(16)
    replies = f"{server.prefix}rsp:{agent}"
    server.run("listen", [f"rsp:{agent}"], 15_000)
    request = {"id": call, "agent": agent, "service": "documented", "tool": "spell", "arguments": {"word": "bus"}}
    keys = [f"pub:{agent}", "q:documented"]
    arguments = (0, 600_000, "", 2, 10_000, 10_000, json.dumps(request))
    verdict = server.run("publish", keys, *arguments)
    assert server.run("publish", keys, *arguments) == verdict, "a repeated flush publishes nothing new"
    last, text, run, expected = b"0", "", None, 0
    while True:
        for entry, fields in server.entries(server.redis.xread({replies: last}, count=512, block=2000)):
            last = entry
            for frame in json.loads(fields.get(b"f", b"[]")):
                run = run or frame["run"]
                assert (frame["id"], frame["run"], frame.get("seq", 0)) == (call, run, expected)
                expected += 1
                if frame.get("kind", "text") == "text":
                    text += "".join(frame.get("texts") or [frame["response"]])
                if frame.get("end_of_stream"):
                    server.redis.delete(replies, f"{server.prefix}pub:{agent}")
                    return text, frame


async def test_an_agent_written_by_hand_calls_a_worker(place: Place) -> None:
    """Raw commands get a real worker's stream, in order, with its one end."""
    server = Server(place)
    async with place.worker(spell):
        text, end = await asyncio.to_thread(call_by_hand, server)
    server.redis.close()
    assert text == "bus"
    assert end.get("error") is None


def serve_by_hand(server: Server, registered: asyncio.Event, loop: asyncio.AbstractEventLoop) -> str:
    """Act as a worker: register, take one request, stream, finish, unregister, retire."""
    instance, service = f"by-hand-{secrets.token_hex(3)}", "handmade"
    publication = {
        "service": {"id": service, "config-params": [{"name": "style"}]},
        "tools": [{"name": "hand-made", "description": "Made by hand", "service": service, "config": {"style": "plain"}, "arguments": []}],
        "owner": "another language",
        "digest": "d1",
    }
    document = json.dumps(publication)
    extra = (service, instance, "another language", "d1", document, 5000, secrets.token_hex(8), 0, service, 0, "hand-made")
    own = [f"reg:s:{service}", f"q:{service}", f"fence:{service}", f"cancelled:{service}"]
    word, _start, generation, counter = server.run("register", [*server.registry, *own], *server.common, *extra)
    assert word == b"ok"
    loop.call_soon_threadsafe(registered.set)
    queue = f"{server.prefix}q:{service}"
    answer: Any = None
    while not answer:
        server.run("beat", ["live", "reg:paused", "pulse", f"q:{service}", f"fence:{service}"], 5000, 86_400_000, f"{service}/{instance}")
        answer = server.redis.xreadgroup("g", instance, {queue: ">"}, count=32, block=1000)
    ((entry, fields),) = server.entries(answer)
    request = json.loads(fields[b"r"])
    run = secrets.token_hex(6)
    first = {"id": request["id"], "run": run, "response": f"hello {request['user']}, ", "worker": instance}
    assert server.redis.xadd(f"{server.prefix}rsp:{request['agent']}", {"f": json.dumps([first])}, nomkstream=True)
    style = {"id": request["id"], "run": run, "seq": 1, "response": request["config"]["style"]}
    end = {"id": request["id"], "run": run, "seq": 2, "kind": "end", "end_of_stream": True, "data": {"by": "hand"}}
    frames = (f"{server.prefix}rsp:{request['agent']}", json.dumps([style, end]))
    finished = server.run("finish", [f"q:{service}", f"fence:{service}"], instance, generation, counter, 1, entry, *frames)
    assert finished[2:] == [[], [], 0]
    server.run("unregister", [*server.registry, *own], *server.common, f"{service}/{instance}")
    server.run("retire", [f"q:{service}", f"fence:{service}", f"cancelled:{service}", f"reg:s:{service}", "live"], instance, service)
    return str(request["tool"])


async def test_a_worker_written_by_hand_serves_an_agent(place: Place) -> None:
    """A real agent discovers the hand-made service, calls it, reads its stream, and sees it go."""
    server = Server(place)
    registered = asyncio.Event()
    async with place.bus() as bus:
        serving = asyncio.create_task(asyncio.to_thread(serve_by_hand, server, registered, asyncio.get_running_loop()))
        await registered.wait()
        await bus.wait_for_tool("hand-made")
        result = await bus.call("hand-made", user="alice", timeout=10.0)
        assert (result.output, result.data) == ("hello alice, plain", {"by": "hand"})
        assert await serving == "hand-made"
        assert (await bus.call("hand-made")).error is not None
    left = list(server.redis.scan_iter(server.prefix + "q:*"))
    server.redis.close()
    assert left == []


@tool(service="documented-asking", effect="read")
async def permit() -> str:
    """Ask a person."""
    return str(await invocation().confirm("May it?", {"n": 1}))


def answer_by_hand(server: Server, call: str) -> dict[str, Any]:
    """Act as the answerer: look for open requests, answer one twice with one token, and once more with another."""
    found: list[bytes] = []
    while not found:
        found = server.redis.zrange(f"{server.prefix}confirms", 0, 999)  # type: ignore[assignment]
    [identity] = [each.decode() for each in found]
    stored = server.redis.hgetall(f"{server.prefix}confirm:{identity}")
    [entry] = [each["message_id"].decode() for each in server.redis.xpending_range(f"{server.prefix}q:documented-asking", "g", "-", "+", 9)]
    assert server.redis.get(f"{server.prefix}pause:documented-asking:{entry}") is not None
    keys = [f"confirm:{identity}", "confirms"]
    document: dict[str, Any] = json.loads(stored[b"doc"])
    answer = json.dumps({"allowed": True, "by": "hand", "digest": document["digest"]})
    rest = (server.prefix, 60_000, f"{server.prefix}confirmed")
    assert server.run("answer", keys, identity, answer, "t1", *rest) == [b"done"]
    assert server.run("answer", keys, identity, answer, "t1", *rest) == [b"done"], "the same answer again is no other"
    assert server.run("answer", keys, identity, json.dumps({"allowed": False}), "t2", *rest) == [b"answered", answer.encode()]
    assert server.run("answer", ["confirm:none", "confirms"], "none", answer, "t3", *rest) == [b"gone"]
    return document | {"asked": int(stored[b"asked"]), "expires": int(stored[b"expires"])}


async def test_a_request_is_answered_by_hand(place: Place) -> None:
    """A real worker's question is found, read and answered with the page's keys and scripts; the caller sees both frames."""
    server = Server(place)
    async with place.serving(permit) as bus, bus.stream("permit") as call:
        seen: list[Any] = []
        async for event in call.events():
            seen.append(event)
            if isinstance(event, Asked):
                document = await asyncio.to_thread(answer_by_hand, server, call.id)
    server.redis.close()
    assert (document["call"], document["asker"], document["question"]) == (call.id, "worker", "May it?")
    parts = [document["asker"], document["service"], document["tool"], "", "", document["question"], {"n": 1}]
    canonical = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    assert document["digest"] == hashlib.blake2b(canonical, digest_size=32).hexdigest()
    assert document["expires"] - document["asked"] == pytest.approx(300_000, abs=1000)
    assert [type(event) for event in seen] == [Started, Asked, Answered, Text, Finished]
    assert (await call.result()).output == "allowed by hand"


def ask_by_hand(server: Server) -> list[Any]:
    """Act as the asker: open a request, keep it open, read the answer from the reply stream; then withdraw another."""
    agent, identity = secrets.token_hex(8), secrets.token_hex(6)
    replies = f"{server.prefix}rsp:{agent}"
    server.run("listen", [f"rsp:{agent}"], 15_000)
    document = {"id": identity, "call": "c1", "tool": "by-hand", "question": "Allow it?"}
    keys, channel = [f"confirm:{identity}", "confirms"], f"{server.prefix}confirmed"
    arguments = (identity, json.dumps(document), f"agent {agent}", 60_000, 10_000, 1000, channel)
    assert server.run("ask", keys, *arguments) == [b"open"]
    last: Any = b"0"
    told: bytes | None = None
    while told is None:
        for entry, fields in server.entries(server.redis.xread({replies: last}, block=2000)):
            last, told = entry, fields.get(b"c")
    assert told.decode() == identity
    answer = server.run("ask", keys, *arguments)
    back = ("", "", 0, 10_000, 1000, channel)
    assert server.run("ask", keys, identity, *back) == answer
    server.redis.delete(replies)
    other = [f"confirm:{identity}x", "confirms"]
    for _ in range(2):
        assert server.run("ask", other, f"{identity}x", *arguments[1:]) == [b"open"]
    assert server.run("ask", other, f"{identity}x", *back) == [b"closed"]
    assert server.redis.zcard(f"{server.prefix}confirms") == 0
    return list(answer)


async def test_a_request_is_asked_by_hand(place: Place) -> None:
    """A hand-made asker's request is seen and denied by a real bus, and it hears so."""
    server = Server(place)
    async with place.bus() as bus:
        asking = asyncio.create_task(asyncio.to_thread(ask_by_hand, server))
        async for request in bus.confirmations.watch():
            assert str(request) == "Allow it?"
            await bus.confirmations.deny(request.id, "no", by="bob")
            break
        word, answer = await asking
    server.redis.close()
    assert (word, json.loads(answer)) == (b"answered", {"allowed": False, "reason": "no", "by": "bob"})
