"""``POST /run_tool`` with ``Accept: text/event-stream``."""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
from pathlib import Path

import httpx
import pytest

from tests.forking import Program
from tests.gateway.served import Event, Site, events, noted, run, stream, text_of
from tests.servers import eventually

pytestmark = pytest.mark.anyio


async def test_every_kind_of_event_arrives_in_order(client: httpx.AsyncClient) -> None:
    """The last is the result, and text that looks like an event is text."""
    async with stream(client, "everything") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        found = [event async for event in events(response)]
    assert [event.name for event in found] == ["started", "text", "progress", "blob", "text", "end"]
    assert found[2].data == {"done": 1, "total": 2, "message": "half"}
    assert base64.b64decode(found[3].data["data"]) == b"b"
    assert text_of(found) == found[-1].data["output"] == "a\ndata: c\r\n\r\nevent: end\u2028\x00"
    assert found[-1].data["data"] == {"n": 1}
    assert {event.id for event in found} == {""}


@pytest.mark.parametrize("tool", ["refuses", "crashes"])
async def test_a_failure_of_the_tools_own_ends_the_stream(client: httpx.AsyncClient, tool: str) -> None:
    """The end says so."""
    async with stream(client, tool, {"code": "c"} if tool == "refuses" else {}) as response:
        last = [event async for event in events(response)][-1]
    assert (last.name, last.data["success"], last.data["error"]["type"]) == ("end", False, "tool_error")


@pytest.mark.parametrize(("tool", "params", "status"), [("nothing", {}, 404), ("add", {}, 422)])
async def test_a_call_that_cannot_begin_has_its_status(client: httpx.AsyncClient, tool: str, params: dict[str, int], status: int) -> None:
    """The answer is a problem, not a stream."""
    async with stream(client, tool, params) as response:
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.usefixtures("slow")
async def test_a_silent_stream_has_heartbeats(client: httpx.AsyncClient) -> None:
    """Proxies close connections on which nothing is said."""
    beats = 0
    async with stream(client, "sleeps", {"seconds": 60}) as response:
        async for line in response.aiter_lines():
            beats += line == ":"
            if beats == 3:
                return


@pytest.mark.usefixtures("slow")
async def test_a_deadline_ends_a_stream(client: httpx.AsyncClient) -> None:
    """The text stays, and the end has the error."""
    async with stream(client, "counts", {"upto": 1000, "pause": 0.2}, Toolbus_Timeout="1.5") as response:
        found = [event async for event in events(response)]
    assert found[-1].data["error"]["type"] == "deadline_exceeded"
    assert text_of(found) == found[-1].data["output"]


async def test_a_client_that_leaves_a_stream_cancels_its_call(client: httpx.AsyncClient) -> None:
    """The handler is told at once."""
    mark = secrets.token_hex(4)
    async with stream(client, "counts", {"upto": 10_000, "pause": 0.05, "mark": mark}) as response:
        async for event in events(response):
            if event.name == "text":
                break
    await noted(client, f"{mark}-cancelled")


async def broken_off(client: httpx.AsyncClient, mark: str, after: int) -> list[Event]:
    """The first events of a stream whose client goes away."""
    found: list[Event] = []
    async with stream(client, "counts", {"upto": 60, "pause": 0.03, "mark": mark}, Idempotency_Key=mark) as response:
        async for event in events(response):
            found.append(event)
            if len(found) == after:
                break
    return found


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("after", [1, 2, 20])
async def test_a_lost_stream_goes_on_at_another_replica(client: httpx.AsyncClient, other: httpx.AsyncClient, after: int) -> None:
    """Nothing is lost, repeated, or run again."""
    mark = secrets.token_hex(4)
    found = await broken_off(client, mark, after)
    async with stream(other, "counts", {"upto": 60, "pause": 0.03, "mark": mark}, Last_Event_ID=found[-1].id) as response:
        found += [event async for event in events(response)]
    assert text_of(found) == found[-1].data["output"] == "".join(f"{number}\n" for number in range(60))
    await noted(client, mark, 1)
    await noted(client, f"{mark}-cancelled", 0)


async def test_a_stream_that_has_ended_can_be_read_again(client: httpx.AsyncClient, other: httpx.AsyncClient) -> None:
    """A client that lost the end gets the rest of it."""
    mark = secrets.token_hex(4)
    params = {"upto": 5, "mark": mark}
    async with stream(client, "counts", params, Idempotency_Key=mark) as response:
        found = [event async for event in events(response)]
    lost = found[:2]
    async with stream(other, "counts", params, Last_Event_ID=lost[-1].id) as response:
        lost += [event async for event in events(response)]
    assert text_of(lost) == text_of(found)
    assert lost[-1].name == "end"
    await noted(client, mark, 1)


@pytest.mark.usefixtures("slow")
async def test_a_lost_stream_that_nobody_goes_on_with_is_cancelled(client: httpx.AsyncClient) -> None:
    """After the time that its client has to come back."""
    mark = secrets.token_hex(4)
    async with stream(client, "sleeps", {"seconds": 100, "mark": mark}, Idempotency_Key=mark):
        await noted(client, mark)
    await noted(client, f"{mark}-cancelled")


@pytest.mark.parametrize("id", ["x", "1.2.3", "1.2.3.", "-1.0.0.k", "1.2.3.é", "9999999999.0.0.k"])
async def test_an_id_that_is_none_is_422(client: httpx.AsyncClient, id: str) -> None:
    """Nothing is called for it."""
    headers = [(b"accept", b"text/event-stream"), (b"last-event-id", id.encode())]
    answer = await client.post("/run_tool", json={"tool_id": "echo", "params": {"text": "x"}}, headers=headers)
    assert answer.status_code == 422, answer.text


async def test_an_id_of_another_key_is_422(client: httpx.AsyncClient) -> None:
    """One of the two headers is a mistake."""
    async with stream(client, "echo", {"text": "x"}, Idempotency_Key="a", Last_Event_ID="0.0.0.b") as response:
        assert response.status_code == 422


@pytest.mark.usefixtures("slow")
async def test_a_stopping_gateway_hands_streams_to_another(site: Site, other: httpx.AsyncClient) -> None:
    """A stream with a key goes on at another replica; one without is finished within the grace period."""
    mark = secrets.token_hex(4)
    program, url = site.gateway("--resume", "5", "--grace", "12")
    params = {"upto": 200, "pause": 0.05, "mark": mark}
    async with httpx.AsyncClient(base_url=url, timeout=30) as leaving:

        async def plain() -> list[Event]:
            async with stream(leaving, "counts", {"upto": 40, "pause": 0.05, "mark": f"{mark}-plain"}) as response:
                return [event async for event in events(response)]

        finishing = asyncio.create_task(plain())
        await noted(other, f"{mark}-plain")
        async with stream(leaving, "counts", params, Idempotency_Key=mark) as response:
            reading = events(response)
            found = [await anext(reading), await anext(reading)]
            program.terminate()
            found += [event async for event in reading]
        assert found[-1].name != "end"
        async with stream(other, "counts", params, Last_Event_ID=found[-1].id) as response:
            found += [event async for event in events(response)]
        assert text_of(found) == "".join(f"{number}\n" for number in range(200))
        assert (await finishing)[-1].data["success"] is True
    await noted(other, mark, 1)
    await noted(other, f"{mark}-cancelled", 0)
    await eventually(lambda: program.poll() == 0, timeout=30.0)


async def flooded(url: str, mark: str) -> asyncio.StreamWriter:
    """The connection of a client that asks for endless text and reads none of it."""
    host, _, port = url.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    body = b'{"tool_id": "floods", "params": {"mark": "%b"}}' % mark.encode()
    head = b"POST /run_tool HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\n"
    writer.write(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
    await writer.drain()
    return writer


@pytest.mark.usefixtures("slow")
async def test_a_client_that_reads_nothing_ends_as_a_slow_consumer(client: httpx.AsyncClient, site: Site) -> None:
    """Its call ends, the gateway's memory is bounded, and others go on."""
    mark = secrets.token_hex(4)
    writer = await flooded(site.urls[0], mark)
    await noted(client, f"{mark}-cancelled")
    writer.close()


def resident(program: Program) -> int:
    """The bytes of memory that a process has."""
    return int(Path(f"/proc/{program.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.usefixtures("slow")
async def test_all_streams_together_hold_no_more_than_the_bound(site: Site, client: httpx.AsyncClient) -> None:
    """The slowest end, though none holds as much as a call may; one that is read goes on to its end."""
    program, url = site.gateway("--buffer", "8")
    mark = secrets.token_hex(4)
    async with httpx.AsyncClient(base_url=url, timeout=30) as own:
        assert (await own.get("/health")).status_code == 200
        before = resident(program)

        async def counted() -> list[Event]:
            async with stream(own, "counts", {"upto": 100, "pause": 0.05}) as response:
                return [event async for event in events(response)]

        reads = asyncio.create_task(counted())
        writers = [await flooded(url, mark) for _ in range(10)]
        sizes = [before]

        async def all_cancelled() -> bool:
            sizes.append(resident(program))
            return (await run(client, "seen", {"name": f"{mark}-cancelled"})).json()["data"] == len(writers)

        await eventually(all_cancelled, timeout=60.0, interval=0.05)
        assert (await reads)[-1].data["success"] is True
    for writer in writers:
        writer.close()
    assert max(sizes) - before < 150_000_000, f"{(max(sizes) - before) // 1_000_000} MB"
    assert site.logged(program, "gateway.stream_dropped")["bytes"] < 8_388_608
    program.terminate()
    assert await asyncio.to_thread(program.wait, 20) == 0
