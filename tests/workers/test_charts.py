"""Charts and reports: what they show, what stays text in them, and what they refuse."""

import base64
import itertools
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from toolbus_workers import charts
from toolbus_workers.charts import MAX_POINTS, draw_chart, write_report
from toolbus_workers.plotting import Chart, plot, ticks
from toolbus_workers.reporting import Section, markdown_report

from toolbus import Blob, ToolBus, Worker
from toolbus.testing import InvocationEnvironment

pytestmark = pytest.mark.anyio

SVG = "{http://www.w3.org/2000/svg}"
SALES = {"kind": "bar", "title": "Sales", "labels": ["north", "south"], "series": [{"name": "amount", "values": [15, -20.5]}]}
HOSTILE = "<script>alert(1)</script> & ]]> \x0b [x](javascript:1) | `"


async def run(tool, **arguments):
    async with InvocationEnvironment() as environment:
        return await environment.run(tool, arguments)


async def drawn(**arguments):
    outcome = await run(draw_chart, **{**SALES, **arguments})
    assert outcome.result.success, outcome.result.error
    return outcome, ElementTree.fromstring(outcome.result.data["svg"])


async def refused(tool, code, **arguments):
    outcome = await run(tool, **arguments)
    assert not outcome.result.success
    assert (outcome.result.error.type, outcome.result.error.code) == ("invalid_arguments", code), outcome.result.error
    return outcome.result.error.message


def texts(root):
    return [each.text for each in root.iter(f"{SVG}text")]


async def test_a_bar_chart_shows_its_values_from_zero():
    """Each bar is as long as its value says, on its side of zero, and a model is told what is in the picture."""
    outcome, root = await drawn()
    up, down = [each for each in root.iter(f"{SVG}rect") if each.get("fill") != "#ffffff"]
    assert float(up.get("y")) + float(up.get("height")) == pytest.approx(float(down.get("y")), abs=0.2)
    assert float(down.get("height")) / float(up.get("height")) == pytest.approx(20.5 / 15, abs=0.01)
    assert {"Sales", "north", "south", "0"} <= set(texts(root))
    assert "amount: 2 values from -20.5 (south) to 15 (north)" in outcome.result.output
    assert outcome.blobs == [Blob("image/svg+xml", outcome.result.data["svg"].encode())]


async def test_the_picture_of_the_guide_is_what_the_tool_draws():
    """The chart in the guide is drawn by this code, byte for byte."""
    series = [{"name": "2024", "values": [15, 20, 7, -3]}, {"name": "2025", "values": [18, 12.5, 9, 4]}]
    outcome, _ = await drawn(title="Sales by region", labels=["north", "south", "east", "west"], series=series)
    picture = Path(__file__).parents[2] / "docs" / "reference" / "chart.svg"
    assert picture.read_text("utf-8") == outcome.result.data["svg"]


async def test_a_line_has_gaps_where_values_are_missing():
    """A missing value ends the line, and a value between two gaps is a dot."""
    values = [1, 2, None, 4, None, 6, 7]
    _, root = await drawn(kind="line", labels=list(range(7)), series=[{"name": "a", "values": values}])
    (path,) = [each.get("d") for each in root.iter(f"{SVG}path") if each.get("fill") == "none"]
    assert re.sub(r"[^ML]", "", path) == "MLMML"
    assert len(list(root.iter(f"{SVG}circle"))) == 5


async def test_a_pie_shows_shares():
    """Every value has its share in words, and one value alone is a whole circle."""
    _, root = await drawn(kind="pie", labels=["a", "b"], series=[{"name": "n", "values": [3, 1]}])
    assert {"a: 3 (75.0%)", "b: 1 (25.0%)"} <= set(texts(root))
    _, root = await drawn(kind="pie", labels=["a", "b"], series=[{"name": "n", "values": [3, 0]}])
    assert len(list(root.iter(f"{SVG}circle"))) == 1


@pytest.mark.parametrize("kind", ["bar", "line", "pie"])
@pytest.mark.parametrize("values", [[0.1], [5, 5], [1e300, 1e-300], [3] * MAX_POINTS], ids=["one", "equal", "extreme", "many"])
async def test_any_numbers_can_be_drawn(kind, values):
    """The picture is well-formed, small, the same each time, and no number in it is infinite."""
    given = {"kind": kind, "labels": list(range(len(values))), "series": [{"name": "n", "values": values}]}
    outcome, _ = await drawn(**given)
    svg = outcome.result.data["svg"]
    assert len(svg) < 200_000
    assert not re.search(r"\b(nan|inf)\b", svg)
    assert (await drawn(**given))[0].result.data["svg"] == svg


async def test_text_in_a_chart_is_text():
    """Titles and labels can't add elements, whatever they say."""
    _, root = await drawn(title=HOSTILE, labels=[HOSTILE, "b"], series=[{"name": HOSTILE, "values": [1, 2]}] * 2)
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {"svg", "rect", "text", "path"}
    assert any("<script>alert(1)</script> & ]]> � [x]" in (text or "") for text in texts(root))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"series": [{"name": "a", "values": [1]}]}, "bad_length"),
        ({"kind": "pie"}, "bad_pie"),
        ({"kind": "pie", "series": [{"name": "a", "values": [0, 0]}]}, "bad_pie"),
        ({"kind": "pie", "series": [{"name": "a", "values": [1, 1]}] * 2}, "bad_pie"),
        ({"series": [{"name": "a", "values": [1, 1e301]}]}, "too_large"),
        ({"labels": list(range(501)), "series": [{"name": "a", "values": [1] * 501}] * 2}, "too_many"),
        ({"kind": "radar"}, ""),
        ({"labels": []}, ""),
        ({"series": [{"name": "a", "values": ["x", 1]}]}, ""),
    ],
)
async def test_what_can_not_be_drawn_is_told(arguments, code):
    """Each mistake is an error that a model can mend."""
    await refused(draw_chart, code, **{**SALES, **arguments})


def test_ticks_are_round_and_span_the_range():
    """Marks of an axis are what people would write beside it."""
    assert ticks(0, 20) == [0, 5, 10, 15, 20]
    assert ticks(-20.5, 15) == [-30, -20, -10, 0, 10, 20]
    assert ticks(7, 7)[0] <= 7 <= ticks(7, 7)[-1]


TABLE = {"columns": [{"name": "region", "type": "VARCHAR"}, {"name": "sum", "type": "INT"}], "rows": [["north", 15], ["south", None]]}


async def test_a_markdown_report_has_its_sections_in_order():
    """Headings, paragraphs, tables and charts stand where they were put, and the chart is the one that was drawn."""
    svg = (await drawn())[0].result.data["svg"]
    sections = [{"heading": "Sums", "text": "One.\n\nTwo *more*.", "table": TABLE}, {"heading": "Chart", "chart": svg}]
    outcome = await run(write_report, title="Sales of May", sections=sections)
    (blob,) = outcome.blobs
    text = blob.data.decode()
    assert blob.media_type == "text/markdown"
    sums = "One.\n\nTwo *more*.\n\n| region | sum |\n|---|---|\n| north | 15 |\n| south |  |"
    image = base64.b64encode(svg.encode()).decode()
    assert text == f"# Sales of May\n\n## Sums\n\n{sums}\n\n## Chart\n\n![Chart](data:image/svg+xml;base64,{image})\n"
    assert outcome.result.data["sections"] == ["Sums", "Chart"]
    assert outcome.result.data["bytes"] == len(blob.data)


async def test_an_html_report_runs_nothing():
    """All input becomes text, a chart becomes an image, and the page forbids everything else to itself."""
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    table = {"columns": [HOSTILE], "rows": [[HOSTILE], [{"a": 1}]]}
    sections = [{"heading": HOSTILE, "text": HOSTILE, "table": table, "chart": svg}]
    outcome = await run(write_report, title=HOSTILE, sections=sections, format="html")
    text = outcome.blobs[0].data.decode()
    assert "<script" not in text
    assert "default-src 'none'" in text
    assert set(re.findall(r"<(\w+)", text)) <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "p",
        "table",
        "tr",
        "th",
        "td",
        "img",
    }


async def test_text_in_a_markdown_report_is_no_markup():
    """Headings and cells can't become links, tags or further cells, and paragraphs no tags or links."""
    sections = [{"heading": HOSTILE, "text": HOSTILE, "table": {"columns": ["a"], "rows": [[HOSTILE + "\n"]]}}]
    text = (await run(write_report, title="T", sections=sections)).blobs[0].data.decode()
    assert not re.search(r"(?<!\\)<", text)
    assert not re.search(r"(?<!\\)\[", text)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [2, 2, 2]


async def test_a_long_table_is_cut_with_a_note():
    """The first rows are written, and how many are not."""
    table = {"columns": ["n"], "rows": [[number] for number in range(700)]}
    text = (await run(write_report, title="T", sections=[{"heading": "H", "table": table}])).blobs[0].data.decode()
    assert "| 499 |\n\n(200 more rows are left out)" in text


@pytest.mark.parametrize(
    ("section", "code"),
    [
        ({"table": {"rows": []}}, "bad_table"),
        ({"table": {"columns": ["a"], "rows": [[1, 2]]}}, "bad_table"),
        ({"table": {"columns": ["a"], "rows": ["x"]}}, "bad_table"),
        ({"chart": "a picture"}, "bad_chart"),
        ({"chart": "<svg>" + "x" * 200_000}, "bad_chart"),
        ({"text": "x" * 50_001}, "too_long"),
        ({"picture": "x"}, ""),
    ],
)
async def test_what_can_not_be_written_is_told(section, code):
    """The section that is wrong is named."""
    assert "sections[0]" in await refused(write_report, code, title="T", sections=[{"heading": "H", **section}])


async def test_a_report_is_bounded():
    """A report that would be too large as a whole is refused."""
    sections = [{"heading": "H", "text": "'" * 48_000}] * 5
    assert "at most 1,048,576" in await refused(write_report, "too_large", title="T", sections=sections, format="html")


async def test_a_chart_reaches_a_report_by_reference(valkey_server, namespace):
    """Over a server, a model's second call takes table and picture from earlier ones without repeating them."""
    async with Worker(charts, url=valkey_server, namespace=namespace), ToolBus(valkey_server, namespace=namespace) as bus:
        await bus.wait_for_tool("write_report", 10)
        executor = bus.executor(session="s")
        chart = await executor.execute("draw_chart", SALES)
        sections = [{"heading": "H", "chart": {"$from": "draw_chart", "path": "svg"}}]
        report = await executor.execute("write_report", {"title": "T", "sections": sections})
    assert report.success, report.error
    assert base64.b64encode(chart.content[0].data) in report.content[0].data


PIECES = ["\\", "<", "script", ">", "[", "x", "]", "(", "javascript:1", ")", "`", "``", "```", "~~~~", "#", " ", "\n", "\n\n", "    ", "!"]
PIECES += ["--", "<!--", "-->", "&lt;", "*", "_", "|", "---", "===", "- ", "1. ", "> ", "http://a.b", ":", "<?", "<![CDATA["]


def kinds(tokens):
    """The types of all tokens of a Markdown document."""
    for token in tokens:
        yield token.type
        yield from kinds(token.children or ())


@pytest.mark.usefixtures("slow")
@example("\\<script>alert(1)</script>")
@example("```")
@example("text\n~~~\n")
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=14).map("".join))
@settings(max_examples=500, deadline=None)
def test_no_text_becomes_markup_or_swallows_what_follows(text):
    """No text of a title, heading, paragraph or cell becomes a tag, link or fence, and the next section is there."""
    report = markdown_report(text, [Section(text, text, {"columns": [text], "rows": [[text]]}), Section("Last", "end")])
    tokens = MarkdownIt("commonmark").enable("table").parse(report)
    assert not {"html_inline", "html_block", "link_open", "image", "fence"} & set(kinds(tokens))
    headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings[-1] == "Last"


NUMBERS = [0.0, 5e-324, 1e-323, 2.2e-308, 1e-310, 1e-300, 1e-15, 1.0, 1 + 2**-52, 1 + 1e-12, 1e15, 1e15 + 0.125, 1e16, 1e300, 123456789.1]
NUMBERS += [math.nextafter(123456789.1, 2e9), math.nextafter(1e16, 2e16)]


@pytest.mark.parametrize("kind", ["bar", "line", "pie"])
def test_every_pair_of_numbers_can_be_drawn(kind):
    """Subnormal, nearly equal and huge numbers give finite places, and marks that differ from each other."""
    signed = [*NUMBERS, *(-number for number in NUMBERS)]
    for low, high in itertools.product(NUMBERS[1:] if kind == "pie" else signed, repeat=2):
        drawing = ElementTree.fromstring(plot(Chart(kind, "t", ["a", "b"], [("x", [low, high])])))
        for each in drawing.iter():
            assert not re.search("nan|inf", " ".join(each.attrib.values())), (low, high)
        if kind != "pie":
            marks = [each.text for each in drawing.iter(f"{SVG}text") if each.get("text-anchor") == "end" and each.text not in {"a", "b"}]
            assert 2 <= len(marks) <= 13, (low, high, marks)
            assert len(set(marks)) == len(marks), (low, high, marks)
