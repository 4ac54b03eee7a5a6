"""The effects that the shipped tools declare, held against what a second run does."""

import pytest
from toolbus_workers.crawl_batch import CrawlBatch
from toolbus_workers.fetch_page import FetchPage
from toolbus_workers.get_weather import GetWeather
from toolbus_workers.graph_store import GraphStore
from toolbus_workers.graph_store.embedded import EmbeddedGraph
from toolbus_workers.web.extract import ContentExtractor
from toolbus_workers.web.search import Hit, SearchService
from toolbus_workers.web_search import WebSearch

from tests.workers.data_client import SALES
from tests.workers.pages import answer, local, site
from tests.workers.test_get_weather import provider, serving
from tests.workers.test_web_search import Backend
from toolbus import ToolBus, Worker
from toolbus.bus.worker.loading import import_installed, installed_services

pytestmark = pytest.mark.anyio

# They need the endpoint of a model; they tell a second run of a call by its id, as tests/coding and tests/assistant show.
ELSEWHERE = {"coding-agent", "service-agent"}
# They ask the network, so the tests give them what they ask.
ONLINE = {"crawl_batch", "fetch_page", "get_weather", "web_search"}

DOCUMENT = '{"a": [1, 2]}'
CHART = {"kind": "bar", "title": "t", "labels": ["a"], "series": [{"name": "n", "values": [1]}]}
# Two calls that need what an earlier one made come after it; a tool with several kinds of calls has each.
CALLS = [
    ("data_upload", {"table": "sales", "content": SALES}),
    ("data_append", {"table": "sales", "content": SALES}),
    ("data_tables", {}),
    ("data_describe", {"table": "sales"}),
    ("data_analysis", {"sql": "FROM sales ORDER BY ALL"}),
    ("data_analysis", {"sql": "CREATE TEMP TABLE derived AS FROM sales"}),
    ("data_analysis", {"sql": "CREATE OR REPLACE TEMP TABLE derived AS FROM sales UNION ALL FROM sales"}),
    ("data_analysis", {"sql": "CREATE OR REPLACE TEMP TABLE derived AS FROM derived UNION ALL FROM derived"}),
    ("data_analysis", {"sql": "DROP TABLE derived"}),
    ("data_analysis", {"sql": "DROP TABLE sales"}),
    ("graph_import", {"kind": "vertices", "label": "Person", "csv": "id,age\nada,36\n"}),
    (
        "graph_import",
        {"kind": "edges", "label": "KNOWS", "rows": [{"source": "ada", "target": "ada"}], "source": "Person", "target": "Person"},
    ),
    ("graph_schema", {}),
    ("graph_query", {"query": "MATCH (p:Person) RETURN p.age"}),
    ("knowledge_search", {"query": "honey"}),
    ("get_document_info", {"document_id": "d0"}),
    ("file_list", {}),
    ("file_read", {"path": "bees.txt"}),
    ("calculator", {"expression": "2 ** 10"}),
    ("draw_chart", CHART),
    ("write_report", {"title": "t", "sections": [{"heading": "h", "text": "x"}]}),
    ("json_diff", {"left": DOCUMENT, "right": "{}"}),
    ("json_format", {"document": DOCUMENT}),
    ("json_process", {"document": DOCUMENT, "operation": "keys"}),
    ("json_query", {"document": DOCUMENT, "expression": "a"}),
    ("tell-knock-knock", {"topic": "cats"}),
    ("tell-limerick", {"topic": "cats"}),
    ("tell-pun", {"topic": "cats"}),
    ("text_outline", {"text": "# One"}),
    ("text_process", {"text": "one", "operation": "upper"}),
    ("text_search", {"text": "one", "query": "one"}),
    ("text_stats", {"text": "one"}),
    ("text_stream", {"text": "one"}),
    ("text_summary", {"text": "One bee. Two bees."}),
    ("crawl_batch", {"urls": ["{site}"]}),
    ("fetch_page", {"url": "{site}"}),
    ("get_weather", {"location": "Springfield"}),
    ("web_search", {"query": "bees"}),
]
# The answers of these are all that the tools of a session can change.
STATE = [
    ("data_tables", {}),
    ("data_analysis", {"sql": "FROM sales ORDER BY ALL"}),
    ("data_analysis", {"sql": "FROM derived ORDER BY ALL"}),
    ("graph_schema", {}),
    ("graph_query", {"query": "MATCH (p:Person) RETURN p.age"}),
    ("file_list", {}),
]


@pytest.mark.usefixtures("slow")
async def test_a_second_run_does_what_the_declared_effect_says(namespace, tmp_path, monkeypatch):
    """``read`` changes nothing and answers alike, ``idempotent`` leaves what the first run left, and only ``once`` does more."""
    (tmp_path / "bees.txt").write_text("Bees make honey.")
    monkeypatch.setenv("TOOLBUS_KNOWLEDGE_FOLDER", str(tmp_path))
    monkeypatch.setenv("TOOLBUS_FILES_ROOT", str(tmp_path))
    own = [each for each in installed_services() if each.distribution == "toolbus"]
    modules = [import_installed(each) for each in own if each.name not in ELSEWHERE | ONLINE]
    async with (
        site(answer("<p>honey")) as pages,
        serving() as weather,
        EmbeddedGraph() as store,
        Worker(
            [
                *modules,
                FetchPage(local()),
                CrawlBatch(local(), ContentExtractor()),
                GetWeather(provider(weather)),
                WebSearch(SearchService(Backend(Hit("t", "http://x.test", "s")))),
            ],
            url="memory://",
            namespace=namespace,
            provide={GraphStore: store},
        ),
        ToolBus("memory://", namespace=namespace) as opened,
    ):
        await opened.wait_for_tool("data_analysis", 10)
        bus = opened.bind(user="alice", session="one")

        async def state():
            return [str((await bus.call(name, arguments)).data) for name, arguments in STATE]

        assert set(bus.tools) == {name for name, _ in CALLS}
        for name, given in CALLS:
            arguments = {
                key: [pages.url()] if value == ["{site}"] else pages.url() if value == "{site}" else value for key, value in given.items()
            }
            before = await state()
            first = await bus.call(name, arguments)
            after = await state()
            second = await bus.call(name, arguments)
            effect = bus.tools[name].descriptor.effect
            assert effect in {"read", "idempotent", "once"}, name
            assert (await state() == after) == (effect != "once"), (name, given)
            if effect == "read":
                assert after == before, name
                assert (first.output, first.data, first.error) == (second.output, second.data, second.error), name
