"""An agent and a worker written from docs/protocol.md alone, with nothing of toolbus but its Lua files."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.contract import Place
from toolbus import tool

pytestmark = pytest.mark.anyio

LUA = Path(__file__).parents[1] / "toolbus" / "broker" / "lua"


def script(name: str) -> str:
    """A script as the page says: its includes put in their place."""
    text = (LUA / f"{name}.lua").read_text("utf-8")
    return re.sub(r"^-- include (\w+)$", lambda found: (LUA / f"{found[1]}.lua").read_text("utf-8"), text, flags=re.MULTILINE)


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
        """The entries of a read of one stream, which redis-py gives as a list or as a dict."""
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
    """An agent's life: reply stream, publish, read, trim, delete."""
    agent, call = secrets.token_hex(8), secrets.token_hex(16)
    replies = f"{server.prefix}rsp:{agent}"
    server.redis.xadd(replies, {"o": "1"})
    server.redis.pexpire(replies, 10_000)
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


async def test_an_agent_written_by_hand_calls_a_worker(redis_place: Place) -> None:
    """Raw commands get a real worker's stream, in order, with its one end."""
    server = Server(redis_place)
    async with redis_place.worker(spell):
        text, end = await asyncio.to_thread(call_by_hand, server)
    server.redis.close()
    assert text == "bus"
    assert end.get("error") is None


def serve_by_hand(server: Server, registered: asyncio.Event, loop: asyncio.AbstractEventLoop) -> str:
    """A worker's life: register, take one request, stream, finish, unregister, retire."""
    instance, service = f"by-hand-{secrets.token_hex(3)}", "handmade"
    publication = {
        "service": {"id": service, "config-params": [{"name": "style"}]},
        "tools": [{"name": "hand-made", "description": "Made by hand", "service": service, "config": {"style": "plain"}, "arguments": []}],
        "owner": "another language",
        "digest": "d1",
    }
    document = json.dumps(publication)
    extra = (service, instance, "another language", "d1", document, 5000, secrets.token_hex(8), 0, service, 0, "hand-made")
    word, _start, generation, counter = server.run("register", server.registry, *server.common, *extra)
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
    server.run("unregister", server.registry, *server.common, f"{service}/{instance}")
    server.run("retire", [f"q:{service}", f"fence:{service}", f"cancelled:{service}", f"reg:s:{service}"], instance)
    return str(request["tool"])


async def test_a_worker_written_by_hand_serves_an_agent(redis_place: Place) -> None:
    """A real agent discovers the hand-made service, calls it, reads its stream, and sees it go."""
    server = Server(redis_place)
    registered = asyncio.Event()
    async with redis_place.bus() as bus:
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
