"""``crawl_batch``: pages as they come, politely, and whatever single pages do."""

import asyncio
import time

import pytest
from toolbus_workers.crawl_batch import MAX_PAGES, CrawlBatch
from toolbus_workers.web.politeness import Politeness

from tests.workers.pages import answer, local, names, site
from toolbus import Progress, ToolBus, ToolError, ToolResult, Worker

pytestmark = pytest.mark.anyio


def crawler(fetching=None, *, pause=0.0, per_host=50, **options):
    return CrawlBatch(fetching or local(), politeness=Politeness(pause=pause, parallel=per_host), **options)


async def crawl(service, urls, config=None, **arguments):
    """Return the items that the call yields: texts, progress and the result."""
    items = [item async for item in service.invoke("alice", config or {}, {"urls": urls, **arguments})]
    texts = [item for item in items if isinstance(item, str)]
    progress = [item for item in items if isinstance(item, Progress)]
    assert isinstance(items[-1], ToolResult)
    assert len(items) == len(texts) + len(progress) + 1
    return texts, progress, items[-1]


class Gate:
    """A server whose answers wait until the test lets them go, and that counts who waits."""

    def __init__(self):
        self.waiting = 0
        self.most = 0
        self.changed = asyncio.Condition()
        self.open = set()

    async def respond(self, request, writer):
        async with self.changed:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            self.changed.notify_all()
            await self.changed.wait_for(lambda: request.target in self.open or "all" in self.open)
            self.waiting -= 1
        writer.write(answer(f"<p>{request.target}"))

    async def let(self, *targets):
        async with self.changed:
            self.open.update(targets)
            self.changed.notify_all()

    async def until(self, waiting):
        async with asyncio.timeout(10), self.changed:
            await self.changed.wait_for(lambda: self.waiting == waiting)


async def test_pages_are_streamed_as_they_are_done_and_returned_in_order():
    """A slow page holds up no other one, each is fetched once, and the result has the order and length of the addresses."""
    gate = Gate()
    async with site(gate.respond) as there:
        stream = crawler().invoke("alice", {}, {"urls": [there.url("/slow"), there.url("/quick"), there.url("/slow")]})
        await gate.let("/quick")
        first = [await anext(stream), await anext(stream)]
        assert first == [Progress(1, 2, there.url("/quick")), f"## {there.url('/quick')}\n\n/quick\n\n"]
        await gate.let("/slow")
        *_, result = [item async for item in stream]
    assert result.data == {
        "pages": [
            {"url": there.url("/slow"), "success": True, "data": {"text": "/slow"}, "error": None},
            {"url": there.url("/quick"), "success": True, "data": {"text": "/quick"}, "error": None},
            {"url": there.url("/slow"), "success": True, "data": {"text": "/slow"}, "error": None},
        ]
    }


async def test_a_page_that_fails_stands_in_its_place():
    """With type, code and message, and in the text."""
    async with site({"/": answer("<p>here")}) as there:
        texts, progress, result = await crawl(crawler(), [there.url("/no"), there.url(), "file:///etc/passwd", "http://10.0.0.1/"])
    assert result.success
    assert [page["success"] for page in result.data["pages"]] == [False, True, False, False]
    errors = [page["error"] and page["error"]["code"] for page in result.data["pages"]]
    assert errors == ["http_404", None, "bad_url", "forbidden_address"]
    assert len(texts) == len(progress) == 4
    assert any(text.startswith(f"## {there.url('/no')}\n\nError (not_found: ") for text in texts)


async def test_a_batch_without_any_page_is_a_failure():
    """It says so, with the type that all pages share, and keeps what is known of each."""
    _, _, result = await crawl(crawler(), ["http://10.0.0.1/", "http://10.0.0.2/"])
    assert (result.success, result.error.type, result.error.code) == (False, "forbidden", "no_page")
    assert len(result.data["pages"]) == 2


async def test_no_network_says_so_for_every_page():
    """The call ends at once, with what to do."""

    async def resolve(host, port):
        raise OSError("no network")

    texts, _, result = await crawl(crawler(local(resolve=resolve)), ["http://a.test/", "http://b.test/"])
    assert (result.error.type, result.error.code) == ("not_found", "no_page")
    assert ["has no network" in text for text in texts] == [True, True]


@pytest.mark.usefixtures("slow")
async def test_requests_at_a_time_are_bounded():
    """In all of a call, and for one host among all calls."""
    gate = Gate()
    resolve = names(**{f"h{n}_test": "127.0.0.1" for n in range(6)})
    async with site(gate.respond) as there:
        service = crawler(local(resolve=resolve), per_host=2, parallel=3)
        many = asyncio.create_task(crawl(service, [there.url(host=f"h{n}.test") for n in range(6)]))
        await gate.until(3)
        await gate.let("all")
        assert (await many)[2].success
        assert gate.most == 3
        gate.open.clear()
        gate.most = 0
        calls = [asyncio.create_task(crawl(service, [there.url(f"/{call}{n}", "h0.test") for n in range(3)])) for call in "ab"]
        await gate.until(2)
        await gate.let("all")
        for call in calls:
            assert (await call)[2].success
    assert gate.most == 2


@pytest.mark.usefixtures("slow")
async def test_requests_to_one_host_keep_their_distance():
    """Other hosts do not wait for it; config can lengthen the pause."""
    began = {}

    async def respond(request, writer):
        began.setdefault(request.headers["host"].partition(":")[0], []).append(time.monotonic())
        writer.write(answer("<p>x"))

    resolve = names(a_test="127.0.0.1", b_test="127.0.0.1")
    async with site(respond) as there:
        urls = [there.url(f"/{n}", "a.test") for n in range(4)] + [there.url("/", "b.test")]
        start = time.monotonic()
        await crawl(crawler(local(resolve=resolve), pause=0.2), urls, {"host_pause": 0.5})
        assert time.monotonic() - start >= 1.5
    assert len(began["a.test"]) == 4
    assert began["b.test"][0] < began["a.test"][-1]


async def test_hosts_that_nobody_uses_are_forgotten():
    """The number of remembered hosts is bounded."""
    politeness = Politeness(pause=0.0)
    for number in range(2_000):
        async with politeness.turn(f"h{number}.test") as turn:
            await turn.begin()
    assert len(politeness._hosts) < 300


async def test_a_batch_ends_in_time():
    """Pages that are not read by then are failures; the others are there."""
    gate = Gate()
    await gate.let("/quick")
    async with site(gate.respond) as there:
        began = time.monotonic()
        _, _, result = await crawl(crawler(seconds=1.0), [there.url("/quick"), there.url("/slow")])
        await gate.let("all")
    assert time.monotonic() - began < 10
    assert [page["error"] and page["error"]["code"] for page in result.data["pages"]] == [None, "too_late"]


async def test_a_call_that_is_left_leaves_no_requests_behind():
    """Closing the stream ends the fetches."""
    gate = Gate()
    async with site(gate.respond) as there:
        before = asyncio.all_tasks()
        stream = crawler().invoke("alice", {}, {"urls": [there.url(f"/{n}") for n in range(5)]})
        await gate.let("/0")
        await anext(stream)
        await stream.aclose()
        ours = {task for task in asyncio.all_tasks() - before if "_outcome" in repr(task.get_coro())}
        assert not ours
        await gate.let("all")


@pytest.mark.parametrize(
    ("urls", "config"),
    [
        ([], {}),
        ([f"http://a.test/{n}" for n in range(MAX_PAGES + 1)], {}),
        (["http://a.test/1", "http://a.test/2"], {"max_pages": 1}),
        ("x", {}),
        ([1], {}),
    ],
)
async def test_bad_batches_are_refused_before_anything_is_fetched(urls, config):
    """Too many pages, none at all, or no addresses."""
    with pytest.raises(ToolError) as raised:
        await crawl(crawler(), urls, config)
    assert raised.value.error.type == "invalid_arguments"


async def test_it_is_served(server, namespace):
    """Over a real server each page arrives as text of its own before the call ends."""
    gate = Gate()
    async with (
        site(gate.respond) as there,
        Worker([crawler()], url=server, namespace=namespace),
        ToolBus(server, namespace=namespace) as bus,
    ):
        await bus.wait_for_tool("crawl_batch", 10)
        await gate.let("/quick")
        async with bus.stream("crawl_batch", {"urls": [there.url("/slow"), there.url("/quick")]}) as call:
            texts = aiter(call)
            assert "/quick" in await anext(texts)
            await gate.let("/slow")
            assert "/slow" in "".join([text async for text in texts])
            result = await call.result()
    assert [page["data"]["text"] for page in result.data["pages"]] == ["/slow", "/quick"]
