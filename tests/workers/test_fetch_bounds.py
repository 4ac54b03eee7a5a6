"""``fetch_page`` and servers that drip, flood, fall silent, or send what keeps a parser busy."""

import asyncio
import gzip
import time
import zlib

import pytest
from toolbus_workers.fetch_page import FetchPage
from toolbus_workers.web import extract
from toolbus_workers.web.extract import ContentExtractor
from toolbus_workers.web.fetch import FetchService, Limits, Page

from tests.workers.fetching import HTML, failure, fetched
from tests.workers.pages import answer, local, names, site
from toolbus import ToolError
from toolbus.bus.outbound import Guard

pytestmark = pytest.mark.anyio


# -- what it costs ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("slow")
async def test_a_server_that_drips_is_left_when_the_time_is_up():
    """The limit is on the whole fetch: a byte now and then does not extend it, in the headers or in the body."""

    async def drip(request, writer):
        head = answer(b"x" * 1_000)
        sent = len(head) - 1_000 if request.target == "/body" else 5
        writer.write(head[:sent])
        for byte in head[sent:]:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.05)

    async with site(drip) as there:
        for target in ("/headers", "/body"):
            assert await failure(local(seconds=0.5), there.url(target)) == ("unavailable", "too_slow")
            assert await failure(local(), there.url(target), max_seconds=0.5) == ("unavailable", "too_slow")


async def test_the_parser_has_none_of_the_workers_secrets(monkeypatch, tmp_path):
    """A page that takes over its parser finds an environment with paths only."""
    program = tmp_path / "program.py"
    program.write_text("import json, os; print(json.dumps({'title': ' '.join(os.environ), 'text': '', 'cut': False}))")
    monkeypatch.setattr(extract, "_PROGRAM", str(program))
    monkeypatch.setenv("SECRET_KEY", "s3cret")
    page = Page("http://example.com/", "text/html", None, b"<p>hello</p>")
    assert set((await ContentExtractor().extract(page)).title.split()) <= {"PYTHONPATH", "MALLOC_ARENA_MAX", "LC_CTYPE"}


async def test_a_server_that_says_nothing_is_left_when_the_time_is_up():
    """Connected, and then silence."""

    async def wait(request, writer):
        await asyncio.sleep(60)

    async with site(wait) as there:
        assert await failure(local(seconds=0.3), there.url()) == ("unavailable", "too_slow")


async def longest_turn(work):
    """Return a result, and the longest time for which the event loop did nothing else."""
    longest, done = 0.0, asyncio.Event()

    async def watch():
        nonlocal longest
        while not done.is_set():
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    watching = asyncio.create_task(watch())
    try:
        return await work, longest
    finally:
        done.set()
        await watching


@pytest.mark.parametrize(
    ("start", "piece", "code"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", "too_many_pieces"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", "bad_response"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", "bad_response"),
    ],
    ids=["one byte each", "continue", "early hints"],
)
async def test_a_flood_of_small_pieces_stalls_nobody(start, piece, code):
    """Chunks of one byte and endless interim answers are counted, and other tasks have their turn between them."""

    async def pour(request, writer):
        writer.write(start)
        while True:
            writer.write(piece * 10_000)
            await writer.drain()

    async with site(pour) as there:
        (_, told), longest = await longest_turn(failure(local(seconds=20), there.url()))
    assert told == code
    assert longest < 0.1


async def test_ten_gigabytes_are_not_read():
    """A body is left as soon as it is too large, announced or not."""
    sent = 0

    async def pour(request, writer):
        nonlocal sent
        length = f"Content-Length: {10 << 30}\r\n" if request.target == "/announced" else ""
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{length}\r\n".encode())
        block = b"x" * 65_536
        while sent < 10 << 30:
            writer.write(block)
            await writer.drain()
            sent += len(block)

    async with site(pour) as there:
        for target in ("/announced", "/endless"):
            assert await failure(local(), there.url(target)) == ("tool_error", "too_large")
    assert sent < 50_000_000


@pytest.mark.usefixtures("slow")
async def test_a_gzip_bomb_is_not_unpacked():
    """Decompressed data is bounded, also for nested bombs and a hundred thousand empty members."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(128)) + packer.flush()
    async with site(answer(bomb, "Content-Encoding: gzip")) as there:
        assert await failure(local(), there.url()) == ("tool_error", "too_large")
    async with site(answer(gzip.compress(bomb), "Content-Encoding: gzip, gzip")) as there:
        assert await failure(local(), there.url()) == ("tool_error", "unsupported_content")
    async with site(answer(gzip.compress(b"") * 100_000, "Content-Encoding: gzip")) as there:
        assert await failure(local(), there.url()) == ("tool_error", "unsupported_content")


@pytest.mark.parametrize(
    ("body", "headers", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0", (), "image/png"),
        (b"\x89PNG\r\n\x1a\n\0\0\0", (), "text/html"),
        (b"%PDF-1.7", (), "application/pdf"),
        (b"x", (), "application/octet-stream"),
        (b"x", (), "x" * 10_000),
        (b"not gzip", ("Content-Encoding: gzip",), "text/html"),
        (b"x", ("Content-Encoding: br",), "text/html"),
    ],
)
async def test_what_is_not_text_is_refused(body, headers, media_type):
    """By its type, and by its bytes when the type is wrong."""
    async with site(answer(body, *headers, media_type=media_type)) as there:
        assert await failure(local(), there.url()) == ("tool_error", "unsupported_content")


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 50_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        b"HTTP/1.1 abc\r\n\r\n",
    ],
)
async def test_what_is_no_web_server_is_an_error(response):
    """Other protocols, endless headers and bodies that end too soon."""
    async with site(response) as there:
        assert await failure(local(), there.url()) == ("unavailable", "bad_response")


async def test_a_name_server_that_says_nothing_is_left_when_the_time_is_up():
    """Looking a name up counts as time of the fetch."""

    async def resolve(host, port):
        await asyncio.Event().wait()

    assert await failure(local(resolve=resolve, seconds=0.3), "http://silent.test/") == ("unavailable", "too_slow")


async def test_servers_that_are_slow_together_do_not_hold_up_a_call_for_ever():
    """Fetches at a time are bounded, and waiting for a place counts as time of the fetch."""

    async def wait(request, writer):
        await asyncio.sleep(60)

    service = FetchService(Guard(allow=["127.0.0.1/32"], resolve=names()), limits=Limits(seconds=0.5), parallel=2)
    async with site(wait) as there:
        began = time.monotonic()
        pages = await service.fetch_batch([there.url(f"/{n}") for n in range(20)])
        assert time.monotonic() - began < 10
        assert len(there.asked) <= 4
    assert {page.error.code for page in pages} == {"too_slow"}


async def test_nobody_there_says_what_to_do():
    """A refused connection may be a server that is down, or no network."""
    async with site(answer(HTML)) as there:
        url = there.url()
    assert await failure(local(), url) == ("unavailable", "unreachable")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    "page", ["<div>" * 600_000, "<a " + " ".join(f"a{n}=1" for n in range(300_000)) + ">", "<select>" + "<option>" * 500_000]
)
async def test_html_that_keeps_the_parser_busy_is_given_up(page):
    """Markup that takes the parser minutes is killed in its own process, and the worker goes on meanwhile."""
    extractor = ContentExtractor(seconds=2)
    turns = 0

    async def count():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    async with site(answer(page)) as there:
        counting = asyncio.create_task(count())
        with pytest.raises(ToolError, match="made to be costly") as raised:
            await FetchPage(local(), extractor).invoke("alice", {}, {"url": there.url()})
        counting.cancel()
    assert raised.value.error.code == "unreadable_page"
    assert turns > 20


async def test_html_that_takes_too_much_memory_is_given_up():
    """The process that parses has a limit of its own, far from what would hurt the worker."""
    extractor = ContentExtractor(memory=100 << 20)
    async with site(answer("<p>" * 1_500_000)) as there:
        with pytest.raises(ToolError) as raised:
            await FetchPage(local(), extractor).invoke("alice", {}, {"url": there.url()})
    assert raised.value.error.code == "unreadable_page"


async def test_a_batch_is_answered_in_order_and_its_failures_stand_in_their_places():
    """One bad page does not spoil the others."""
    async with site({"/a": answer("a"), "/b": answer("b")}) as there:
        first, second, third = await local().fetch_batch([there.url("/b"), there.url("/nowhere"), there.url("/a")])
    assert (first.text, third.text) == ("b", "a")
    assert second.error.type == "not_found"


async def test_a_fetch_that_is_cancelled_leaves_nothing_behind():
    """No connection, no process."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def wait(request, writer):
        asked.set()
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.01)
        left.set()

    async with site(wait) as there:
        task = asyncio.create_task(fetched(local(), there.url()))
        async with asyncio.timeout(10):
            await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            await left.wait()
