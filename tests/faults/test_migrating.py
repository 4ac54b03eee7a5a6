"""Every script in a cluster slot of which some keys have been moved: it does all that it is for, or it changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.faults.scene import CASES, Scene
from tests.topologies import Cluster
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.embedded import HOST

_REPEATED = (redis.exceptions.AskError, redis.exceptions.TryAgainError)
# Frames that are appended again are dropped by their seq, so scripts need not know beforehand that they can append all.
_APPENDED = ("finish/send", "finish/finish", "finish/finish_each")


@pytest.fixture(scope="module")
def cluster(slow: None) -> Iterator[Cluster]:
    """Three masters, for all scripts."""
    made = Cluster()
    try:
        made.start()
        yield made
    finally:
        made.stop()


class Field:
    """Scenes in a cluster, each in a slot of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = {node.port: cluster.client(node) for node in cluster.nodes}
        self._used: set[int] = set()
        self._number = 0

    def close(self) -> None:
        """Disconnect."""
        for client in self._clients.values():
            client.close()

    def scene(self) -> Scene:
        """A namespace in a slot where nothing is yet."""
        while True:
            self._number += 1
            made = Scene(f"scene-{self._number}")
            if made.slot not in self._used:
                self._used.add(made.slot)
                return made

    def play(self, number: int, moved: list[str] | None, problems: list[str]) -> set[str]:
        """Run one script with these keys (by their end) at the next node, or none at all moving; returns the keys of the scene."""
        scene = self.scene()
        source = self._clients[self._cluster.owner(scene.slot).port]
        seconds, micros = source.execute_command("TIME")
        now = int(seconds) * 1000 + int(micros) // 1000
        run = scene.runs(now)[number]
        with source.pipeline(transaction=False) as pipeline:
            for command in (*scene.build(now), *run.before):
                pipeline.execute_command(*command)
            pipeline.execute()
        present = {
            key.decode().removeprefix(scene.keys.prefix) for key in source.execute_command("CLUSTER GETKEYSINSLOT", scene.slot, 1000)
        }
        target = None
        if moved is not None:
            _, node = self._cluster.begin_to_move(scene.slot)
            target = self._clients[node.port]
            for key in moved:
                if key in present:
                    source.execute_command("MIGRATE", HOST, node.port, scene.keys.prefix + key, 0, 5000)
        before = self._dumps(scene, source, target)
        try:
            source.execute_command("EVAL", run.script.source, len(run.keys), *run.keys, *run.args)
        except _REPEATED as error:
            after = self._dumps(scene, source, target)
            changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
            if run.script.name in _APPENDED:
                changed = [key for key in changed if not key.startswith("rsp:")]
            if moved is None or changed:
                problems.append(f"{number} {run.script.name} with {moved} elsewhere: {error}, after it changed {changed}")
        except redis.ResponseError as error:
            problems.append(f"{number} {run.script.name} with {moved} elsewhere: {error}")
        return present

    def _dumps(self, scene: Scene, *nodes: Any) -> dict[str, bytes]:
        """Every key of a scene, wherever it is."""
        found: dict[str, bytes] = {}
        for node in filter(None, nodes):
            keys = node.execute_command("CLUSTER GETKEYSINSLOT", scene.slot, 1000)
            with node.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.execute_command("ASKING")
                    pipeline.execute_command("DUMP", key)
                dumps = pipeline.execute()[1::2]
            found.update((key.decode().removeprefix(scene.keys.prefix), dump) for key, dump in zip(keys, dumps, strict=True))
        return found


@pytest.fixture(scope="module")
def field(cluster: Cluster) -> Iterator[Field]:
    """Room for scenes."""
    made = Field(cluster)
    yield made
    made.close()


def test_every_script_has_a_part() -> None:
    """The scene has a run for each script that there is."""
    assert {run.script.name for run in Scene("x").runs(0)} == {script.name for script in scripts.ALL}


@pytest.mark.parametrize("number", range(len(CASES)), ids=CASES)
def test_a_script_does_everything_or_changes_nothing(field: Field, number: int) -> None:
    """Whichever keys have been moved: a refusal is one that is repeated and left no trace, and a script that ends was not cut short."""
    problems: list[str] = []
    present = sorted(field.play(number, None, problems))
    field.play(number, [], problems)
    chance = random.Random(number)
    for key in present:
        field.play(number, [key], problems)
    for _ in range(6):
        field.play(number, [key for key in present if chance.random() < 0.5], problems)
    assert problems == []
