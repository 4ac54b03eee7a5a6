"""An external catalogue: matches with their reasons, links on both sides, and a catalogue that is down."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.records.made import recorded
from toolbus.bus.broker.admin import Admin
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.platform.catalogue import CatalogueUnavailable, Item, catalogue_at, synchronise, synchronise_after, why_matches
from toolbus.platform.records import ToolMeta
from toolbus.platform.store import Records

pytestmark = pytest.mark.anyio

ITEMS: list[dict[str, Any]] = [
    {"slug": "image-stitcher", "title": "Stitch", "status": "new", "stars": 5},
    {"slug": "weather", "title": "Weather forecasts", "status": "new"},
    {"slug": "life-cycle", "title": "Life cycle"},
]


@pytest.fixture
async def records(url: str, namespace: str) -> AsyncIterator[Records]:
    """A tool and a group."""
    async with Admin(Settings(url=url, namespace=namespace)) as admin:
        made = Records(admin)
        await made.put_all([recorded(), ToolGroup("cycle", "Life cycle", tool_ids=("image_stitcher",))])
        yield made


class Api:
    """A catalogue behind HTTP; ``failing`` is the status of each write."""

    def __init__(self) -> None:
        self.items = json.loads(json.dumps(ITEMS))
        self.failing = 0
        self.asked: list[str] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.asked.append(f"GET {self.path} {self.headers['authorization']}")
                self.answer(200, {"toolhub_items": api.items})

            def do_PATCH(self) -> None:
                api.asked.append(f"PATCH {self.path}")
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if api.failing:
                    self.answer(api.failing, {"error": "no"})
                    return
                next(each for each in api.items if each["slug"] == self.path.rpartition("/")[2]).update(body)
                self.answer(200, {})

            def answer(self, status: int, document: Any) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/api"


@pytest.fixture
def api() -> Iterator[Api]:
    """The catalogue, while it is up."""
    made = Api()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.mark.parametrize("form", ["list", "under its word", "by slug"])
async def test_both_sides_are_linked_once(records: Records, tmp_path: Path, form: str) -> None:
    """The second time changes nothing; fields of others stay; every match has its reason."""
    path = tmp_path / "catalogue.json"
    by_slug = {each["slug"]: {name: value for name, value in each.items() if name != "slug"} for each in ITEMS}
    path.write_text(json.dumps({"list": ITEMS, "under its word": {"toolhub_items": ITEMS, "v": 1}, "by slug": by_slug}[form]))
    report = await synchronise(records, catalogue_at(str(path)))
    assert [(each.slug, each.kind, each.id, each.changed) for each in report.matches] == [
        ("image-stitcher", "tool", "image_stitcher", ("here", "there")),
        ("life-cycle", "group", "cycle", ("there",)),
    ]
    assert report.matches[0].why == "its slug 'image-stitcher' is in the id 'image_stitcher'"
    tool = await records.get("image_stitcher")
    assert tool is not None
    assert tool.meta.tool_slug_ids == ("image-stitcher",)
    written = json.loads(path.read_text())
    inside = written.get("toolhub_items", written) if isinstance(written, dict) else written
    stitcher = inside["image-stitcher"] if form == "by slug" else inside[0]
    assert (stitcher["status"], stitcher["tool_ids"], stitcher["stars"]) == ("connected", ["image_stitcher"], 5)
    assert (inside["weather"] if form == "by slug" else inside[1])["status"] == "new"
    before = path.read_bytes()
    again = await synchronise(records, catalogue_at(str(path)))
    assert (again.changes, len(again.matches), path.read_bytes()) == ([], 2, before)


async def test_an_api_is_read_and_written(records: Records, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its token; the second time nothing is written."""
    monkeypatch.setenv("HUB", "t0ken")
    catalogue = catalogue_at(api.url, "env:HUB")
    assert len((await synchronise(records, catalogue)).changes) == 2
    assert api.asked == [
        "GET /api/toolhub_items Bearer t0ken",
        "PATCH /api/toolhub_items/image-stitcher",
        "PATCH /api/toolhub_items/life-cycle",
    ]
    assert (await synchronise(records, catalogue)).changes == []
    assert len(api.asked) == 4


async def test_a_catalogue_that_can_not_be_written_changes_nothing_here(records: Records, api: Api) -> None:
    """The error says what it answered; the next time does everything."""
    api.failing = 503
    with pytest.raises(CatalogueUnavailable, match="answered 503 to PATCH"):
        await synchronise(records, catalogue_at(api.url))
    assert (await records.all()).tools["image_stitcher"].meta.tool_slug_ids == ()
    api.failing = 0
    assert len((await synchronise(records, catalogue_at(api.url))).changes) == 2


DOWN = {"no file": None, "no JSON": "{", "a number": "5", "no text": b"\xff"}


@pytest.mark.parametrize("state", [*DOWN, "no server"])
async def test_a_catalogue_that_is_down_is_told(records: Records, tmp_path: Path, state: str) -> None:
    """Nothing changes, and a registration goes on."""
    path = tmp_path / "catalogue.json"
    content = DOWN.get(state)
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    catalogue = catalogue_at("http://127.0.0.1:9/api" if state == "no server" else str(path))
    with pytest.raises(CatalogueUnavailable, match="catalogue"):
        await synchronise(records, catalogue)
    assert await synchronise_after(records, catalogue, recorded()) is None
    assert (await records.all()).tools["image_stitcher"] == recorded()


async def test_items_that_can_not_be_read_are_told_and_the_others_are_linked(records: Records, tmp_path: Path) -> None:
    """Each with its place."""
    path = tmp_path / "catalogue.json"
    path.write_text(json.dumps([5, {"title": "x"}, {"slug": "a", "title": 7}, {"slug": " "}, ITEMS[0], ITEMS[0]]))
    report = await synchronise(records, catalogue_at(str(path)))
    assert [each.id for each in report.matches] == ["image_stitcher"]
    assert [line.partition(":")[0] for line in report.wrong] == ["item #1", "item #2", "item #3", "item #4", "item #6"]


def test_a_place_that_is_none_is_refused() -> None:
    """As is a token instead of its place, which is not repeated."""
    with pytest.raises(ConfigurationError, match="JSON file"):
        catalogue_at("ftp://hub.example")
    with pytest.raises(ConfigurationError) as refused:
        catalogue_at("https://hub.example", "hunter2")
    assert "hunter2" not in str(refused.value)


STITCHER = ToolMeta(tool_id="image_stitcher", name="Panorama", description="Stitch several images into one panorama.", category="Media")
MATCHES: dict[str, tuple[Item, str]] = {
    "the slug": (Item("image-stitcher"), "slug"),
    "a part of the id": (Item("stitcher"), "slug"),
    "the title": (Item("x1", title="panorama"), "title"),
    "keywords and the category": (Item("x1", keywords=("images", "stitch", "video"), category="media"), "category"),
    "the description": (Item("x1", description="Stitch images: a panorama of several"), "keywords"),
    "a part of a word": (Item("stitch"), ""),
    "a short slug": (Item("im"), ""),
    "the category alone": (Item("x1", category="media"), ""),
    "one keyword": (Item("x1", keywords=("images",), category="media"), ""),
    "another category": (Item("x1", description="Stitch images: a panorama of several", category="sewing"), ""),
    "common words": (Item("x1", description="This tool returns what other tools make with other values", category="media"), ""),
    "nothing": (Item("x1"), ""),
    "a verb before the thing": (Item("runstitcher"), "'runstitcher' is in the id"),
    "a verb before a short word": (Item("runimag"), ""),
}


@pytest.mark.parametrize("case", MATCHES)
def test_a_match_says_why(case: str) -> None:
    """By name, or by keywords that the category supports."""
    item, word = MATCHES[case]
    why = why_matches(
        item, "image_stitcher", recorded("image_stitcher", name="Panorama", description=STITCHER.description, category="Media").meta
    )
    assert (word in why) if word else why == ""
    group = ToolGroup("image_stitcher", "Panorama", STITCHER.description, "Media")
    assert why_matches(item, group.group_id, group) == why
