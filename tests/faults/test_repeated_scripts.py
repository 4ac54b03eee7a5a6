"""Every script twice, as after a connection that was lost before the answer: nothing more is kept, but for what readers drop."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.faults.scene import CASES, Scene

# What a second run adds, and why that is right.
_ADDED = {
    # A caller has what its seq brought before.
    "finish/send": {"rsp"},
    "finish/finish": {"rsp"},
    "finish/finish_each": {"rsp"},
    "dead_letters/bury": {"rsp"},
    # Who reads the log again reads the same.
    "registry/change": {"log"},
    # Whoever appends to these writes nothing again of which the answer was lost, or readers take the latest of each call.
    "streams/append": {"recent", "ended", "stats", "output", "results"},
}
_SIZES = {b"string": "STRLEN", b"hash": "HLEN", b"list": "LLEN", b"set": "SCARD", b"zset": "ZCARD", b"stream": "XLEN"}


@pytest.mark.parametrize("number", range(len(CASES)), ids=CASES)
def test_a_script_that_is_sent_again_keeps_nothing_more(server: str, namespace: str, number: int) -> None:
    """No key has more in it than after the first time, and no entry another owner."""
    with redis.Redis.from_url(server) as client:
        scene = Scene(namespace)
        seconds, micros = client.time()
        now = seconds * 1000 + micros // 1000
        run = scene.runs(now)[number]
        for command in (*scene.build(now), *run.before):
            client.execute_command(*command)
        sizes: list[dict[str, Any]] = []
        held: list[list[tuple[Any, ...]]] = []
        for _ in range(2):
            client.eval(run.script.source, len(run.keys), *run.keys, *run.args)
            keys = [key.decode() for key in client.keys(f"{scene.keys.prefix}*")]
            sizes.append({key.removeprefix(scene.keys.prefix): client.execute_command(_SIZES[client.type(key)], key) for key in keys})
            pending = [client.xpending_range(scene.keys.queue(queue), "g", "-", "+", 100) for queue in ("pool", "side")]
            held.append([(each["message_id"], each["consumer"], each["times_delivered"]) for part in pending for each in part])
        client.delete(*client.keys(f"{scene.keys.prefix}*"))
    once, twice = sizes
    grown = {key.partition(":")[0] for key, size in twice.items() if size > once.get(key, 0)}
    assert (grown - _ADDED.get(run.script.name, set()), held[0]) == (set(), held[1])
