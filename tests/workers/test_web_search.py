"""``web_search``: its results, its bounds, and what it says when there is no network."""

import asyncio
import socket
import threading
import time

import pytest
from toolbus_workers.web.search import DdgsBackend, Hit, Search, SearchService
from toolbus_workers.web_search import WebSearch

from tests.servers import eventually
from toolbus import ToolBus, ToolError, Worker

pytestmark = pytest.mark.anyio


class Backend:
    """Answers every search with the same hits, and remembers what was asked."""

    def __init__(self, *hits, error=None):
        self.hits = hits
        self.error = error
        self.asked = []
        self.closed = False

    async def search(self, search):
        self.asked.append(search)
        if self.error is not None:
            raise self.error
        return self.hits

    async def aclose(self):
        self.closed = True


async def searched(backend, config=None, **arguments):
    return await WebSearch(SearchService(backend)).invoke("alice", config or {}, arguments)


async def refused(backend, config=None, **arguments):
    with pytest.raises(ToolError) as raised:
        await searched(backend, config, **arguments)
    return raised.value.error


@pytest.fixture
def closed_port():
    """Return a port of this machine without a listener."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def test_results_have_title_address_and_snippet():
    """As data for programs, and as a numbered list for models."""
    result = await searched(
        Backend(Hit("Bees", "https://bees.test/", "All about\n bees"), Hit("Wasps", "http://wasps.test/", "")), query="bees"
    )
    assert result.data == {
        "results": [
            {"title": "Bees", "url": "https://bees.test/", "snippet": "All about bees"},
            {"title": "Wasps", "url": "http://wasps.test/", "snippet": ""},
        ]
    }
    assert result.output.startswith("1. Bees\n   https://bees.test/\n   All about bees\n2. Wasps")


async def test_a_backend_that_returns_anything_is_held_to_the_bounds():
    """Too many results, duplicates, other schemes, and endless texts."""
    hits = [Hit("x" * 10_000, f"http://h{n // 2}.test/", "y " * 50_000) for n in range(200)]
    odd = [Hit("a", "javascript:alert(1)", ""), Hit("b", "", ""), Hit("c", "http://[", ""), Hit("d", "http://a.test/" + "x" * 3_000, "")]
    result = await searched(Backend(*odd, *hits), query="bees", max_results=7)
    assert [hit["url"] for hit in result.data["results"]] == [f"http://h{n}.test/" for n in range(7)]
    assert all(len(hit["title"]) == 200 and len(hit["snippet"]) <= 500 for hit in result.data["results"])


async def test_nothing_found_is_no_failure():
    """The text says what to try."""
    result = await searched(Backend(), query="bees")
    assert (result.success, result.data) == (True, {"results": []})
    assert "other words" in result.output


async def test_config_reaches_the_backend():
    """Region, safe search, engines and a site for all searches of a tool."""
    backend = Backend()
    await searched(
        backend, {"region": "de-de", "safesearch": "on", "engines": ["mojeek"], "site": "bees.test"}, query="honey", max_results="3"
    )
    assert backend.asked == [Search(query="honey site:bees.test", max_results=3, region="de-de", safesearch="on", engines=("mojeek",))]


@pytest.mark.parametrize("arguments", [{}, {"query": ""}, {"query": "x" * 401}, {"query": "bees", "max_results": 21}, {"query": ["bees"]}])
async def test_arguments_out_of_bounds_are_refused(arguments):
    """Before anything is searched."""
    backend = Backend()
    error = await refused(backend, **arguments)
    assert (error.type, backend.asked) == ("invalid_arguments", [])


@pytest.mark.parametrize("config", [{"region": "everywhere"}, {"safesearch": "maybe"}, {"engines": ["a,b"]}, {"site": "a b"}])
async def test_bad_config_is_told(config):
    """The operator's mistake is named."""
    assert (await refused(Backend(), config, query="bees")).code == "bad_config"


async def test_a_search_that_takes_too_long_ends_in_time():
    """A search ends at its time limit when the backend does not answer."""

    class Slow(Backend):
        async def search(self, search):
            await asyncio.Event().wait()

    began = time.monotonic()
    with pytest.raises(ToolError, match="try again later") as raised:
        await SearchService(Slow(), seconds=0.2).search(Search(query="bees"))
    assert time.monotonic() - began < 3
    assert (raised.value.error.type, raised.value.error.retryable) == ("unavailable", True)


async def test_no_network_is_a_clear_error(closed_port):
    """The real engines, behind a proxy that is not there: the error says that there may be no network."""
    backend = DdgsBackend(proxy=f"http://127.0.0.1:{closed_port}")
    error = await refused(backend, query="bees")
    await backend.aclose()
    assert (error.type, error.code, error.retryable) == ("unavailable", "no_network", True)
    assert "no network; try again later" in error.message


async def test_searching_does_not_hold_up_the_event_loop(monkeypatch):
    """The engines are asked in threads, few of them, and their rows may lack anything."""
    going, running, most = threading.Event(), [], 0

    class Engines:
        def __init__(self, **options):
            pass

        def text(self, query, **options):
            nonlocal most
            running.append(query)
            most = max(most, len(running))
            assert going.wait(10)
            running.remove(query)
            return [{"title": query, "href": f"http://{query}.test/", "body": None}, {}]

    monkeypatch.setattr("toolbus_workers.web.search.DDGS", Engines)
    backend = DdgsBackend()
    searches = [asyncio.create_task(searched(backend, query=f"q{n}")) for n in range(10)]
    await eventually(lambda: most == 4, 10.0)
    going.set()
    results = [await search for search in searches]
    await backend.aclose()
    assert most == 4
    assert results[3].data == {"results": [{"title": "q3", "url": "http://q3.test/", "snippet": ""}]}


async def test_it_is_served(server, namespace):
    """Over a real server: results, and a failure of the backend as a value; the backend is closed with the worker."""
    good = Backend(Hit("Bees", "https://bees.test/", "All about bees"))
    async with (
        Worker([WebSearch(SearchService(good))], url=server, namespace=namespace),
        ToolBus(server, namespace=namespace) as bus,
    ):
        await bus.wait_for_tool("web_search", 10)
        result = await bus.call("web_search", {"query": "bees"})
        good.error = ToolError("slow down; wait", type="rate_limited", retryable=True, retry_after=60)
        limited = await bus.call("web_search", {"query": "bees"})
    assert result.data["results"][0]["url"] == "https://bees.test/"
    assert (limited.error.type, limited.error.retry_after) == ("rate_limited", 60)
    assert good.closed
