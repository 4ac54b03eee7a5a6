"""This release beside one that comes after it: both directions, a rolling upgrade under load, a raised version, and a way back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.servers import eventually_sync, put_down
from toolbus.bus.broker.server.keys import Keys

pytestmark = [pytest.mark.usefixtures("slow"), pytest.mark.timeout(600), pytest.mark.xdist_group("versions")]

ROOT = Path(__file__).parent.parent.parent
TOOLS = str(Path(__file__).parent / "tools.py")
THIS, NEXT = ["-m", "toolbus"], ["-m", "tests.versions.next_release"]
LOAD = {"this": ["-m", "tests.versions.load"], "next": ["-m", "tests.versions.next_release", "load"]}


class Site:
    """One namespace, with processes of both releases."""

    def __init__(self, url: str, namespace: str, folder: Path) -> None:
        self.keys = Keys(namespace)
        self.client = redis.Redis.from_url(url)
        self.marks, self.notes = folder / "marks", folder / "notes"
        self.marks.touch()
        self._log = folder / "log"
        variables = {"TOOLBUS_URL": url, "TOOLBUS_NAMESPACE": namespace, "TOOLBUS_LEASE": "2", "TOOLBUS_OWNER": "versions"}
        files = {"VERSIONS_MARKS": str(self.marks), "PLANTED_NOTES": str(self.notes)}
        self._environment = {**os.environ, **variables, **files, "PYTHONPATH": str(ROOT)}
        self._running: list[subprocess.Popen[Any]] = []

    def worker(self, release: list[str]) -> subprocess.Popen[Any]:
        """Start a worker and wait until it is registered."""
        before = set(self.instances())
        with self._log.open("ab") as log:
            words = [sys.executable, *release, "worker", TOOLS]
            started = subprocess.Popen(words, env=self._environment, cwd=ROOT, stdout=log, stderr=log)
        self._running.append(started)
        eventually_sync(lambda: set(self.instances()) - before or started.poll() is not None, timeout=60.0)
        assert started.poll() is None, self._log.read_text()
        return started

    def instances(self) -> list[bytes]:
        """The registered instances."""
        return [field for field in self.client.hkeys(self.keys.instances("versions")) if field[:2] == b"i:"]

    def agent(self, release: str, callers: int = 4) -> subprocess.Popen[str]:
        """Start an agent that calls, and wait for its first answers."""
        words = [sys.executable, *LOAD[release], f"{release}{len(self._running)}", str(callers)]
        pipe = subprocess.PIPE
        started = subprocess.Popen(words, env=self._environment, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        self._running.append(started)
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        return started

    def answers(self, more: int) -> None:
        """Wait until so many calls more were answered."""
        before = len(self.marks.read_bytes().split())
        eventually_sync(lambda: len(self.marks.read_bytes().split()) >= before + more, timeout=90.0)

    def outcome(self, agent: subprocess.Popen[str]) -> dict[str, Any]:
        """End an agent's calls, and return what came of them."""
        told, _ = agent.communicate(timeout=120)
        found: dict[str, Any] = json.loads(told)
        assert (found.get("lost", 0), found.get("wrong", 0), found["problems"]) == (0, 0, []), (found, self._log.read_text()[-2_000:])
        assert found["calls"] > 0
        return found

    def run(self, release: list[str], *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        program = [sys.executable, *release, *words]
        return subprocess.run(program, check=False, env=self._environment, cwd=ROOT, capture_output=True, text=True, timeout=120)

    def most_runs(self) -> int:
        """Return the most times that one piece of `once` work was begun."""
        return max(Counter(self.marks.read_text().split()).values())

    def newer(self) -> int:
        """Return the number of requests of version 2 that were read."""
        return len(self.notes.read_bytes()) if self.notes.exists() else 0

    def close(self) -> None:
        for process in self._running:
            put_down(process)
            if process.stdin:
                process.stdin.close()
            if process.stdout:
                process.stdout.close()
        self.client.close()


@pytest.fixture
def site(server: str, namespace: str, tmp_path: Path) -> Iterator[Site]:
    """A namespace with nothing in it."""
    made = Site(server, namespace, tmp_path)
    yield made
    made.close()
    made.client.delete(made.keys.format)


@pytest.mark.parametrize(("workers", "agent"), [("this", "next"), ("next", "this"), ("both", "this"), ("both", "next")])
def test_each_release_calls_the_other(site: Site, workers: str, agent: str) -> None:
    """Agents and workers of two releases, and a group with workers of both, answer every call as it was asked."""
    for release in {"this": [THIS], "next": [NEXT], "both": [THIS, NEXT]}[workers]:
        site.worker(release)
    calling = site.agent(agent)
    site.answers(100)
    site.outcome(calling)
    assert site.most_runs() == 1
    assert site.newer() == 0, "nobody writes version 2 until the namespace is raised"


def test_a_rolling_upgrade_loses_nothing(site: Site) -> None:
    """Workers are replaced one by one under load, by SIGTERM and SIGKILL, the version is raised, and requests of version 2 are answered."""
    old = [site.worker(THIS), site.worker(THIS)]
    site.client.hset(site.keys.groups, "group/g", json.dumps({"group_id": "g", "name": "G"}))
    agents = [site.agent("this"), site.agent("next")]
    new = [site.worker(NEXT)]
    old[0].terminate()
    old[0].wait(60)
    refused = site.run(NEXT, "operate", "migrate")
    assert refused.returncode == 1
    assert "can't read version 2; upgrade these workers" in refused.stderr
    assert site.client.hgetall(site.keys.format) == {}
    new.append(site.worker(NEXT))
    old[1].kill()
    old[1].wait()
    # A new worker that dies in the middle of it, too.
    new.append(site.worker(NEXT))
    new[0].kill()
    new[0].wait()
    raised = eventually_sync(lambda: (found := site.run(NEXT, "operate", "migrate")).returncode == 0 and found, timeout=90.0, interval=1.0)
    assert "is of version 2 now; 1 documents converted" in raised.stdout
    assert json.loads(site.client.hget(site.keys.groups, "group/g")) == {"group_id": "g", "name": "G", "form": 2}
    assert "of version 2 already; nothing was to be changed" in site.run(NEXT, "operate", "migrate").stdout
    late = site.agent("next")
    site.answers(40)
    for agent in (*agents, late):
        site.outcome(agent)
    assert site.newer() > 0
    assert site.most_runs() == 1
    behind = site.run(THIS, "worker", TOOLS)
    assert behind.returncode == 1
    assert "is of version 2 of the protocol, and this process speaks version 1: upgrade it" in behind.stderr


def test_a_rollback_before_the_version_is_raised_loses_nothing(site: Site) -> None:
    """New workers are replaced by old ones under load, one of them by SIGKILL, and every call is answered."""
    new = [site.worker(NEXT), site.worker(NEXT)]
    agents = [site.agent("this"), site.agent("next")]
    site.worker(THIS)
    new[0].terminate()
    new[0].wait(60)
    site.worker(THIS)
    new[1].kill()
    new[1].wait()
    site.answers(40)
    for agent in agents:
        site.outcome(agent)
    assert site.newer() == 0
    assert site.most_runs() == 1
