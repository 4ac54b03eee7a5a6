"""Full-text search: what it finds, how it follows its folder, and documents and queries that are meant to break it."""

import asyncio
import contextlib
import io
import os
import time
import zipfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toolbus_workers import documents, knowledge_index
from toolbus_workers.documents import Unreadable, decode, read
from toolbus_workers.knowledge_index import Index, document_id
from toolbus_workers.knowledge_search import KnowledgeSearch, Limits
from toolbus_workers.operations import load_limits
from toolbus_workers.sandbox import Root

from toolbus import ConfigurationError, ToolBus, ToolError, Worker

BEES = "# Keeping bees\n\nBees make honey in a hive.\n\n## Winter\n\nIn winter the cluster keeps warm.\n"
GUIDE = "<html><head><title>Guide</title><style>.x{}</style></head><body><h1>The guide</h1><p>Volcanoes &amp; glaciers.</p></body></html>"


@contextlib.asynccontextmanager
async def searching(folder, address="memory://", namespace="default", **limits):
    service = KnowledgeSearch(Limits(folder=str(folder), rescan=0, **limits))
    async with Worker(service, url=address, namespace=namespace), ToolBus(address, namespace=namespace) as bus:
        await bus.wait_for_tool("knowledge_search", 10)
        yield bus


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "documents"
    (root / "handbook").mkdir(parents=True)
    (root / "bees.md").write_text(BEES)
    (root / "handbook" / "guide.html").write_text(GUIDE)
    (root / "handbook" / "notes.txt").write_text("The glacier moved.\n")
    return root


async def search(bus, query, **arguments):
    result = await bus.call("knowledge_search", {"query": query, **arguments}, timeout=30)
    assert result.success, result.error
    return result


def paths(result):
    return [passage["path"] for passage in result.data["passages"]]


def zipped(**members):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return made.getvalue()


@pytest.mark.anyio
async def test_passages_are_streamed_and_lead_to_their_document(folder, server, namespace):
    """Each passage is a piece of the stream, its ids stand in the data, and get_document_info takes them."""
    async with searching(folder, server, namespace) as bus:
        async with bus.stream("knowledge_search", {"query": "glaciers"}) as call:
            text = "".join([piece async for piece in call])
            result = await call.result()
        assert sorted(paths(result)) == ["handbook/guide.html", "handbook/notes.txt"]
        assert "Volcanoes & glaciers." in text
        assert text == result.output
        found = next(passage for passage in result.data["passages"] if passage["title"] == "The guide")
        for known in (found["document_id"], found["passage_id"]):
            info = await bus.call("get_document_info", {"document_id": known})
            assert (info.data["path"], info.data["format"], info.data["error"]) == ("handbook/guide.html", "html", "")
            assert info.data["passages"] == 1


@pytest.mark.anyio
async def test_a_documents_text_is_shown_on_demand(folder):
    """Passages come with their numbers and lines, from where one asks."""
    (folder / "long.md").write_text("# Long\n\n" + "".join(f"Paragraph {n} {'word ' * 80}\n\n" for n in range(10)))
    async with searching(folder) as bus:
        found = (await search(bus, "paragraph", limit=1)).data["passages"][0]
        shown = await bus.call("get_document_info", {"document_id": found["document_id"], "first": 2, "passages": 2})
        assert [each["passage_id"] for each in shown.data["text"]] == [f"{found['document_id']}:2", f"{found['document_id']}:3"]
        assert shown.data["text"][0]["line"] > 1
        assert "[passage 2, line" in shown.output


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("honey", ["bees.md"]),
        ("HONEYS", ["bees.md"]),
        ('"cluster keeps warm"', ["bees.md"]),
        ('"warm keeps cluster"', []),
        ("volcanoes honey", ["bees.md", "handbook/guide.html"]),
        ("absent", []),
    ],
)
async def test_words_phrases_and_inflections_are_found(folder, query, expected):
    """Any of the words is enough, a phrase in quotes must stand as it is, and endings do not matter."""
    async with searching(folder) as bus:
        result = await search(bus, query)
        assert sorted(paths(result)) == expected
        assert expected or "try other words" in result.output


@pytest.mark.anyio
async def test_scripts_without_spaces_are_searched_too(folder):
    """A word within a Chinese sentence is found."""
    (folder / "zh.txt").write_text("蜜蜂在蜂巢里酿造蜂蜜。", "utf-8")
    async with searching(folder) as bus:
        assert paths(await search(bus, "蜂巢")) == ["zh.txt"]
        assert paths(await search(bus, "巢蜂")) == []


@pytest.mark.anyio
async def test_the_index_follows_the_folder(folder):
    """Added, changed and deleted documents show in the next search."""
    async with searching(folder) as bus:
        assert paths(await search(bus, "honey")) == ["bees.md"]
        (folder / "new.txt").write_text("More honey.")
        assert sorted(paths(await search(bus, "honey"))) == ["bees.md", "new.txt"]
        (folder / "bees.md").write_text("Nothing sweet here now.")
        assert paths(await search(bus, "honey")) == ["new.txt"]
        (folder / "new.txt").unlink()
        assert paths(await search(bus, "honey")) == []
        assert paths(await search(bus, "sweet")) == ["bees.md"]


@pytest.mark.anyio
async def test_an_operators_tool_sees_its_collection_only(folder, server, namespace, put):
    """A tool whose config names a collection neither finds nor tells about documents outside of it."""
    async with searching(folder, server, namespace) as bus:
        await put(server, namespace, "handbook-search", "knowledge_search", operation="knowledge_search", collection="handbook")
        await put(server, namespace, "handbook-info", "knowledge_search", operation="get_document_info", collection="handbook")
        await put(server, namespace, "escape", "knowledge_search", operation="knowledge_search", collection="../..")
        for name in ("handbook-search", "handbook-info", "escape"):
            await bus.wait_for_tool(name, 10)
        bees = (await search(bus, "honey")).data["passages"][0]["document_id"]
        assert (await bus.call("handbook-search", {"query": "honey glacier"})).data["passages"][0]["path"].startswith("handbook/")
        assert (await bus.call("handbook-search", {"query": "honey"})).data["passages"] == []
        assert (await bus.call("handbook-info", {"document_id": bees})).error.type == "not_found"
        assert (await bus.call("escape", {"query": "honey"})).error.type == "forbidden"


HOSTILE = [
    '"', '""', "'", "*", "hon*", "honey AND", "honey NOT", "NEAR(honey bees", "text : honey", "honey^",
    "(honey", "honey)", "a OR OR b", "-honey", "+", "^", "{", "}",
    "honey; DROP TABLE documents", '" OR 1=1 --', "\0", "honey\0bees", "text:", "title:(honey",
    "\\", "%", "_", "honey AND (bees", "\ud800",
    "NOT", "AND OR NOT NEAR", "x" * 1000, "a " * 500, '"a" ' * 200, '"' * 999, "🙂", "honey 🙂", "\n\n", "𝔥oney", "ﷺ", "e\u0301" * 400,
]  # fmt: skip


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    root = tmp_path_factory.mktemp("documents")
    (root / "bees.md").write_text(BEES)
    made = Index(Root(str(root)), most_documents=10, most_document=10_000, most_text=10_000, rescan=0)
    made.refresh(lambda: None, 5)
    yield made
    made.close()


@settings(deadline=None)
@given(query=st.text(max_size=200) | st.lists(st.sampled_from(HOSTILE), max_size=6).map(" ".join))
def test_no_query_is_a_syntax_error(index, query):
    """For any query the answer is passages, none, or an error that asks for words."""
    try:
        assert len(index.search(query, "", 5)) <= 5
    except ToolError as failure:
        assert (failure.error.type, failure.error.code) == ("invalid_arguments", "bad_query")  # noqa: PT017


@pytest.mark.parametrize("query", HOSTILE)
def test_operators_are_taken_as_words(index, query):
    """A query made of the index's own syntax never is syntax."""
    with contextlib.suppress(ToolError):
        index.search(query, "", 5)
    assert index.search(f"honey {query}"[:1000], "", 5)


@pytest.mark.anyio
async def test_a_query_without_words_and_one_too_long_are_refused(folder):
    """The error says what to give instead."""
    async with searching(folder) as bus:
        for query, code in (("", "bad_query"), ("*** !", "bad_query"), ("x" * 1001, "too_long")):
            result = await bus.call("knowledge_search", {"query": query})
            assert (result.error.type, result.error.code) == ("invalid_arguments", code)
        result = await bus.call("get_document_info", {"document_id": "nothing"})
        assert (result.error.type, result.error.code) == ("not_found", "no_document")


@pytest.mark.anyio
async def test_broken_documents_are_set_aside_and_counted(folder):
    """Documents that are broken, binary, or in a wrong encoding stop no search; why is told by get_document_info."""
    (folder / "binary.txt").write_bytes(os.urandom(5000))
    (folder / "empty.md").write_text("")
    (folder / "broken.docx").write_bytes(b"PK\x03\x04 not a zip")
    (folder / "cut.docx").write_bytes(zipped(word__document="<w:p>x</w:p>")[:-30])
    (folder / "wrong.html").write_bytes(b"<meta charset='utf-8'><p>caf\xe9 honey \xff\xfe</p>")
    (folder / "utf16.txt").write_bytes("honey in UTF-16 – really".encode("utf-16"))
    (folder / "surrogate.txt").write_bytes(b"\xff\xfe\x00\xd8" + ("honey " * 20).encode("utf-16-le"))
    (folder / "odd\udcff.txt").write_text("honey")
    (folder / "loop").symlink_to(folder)
    (folder / "outside.txt").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe.txt")
    async with searching(folder) as bus:
        result = await search(bus, "honey root")
        assert set(paths(result)) == {"bees.md", "utf16.txt", "surrogate.txt"}
        assert result.data["notes"] == ["5 documents could not be read"]
        info = await bus.call("get_document_info", {"document_id": document_id("binary.txt")})
        assert info.data["error"] == "it is binary, not text"
        info = await bus.call("get_document_info", {"document_id": document_id("wrong.html")})
        assert "do not tell its encoding" in info.data["error"]


def smashed(method):
    """Return a docx whose packed text is broken, while its table of contents is valid."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        archive.writestr("word/document.xml", "<w:p>" + "honey and wax " * 500 + "</w:p>")
    content = bytearray(made.getvalue())
    start = content.index(b"word/document.xml") + len("word/document.xml")
    for place in range(start + 9, start + 60):
        content[place] ^= 0x55
    return bytes(content)


HOSTILE = {  # type: ignore[assignment]
    "a.html": b"&#" + b"9" * 5_000 + b"; honey",
    "b.html": b"&#x" + b"f" * 5_000 + b"; honey",
    "c.html": b"<meta charset=iso-8859-99>honey \xff",
    "d.html": b"<meta charset=windows-1259>honey \xff",
    "a.docx": smashed(zipfile.ZIP_LZMA),
    "b.docx": smashed(zipfile.ZIP_BZIP2),
    "c.docx": smashed(zipfile.ZIP_DEFLATED),
    "d.docx": zipped(word__document_xml="").replace(b"PK\x01\x02", b"PK\x01\x03"),
}


@pytest.mark.anyio
@pytest.mark.parametrize("name", HOSTILE)
async def test_no_content_of_a_file_ends_a_search(folder, name):
    """Numbers too long for Python, charsets that there are none of, and archives packed wrongly leave the others searchable."""
    (folder / name).write_bytes(HOSTILE[name])
    async with searching(folder) as bus:
        for _ in range(2):
            result = await search(bus, "honey")
            assert "bees.md" in paths(result)
            assert (name in paths(result)) != bool(result.data["skipped"])


@pytest.mark.anyio
@pytest.mark.parametrize(
    "failure", [MemoryError(), RecursionError(), LookupError("x"), AssertionError(), ToolError("no"), ValueError("\n")]
)
async def test_whatever_a_file_brings_about_it_is_left_out_and_told_once(folder, failure, monkeypatch, caplog):
    """Any exception while a file is read leaves it out: it is logged once, and each search says which and why until it changes."""

    def failing(content, path, most):
        if path == "bad\n.md":
            raise failure
        return read(content, path, most)

    monkeypatch.setattr(knowledge_index, "read", failing)
    (folder / "bad\n.md").write_text("honey")
    async with searching(folder) as bus:
        for _ in range(3):
            result = await search(bus, "honey")
            assert paths(result) == ["bees.md"]
            assert result.data["notes"] == ["1 documents could not be read"]
            ((said),) = result.data["skipped"]
            assert said == {"document_id": document_id("bad\n.md"), "path": "bad\n.md", "error": said["error"]}
            assert said["error"]
    logged = [record.getMessage() for record in caplog.records if record.name == "toolbus.knowledge"]
    assert len(logged) == 1
    assert "\n" not in logged[0]


@pytest.mark.anyio
async def test_what_is_left_out_of_other_collections_is_not_told(folder, server, namespace, put):
    """A tool that knows one collection hears of no path in another, readable or not."""
    (folder / "secret.docx").write_bytes(b"no archive")
    (folder / "handbook" / "broken.docx").write_bytes(b"no archive")
    async with searching(folder, server, namespace) as bus:
        await put(server, namespace, "handbook-search", "knowledge_search", operation="knowledge_search", collection="handbook")
        await bus.wait_for_tool("handbook-search", 10)
        result = await bus.call("handbook-search", {"query": "glacier"})
        assert [each["path"] for each in result.data["skipped"]] == ["handbook/broken.docx"]
        assert result.data["notes"] == ["1 documents could not be read"]
        assert len((await search(bus, "glacier")).data["skipped"]) == 2


def test_markup_that_takes_too_long_is_given_up(monkeypatch):
    """A document is read for a bounded time only."""
    monkeypatch.setattr(documents, "MAX_SECONDS", -1.0)
    with pytest.raises(Unreadable, match="to read"):
        read(b"<p>honey" * 20_000, "a.html", 1_000_000)


@pytest.mark.anyio
async def test_zipped_formats_give_their_text(folder):
    """Word, OpenDocument and EPUB files are searched with the standard library alone."""
    (folder / "a.docx").write_bytes(zipped(**{"word/document.xml": "<w:p><w:t>Saxophone</w:t></w:p><w:p><w:t>solo</w:t></w:p>"}))
    (folder / "b.odt").write_bytes(zipped(**{"content.xml": "<text:h>Score</text:h><text:p>A saxophone part</text:p>"}))
    (folder / "c.epub").write_bytes(zipped(**{"OEBPS/one.xhtml": "<h1>One</h1><p>The saxophone</p>", "mimetype": "application/epub+zip"}))
    async with searching(folder) as bus:
        assert sorted(paths(await search(bus, "saxophone"))) == ["a.docx", "b.odt", "c.epub"]


@pytest.mark.anyio
async def test_the_index_is_bounded(folder):
    """Documents beyond the bounds in number, bytes and text are left out, and the search says so."""
    for number in range(5):
        (folder / f"n{number}.txt").write_text("honey " * 300)
    with (folder / "sparse.txt").open("wb") as file:
        file.truncate(1 << 30)
    async with searching(folder, documents=6, document=5_000, text=4_500) as bus:
        result = await search(bus, "honey")
        assert "3 documents are over the index's limit and not searched" in result.data["notes"]
        assert any("could not be read" in note for note in result.data["notes"])
        assert result.data["documents"] == 6


@pytest.mark.anyio
async def test_a_missing_folder_is_an_error_of_the_operators(tmp_path):
    """Without a folder, or with one that is gone, the call says who can mend it."""
    async with searching(tmp_path / "nowhere") as bus:
        result = await bus.call("knowledge_search", {"query": "x"})
        assert (result.error.type, result.error.code) == ("unavailable", "no_root")
    async with Worker(KnowledgeSearch(Limits()), url="memory://"), ToolBus("memory://") as bus:
        await bus.wait_for_tool("knowledge_search", 10)
        assert "TOOLBUS_KNOWLEDGE_FOLDER" in (await bus.call("knowledge_search", {"query": "x"})).error.message
    with pytest.raises(ConfigurationError, match="TOOLBUS_KNOWLEDGE_TEXT is wrong"):
        load_limits(Limits, "TOOLBUS_KNOWLEDGE_", {"TOOLBUS_KNOWLEDGE_TEXT": "0"})


@pytest.mark.anyio
async def test_concurrent_searches_while_files_change_all_end(folder):
    """Searches that run while the folder changes are answered, each of them."""
    async with searching(folder) as bus:
        calls = [asyncio.create_task(search(bus, "honey glacier")) for _ in range(20)]
        for number in range(20):
            (folder / f"more{number}.txt").write_text("honey")
            await asyncio.sleep(0)
        assert len(await asyncio.gather(*calls)) == 20
        assert len(paths(await search(bus, "honey", limit=50))) == 21


def bomb():
    return zipped(**{"word/document.xml": "<w:p>" + "a b " * 20_000_000})


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b"<" * 1_000_000, "a.html"),
        (b"<!--" * 300_000, "a.html"),
        (b"<a " * 300_000, "a.html"),
        (b"<script>" * 100_000, "a.html"),
        (b"<p>" * 300_000, "a.html"),
        (b"</" * 500_000, "a.html"),
        (b"&" * 1_000_000, "a.html"),
        (b"&#x" * 300_000, "a.html"),
        (b"\n \t" * 300_000, "a.html"),
        (b"# " * 500_000, "a.md"),
        (b"\n" * 1_000_000 + b"x", "a.md"),
        (b"x" * 1_000_000, "a.md"),
        (bomb, "a.docx"),
    ],
)
def test_no_document_makes_reading_slow(content, path):
    """Time grows with a document's length, and what is packed small is unpacked within a bound."""
    content = content() if callable(content) else content
    started = time.perf_counter()
    with contextlib.suppress(Unreadable):
        assert len(read(content, path, 1_000_000).text) <= 1_000_000
    assert time.perf_counter() - started < 8


@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["a.txt", "a.md", "a.html", "a.docx", "a.odt", "a.epub", "a"]))
@example(b"\xff\xfe\x00\xd8", "a.txt")
@example(b"PK\x05\x06" + b"\0" * 18, "a.docx")
@example(smashed(zipfile.ZIP_LZMA), "a.docx")
@example(b"&#" + b"9" * 5_000, "a.html")
@example(b"<meta charset=iso-8859-99>\xff", "a.html")
def test_any_bytes_are_text_or_unreadable(content, path):
    """Reading never fails in another way than by saying why."""
    try:
        found = read(content, path, 100)
    except Unreadable as reason:
        assert str(reason)  # noqa: PT017
    else:
        assert found.title
        assert 0 < len(found.text) <= 100


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("grüß".encode(), "grüß"),
        ("grüß".encode("utf-8-sig"), "grüß"),
        ("grüß".encode("utf-16"), "grüß"),
        ("grüß".encode("utf-32"), "grüß"),
        ("grüß".encode("cp1252"), "grüß"),
        ("<meta charset=koi8-r>привет".encode("koi8-r"), "<meta charset=koi8-r>привет"),
        (b"<meta charset=punycode>\xe9", "<meta charset=punycode>é"),
    ],
)
def test_encodings_are_told_apart(content, text):
    """Byte order marks, UTF-8, and the usual encodings that a page names; others are not tried."""
    assert decode(content).text == text
