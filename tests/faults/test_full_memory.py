"""Every script on a server whose memory is full: it does all that it is for, or it is refused and stores nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.faults.scene import CASES, Run, Scene

# What such a server stores all the same: that a document was deleted, and that a request which waits for a person goes on waiting.
_STORED = {"registry/change": {"log", "reg:meta"}, "confirmations/ask": {"confirms"}}
# It is longer than what scripts put in its place.
_STRANGE = "".join(map(str, range(500)))


class Full:
    """Plays scenes on a server."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._redis = client
        self._namespace = namespace
        self._played = 0

    def run(self, number: int, strange: int | None = None) -> tuple[Run, object, set[str]]:
        """Run one script in its scene while the memory is full; with ``strange`` one of its keys is of another type.

        Returns:
            The run, its answer or error, and the keys that hold something new.
        """
        self._played += 1
        scene = Scene(f"{self._namespace}-{self._played}")
        seconds, micros = self._redis.time()
        now = seconds * 1000 + micros // 1000
        run = scene.runs(now)[number]
        self._send(*scene.build(now), *run.before)
        if strange is not None:
            key = self.keys(run)[strange]
            other = ("SET", key, _STRANGE) if self._redis.type(key) != b"string" else ("SADD", key, _STRANGE)
            self._send(("DEL", key), other)
        before = self._dumps(scene)
        self._redis.config_set("maxmemory", 1)
        try:
            answer: object = self._redis.eval(run.script.source, len(run.keys), *run.keys, *run.args)
        except redis.ResponseError as error:
            answer = error
        finally:
            self._redis.config_set("maxmemory", 0)
        after = self._dumps(scene)
        self._send(("DEL", *before, *after))
        new = {key for key, dump in after.items() if dump != before.get(key) and len(dump) >= len(before.get(key, b""))}
        return run, answer, {key.decode().removeprefix(scene.keys.prefix) for key in new}

    @staticmethod
    def keys(run: Run) -> list[str]:
        """Return the keys that a script is given, each once."""
        return list(dict.fromkeys(run.keys))

    def _dumps(self, scene: Scene) -> dict[bytes, bytes]:
        keys = self._redis.keys(f"{scene.keys.prefix}*")
        return dict(zip(keys, self._send(*(("DUMP", key) for key in keys)), strict=True))

    def _send(self, *commands: tuple[Any, ...]) -> list[Any]:
        with self._redis.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            return pipeline.execute()


@pytest.fixture
def full(server: str, namespace: str) -> Iterator[Full]:
    """A server that is full while a script runs."""
    with redis.Redis.from_url(server) as client:
        yield Full(client, namespace)


@pytest.mark.few(20)
@pytest.mark.parametrize("number", range(len(CASES)), ids=CASES)
def test_a_script_stores_nothing_in_a_full_memory_unless_it_may(full: Full, number: int) -> None:
    """A script that calls in flight depend on is never refused; every other one is, also where it would repair a key of another type."""
    run, answer, stored = full.run(number)
    played = [(answer, stored), *(full.run(number, strange)[1:] for strange in range(len(full.keys(run))))]
    if "flags=" in run.script.source.partition("\n")[0]:
        assert not isinstance(answer, Exception)
        assert not any("OOM" in str(answer) for answer, _ in played)
    else:
        assert set().union(*(stored for _, stored in played)) <= _STORED.get(run.script.name, set())
