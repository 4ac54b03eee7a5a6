"""The queue of coding agents' tasks, on every broker: each task runs once at a time, and nothing of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.contract import Place
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.held import creations as module
from toolbus.bus.broker.held.creations import Creations
from toolbus.bus.broker.protocols import MOST_LINES, MOST_SPEC, Spent
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.bus.values.settings import Settings

pytestmark = pytest.mark.anyio

# No lease ends while a test runs, unless ``end_lease`` ends it.
LEASE = 30.0


@asynccontextmanager
async def queue(place: Place, **settings: Any) -> AsyncIterator[Creations]:
    """The tasks of a namespace, as one process sees them."""
    async with ToolBus(settings=Settings.load(base=place.settings, **settings)) as bus:
        yield bus.creations


def end_lease(place: Place, id: str) -> None:
    """Let the lease of a task's process end now: it has died some time ago."""
    keys = Keys(place.settings.namespace)
    with redis.Redis.from_url(place.settings.url) as client:
        client.hset(keys.creation(id), "until", 1)
        client.zadd(keys.creations_running, {id: 1})


async def test_a_task_goes_from_queued_to_done(place: Place) -> None:
    """Its record tells who asked, who ran it, what it did, cost and gave, and when."""
    async with queue(place) as tasks:
        made = await tasks.submit("resize images", by="alice")
        assert made.id.startswith("create_")
        assert len(made.id) == len("create_") + 8
        assert (made.status, made.spec, made.by) == ("queued", "resize images", "alice")
        claimed = await tasks.claim("worker-1")
        assert claimed is not None
        assert (claimed.creation.status, claimed.creation.worker, claimed.creation.attempts) == ("running", "worker-1", 1)
        assert await tasks.write(claimed, lines=("one", "two"), progress="tests", spent=Spent(10, 5, 700)) == "kept"
        running = (await tasks.overview()).running
        assert [(each.id, each.progress) for each in running] == [(made.id, "tests")]
        assert await tasks.end(claimed, "done", "a tool")
        found = await tasks.get(made.id)
        assert found is not None
        assert (found.status, found.result, found.log, found.spent) == ("done", "a tool", ("one", "two"), Spent(10, 5, 700))
        assert 0 < found.created <= found.started <= found.ended
        seen = await tasks.overview()
        assert (seen.running, seen.queued, [each.id for each in seen.recent]) == ([], [], [made.id])
        assert (await tasks.overview(0)).recent == []


async def test_the_oldest_is_claimed_first_and_by_one_alone(place: Place) -> None:
    """Many processes that ask at once share the tasks, each once."""
    async with queue(place) as tasks, queue(place) as others:
        made = [(await tasks.submit(f"task {number}")).id for number in range(6)]
        first = await tasks.claim("w")
        assert first is not None
        found = await asyncio.gather(*(each.claim("w") for each in (tasks, others) * 5))
        ids = [first.id, *(each.id for each in found if each is not None)]
        assert sorted(ids) == sorted(set(ids))
        assert set(ids) <= set(made)
        rest = [each async for each in _all(tasks)]
        assert sorted(ids + rest) == sorted(made)


async def _all(tasks: Creations) -> AsyncIterator[str]:
    while (claimed := await tasks.claim("w")) is not None:
        yield claimed.id


async def test_a_submission_with_a_key_is_one_task(place: Place) -> None:
    """The same key of the same user is the same task, also after its end; with another spec it is refused."""
    async with queue(place) as tasks:
        made = await asyncio.gather(*(tasks.submit("a", by="alice", key="k") for _ in range(5)))
        assert len({each.id for each in made}) == 1
        assert (await tasks.submit("a", by="bob", key="k")).id != made[0].id
        await tasks.cancel(made[0].id)
        again = await tasks.submit("a", by="alice", key="k")
        assert (again.id, again.status) == (made[0].id, "cancelled")
        with pytest.raises(ConfigurationError, match="another task's"):
            await tasks.submit("b", by="alice", key="k")


async def test_two_keys_that_meet_at_one_id_are_two_tasks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id has eight digits only, so another submission may have it already."""
    ids = lambda token, *, keyed: iter(["create_00000001", f"create_{token[:8]}"])  # noqa: E731
    monkeypatch.setattr(module, "ids_of", ids)
    async with queue(place) as tasks:
        first, second = await tasks.submit("a", key="1"), await tasks.submit("b", key="2")
        assert first.id == "create_00000001" != second.id
        assert (await tasks.submit("b", key="2")).id == second.id


async def test_the_task_of_a_process_that_died_goes_on_elsewhere(place: Place) -> None:
    """Once its lease has ended another process claims it, and the first one can't write any more."""
    async with queue(place, lease=LEASE) as tasks, queue(place, lease=LEASE) as others:
        await tasks.submit("a")
        first = await tasks.claim("one")
        assert first is not None
        assert await tasks.write(first, lines=("from one",), spent=Spent(1)) == "kept"
        assert await others.claim("two") is None
        end_lease(place, first.id)
        second = await others.claim("two")
        assert (second.id, second.creation.attempts, second.creation.spent) == (first.id, 2, Spent(1))
        assert await tasks.write(first, first=1, lines=("late",)) == "lost"
        assert not await tasks.end(first, "done", "late")
        assert await others.write(second, first=second.creation.lines, lines=("from two",)) == "kept"
        assert await others.end(second, "done", "right")
        found = await tasks.get(first.id)
        assert (found.result, found.log) == ("right", ("from one", "from two"))


async def test_a_task_that_is_written_is_not_taken_away(place: Place) -> None:
    """Each write renews the lease."""
    async with queue(place, lease=LEASE) as tasks, queue(place, lease=LEASE) as others:
        await tasks.submit("a")
        claimed = await tasks.claim("one")
        for _ in range(3):
            end_lease(place, claimed.id)
            assert await tasks.write(claimed) == "kept"
            assert await others.claim("two") is None


async def test_a_queued_task_is_cancelled_at_once_and_a_running_one_is_told(place: Place) -> None:
    """The process of a running one learns of it with its next write, and says itself when it has ended."""
    async with queue(place) as tasks:
        waiting = await tasks.submit("a")
        assert await tasks.cancel(waiting.id) == "cancelled"
        assert await tasks.claim("w") is None
        await tasks.submit("b")
        claimed = await tasks.claim("w")
        assert await tasks.cancel(claimed.id) == "running"
        assert (await tasks.get(claimed.id)).cancelled
        assert await tasks.write(claimed) == "cancel"
        assert await tasks.end(claimed, "cancelled", "by a person")
        assert await tasks.cancel(claimed.id) == "cancelled"
        assert await tasks.cancel("create_ffffffff") is None
        assert await tasks.cancel("no id at all") is None
        assert await tasks.get("no id at all") is None


async def test_a_cancelled_task_whose_process_died_ends(place: Place) -> None:
    """Nobody goes on with it."""
    async with queue(place, lease=LEASE) as tasks:
        await tasks.submit("a")
        claimed = await tasks.claim("w")
        await tasks.cancel(claimed.id)
        assert await tasks.claim("v") is None
        assert (await tasks.get(claimed.id)).status == "running"
        end_lease(place, claimed.id)
        assert await tasks.claim("v") is None
        assert (await tasks.get(claimed.id)).status == "cancelled"


async def test_a_task_that_is_given_back_is_run_again(place: Place) -> None:
    """It counts as no attempt, and may wait before it can be claimed."""
    async with queue(place) as tasks:
        await tasks.submit("a")
        claimed = await tasks.claim("w")
        assert await tasks.end(claimed, "queued")
        assert await tasks.end(claimed, "queued")
        again = await tasks.claim("w")
        assert (again.id, again.creation.attempts) == (claimed.id, 1)
        assert await tasks.write(claimed) == "lost"
        assert await tasks.end(again, "queued", delay=60.0)
        assert await tasks.claim("w") is None
        assert [each.id for each in (await tasks.overview()).queued] == [claimed.id]


async def test_those_who_wait_are_woken(place: Place) -> None:
    """A submission, a cancellation and an end are told to every process; none is missed between a look and the wait."""
    async with queue(place) as tasks, queue(place) as others:
        assert await tasks.claim("w") is None
        seen = tasks.news.count
        made = await others.submit("a")
        await tasks.news.wait(seen, 60.0)
        claimed = await tasks.claim("w")
        seen = tasks.news.count
        await others.cancel(made.id)
        await tasks.news.wait(seen, 60.0)
        assert await others.claim("w") is None
        seen = others.news.count
        waiting = asyncio.create_task(others.news.wait(seen, 60.0))
        await tasks.end(claimed, "cancelled")
        await waiting
        await tasks.news.wait(tasks.news.count, 0.01)


async def test_what_is_kept_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Specs, lines, their number, results, and the number of tasks that wait."""
    async with queue(place) as tasks:
        for wrong in ("", "  \n", "x" * (MOST_SPEC + 1)):
            with pytest.raises(ConfigurationError, match="specification"):
                await tasks.submit(wrong)
        await tasks.submit("\ud800 half")
        claimed = await tasks.claim("w")
        await tasks.write(claimed, lines=tuple(f"{number} {'y' * 5_000}" for number in range(MOST_LINES)))
        await tasks.write(claimed, first=MOST_LINES, lines=("last",))
        found = await tasks.get(claimed.id)
        assert (found.lines, len(found.log), found.log[-1], found.log[0][:3]) == (MOST_LINES + 1, MOST_LINES, "last", "1 y")
        assert max(map(len, found.log)) < 5_000
        monkeypatch.setattr(module, "MOST_OPEN", 3)
        await asyncio.gather(tasks.submit("b"), tasks.submit("c"))
        with pytest.raises(ToolError, match="room for no more"):
            await tasks.submit("d")


async def test_the_same_write_twice_is_one(place: Place) -> None:
    """After a lost connection a command may be carried out again."""
    async with queue(place) as tasks:
        await tasks.submit("a")
        claimed = await tasks.claim("w")
        for _ in range(2):
            assert await tasks.write(claimed, first=0, lines=("a", "b"), spent=Spent(1, 2, 3)) == "kept"
        found = await tasks.get(claimed.id)
        assert (found.log, found.spent) == (("a", "b"), Spent(1, 2, 3))


async def test_a_task_that_kills_its_processes_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many attempts nobody begins it again, and its result says why."""
    monkeypatch.setattr(module, "_MOST_ATTEMPTS", 2)
    async with queue(place, lease=LEASE) as tasks:
        made = await tasks.submit("a")
        for _ in range(2):
            assert await tasks.claim("w") is not None
            end_lease(place, made.id)
        assert await tasks.claim("w") is None
        found = await tasks.get(made.id)
        assert found.status == "failed"
        assert "died" in found.result


async def test_an_operator_sees_and_cancels_tasks(place: Place) -> None:
    """Through the connection of commands."""
    async with queue(place) as tasks, Admin(place.settings) as admin:
        made = await tasks.submit("a")
        assert [each.id for each in (await admin.creations.overview()).queued] == [made.id]
        assert await admin.creations.cancel(made.id) == "cancelled"


async def test_tasks_survive_their_server(fresh_server: Any, tmp_path: Path) -> None:
    """With an append-only file nothing of a queued or running task is lost when the server is killed."""
    server = fresh_server(appendonly=True, data_dir=tmp_path, config={"appendfsync": "always"})
    async with ToolBus(server.url, namespace="n") as bus:
        tasks = bus.creations
        waiting = await tasks.submit("a")
        claimed = await tasks.claim("w")
        await tasks.write(claimed, lines=("before",))
        later = await tasks.submit("b")
        server.kill()
        server.start()
        assert await tasks.write(claimed, first=1, lines=("after",)) == "kept"
        assert (await tasks.get(waiting.id)).log == ("before", "after")
        assert [each.id for each in (await tasks.overview()).queued] == [later.id]


async def test_values_that_nothing_of_toolbus_writes_are_passed_over(place: Place) -> None:
    """A record that can't be read is left out and the others go on."""
    keys = Keys(place.settings.namespace)
    client = redis.Redis.from_url(place.settings.url)
    client.hset(keys.creation("create_aaaaaaaa"), mapping={"status": "what", "spec": b"\xff"})
    client.set(keys.creation("create_bbbbbbbb"), "hostile")
    for name in (b"create_aaaaaaaa", b"create_bbbbbbbb", b"\xff\xfe", b"x" * 9_000):
        client.zadd(keys.creations_queued, {name: 1})
    client.expire(keys.creation("create_aaaaaaaa"), 60)
    client.expire(keys.creation("create_bbbbbbbb"), 60)
    client.close()
    async with queue(place) as tasks:
        made = await tasks.submit("a")
        assert [each.id for each in (await tasks.overview()).queued] == [made.id]
        claimed = await tasks.claim("w")
        assert claimed.id == made.id
        assert await tasks.get("create_aaaaaaaa") is None
