"""The tests' own tools: what the leak check finds, how `eventually` fails, what servers leave, and which rows `pairs` chooses."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket

import pytest
import redis

from tests.listening import Listening
from tests.servers import eventually, leaks
from tests.tiers import pairs, spread

pytestmark = pytest.mark.anyio


def test_leak_check_names_keys_without_a_ttl(server: str, namespace: str) -> None:
    """A key without a TTL is a leak; one with a TTL, the items of people, and other namespaces are not."""
    prefix = f"tb:{{{namespace}}}:"
    with redis.Redis.from_url(server) as client:
        client.set(f"{prefix}kept", "1", ex=60)
        client.hset(f"{prefix}reg:items", "name", "1")
        client.set(f"tb:{{{namespace}-other}}:key", "1", ex=60)
        assert leaks(server, namespace) == []
        client.xadd(f"{prefix}q:forgotten", {"a": "b"})
        assert leaks(server, namespace) == [f"{prefix}q:forgotten (stream)"]
        assert client.exists(f"{prefix}q:forgotten", f"tb:{{{namespace}-other}}:key") == 1


async def test_eventually_returns_what_came_true() -> None:
    """eventually() returns the first true value of a plain or an async condition."""
    values = iter([0, "", 7])

    async def later() -> int:
        return 8

    assert await eventually(lambda: next(values)) == 7
    assert await eventually(later) == 8


async def test_eventually_shows_the_condition_that_failed() -> None:
    """eventually() fails with the condition's text and its last value."""
    empty: list[int] = []
    with pytest.raises(pytest.fail.Exception, match=r"not within 0.05 s: .*lambda: empty.*last value: \[\]"):
        await eventually(lambda: empty, timeout=0.05)


@pytest.mark.parametrize("turns", range(7))
async def test_a_server_that_ends_leaves_no_connection(turns: int) -> None:
    """Its client hears of the end at once, whether it is still to be accepted, was accepted just now, or is served."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    before = asyncio.all_tasks()
    async with Listening(serve) as listening:
        client = socket.create_connection(("127.0.0.1", listening.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    with client:
        client.setblocking(False)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert asyncio.all_tasks() == before


async def test_a_server_says_what_failed_in_it() -> None:
    """The end of a server raises what the serving of a connection has raised."""

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise ValueError("of a connection")

    listening = await Listening(fail).start()
    reader, writer = await asyncio.open_connection("127.0.0.1", listening.port)
    assert await reader.read() == b""
    writer.close()
    with pytest.raises(ValueError, match="of a connection"):
        await listening.aclose()


def test_pairs_meet_in_few_rows() -> None:
    """Each value meets each of another dimension, in far fewer rows than the product has."""
    dimensions = [range(4), range(3), range(2), range(2), range(2)]
    rows = pairs(*dimensions)
    assert 12 <= len(rows) <= 16
    for one, other in itertools.combinations(range(len(dimensions)), 2):
        assert {(row[one], row[other]) for row in rows} == set(itertools.product(dimensions[one], dimensions[other]))


@pytest.mark.parametrize("among", range(1, 30))
@pytest.mark.parametrize("number", [2, 3, 7, 20])
def test_a_few_go_from_the_first_to_the_last(number: int, among: int) -> None:
    """As many as are asked for are chosen, or all where there are no more, and no two gaps differ by more than one."""
    places = sorted(spread(number, among))
    gaps = {after - before for before, after in itertools.pairwise(places)}
    assert (len(places), places[0], places[-1]) == (min(number, among), 0, among - 1)
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_one_of_a_few_is_refused() -> None:
    """The first and the last are two."""
    with pytest.raises(ValueError, match="two, not 1"):
        spread(1, 5)
