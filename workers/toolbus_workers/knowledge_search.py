"""Search a folder of documents by full text: text, Markdown, HTML, docx, odt and epub.

``TOOLBUS_KNOWLEDGE_FOLDER=/path toolbus worker knowledge_search`` serves ``knowledge_search``, which streams
the best passages, and ``get_document_info``, which describes a document. The index is in memory and follows the
folder. Ids are made from paths, so all workers over a folder use the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from toolbus import ToolError, ToolResult, invocation
from toolbus_workers.knowledge_index import Index, Info
from toolbus_workers.operations import Config, OperationService, load_limits, operation
from toolbus_workers.sandbox import Root, date, split

SETTINGS = {
    "TOOLBUS_KNOWLEDGE_FOLDER": "the folder of documents; required",
    "TOOLBUS_KNOWLEDGE_DOCUMENTS": "most documents (10000)",
    "TOOLBUS_KNOWLEDGE_DOCUMENT": "most bytes of one document (5000000)",
    "TOOLBUS_KNOWLEDGE_TEXT": "most characters of all documents (64000000)",
    "TOOLBUS_KNOWLEDGE_RESCAN": "seconds between looks at the folder (2)",
}

MAX_QUERY = 1_000
MAX_PASSAGES = 50
MAX_SHOWN = 20
MAX_SKIPPED = 20

_Count = Annotated[int, Meta(ge=1)]


class KnowledgeConfig(Config, frozen=True, kw_only=True):
    """The config values that a tool's descriptor may set.

    Attributes:
        collection: folder below the root with the tool's documents; all documents when empty.
        max_passages: most passages of one search.
    """

    collection: str = ""
    max_passages: Annotated[int, Meta(ge=1, le=MAX_PASSAGES)] = MAX_PASSAGES


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The folder, and limits on what is read of it; each is read from ``TOOLBUS_KNOWLEDGE_<NAME>``.

    Attributes:
        folder: root of the documents.
        documents: most documents; the first by path are taken.
        document, text: most bytes of one document, and most characters of all documents.
        rescan: least seconds between two scans of the folder.
    """

    folder: str = ""
    documents: _Count = 10_000
    document: _Count = 5_000_000
    text: _Count = 64_000_000
    rescan: Annotated[float, Meta(ge=0, le=86_400)] = 2.0


class KnowledgeSearch(OperationService, config=KnowledgeConfig):
    """Searches a folder of documents by full text."""

    id = "knowledge_search"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = load_limits(Limits, "TOOLBUS_KNOWLEDGE_") if limits is None else limits
        self._index: Index | None = None

    async def startup(self) -> None:
        """Create an empty index, which the first call fills."""
        if self._limits.folder:
            self._index = Index(
                Root(self._limits.folder),
                most_documents=self._limits.documents,
                most_document=self._limits.document,
                most_text=self._limits.text,
                rescan=self._limits.rescan,
            )

    async def cleanup(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()

    @operation(group="knowledge", timeout=60.0)
    def knowledge_search(
        self, config: KnowledgeConfig, query: str, limit: Annotated[int, Meta(ge=1, le=MAX_PASSAGES)] = 8
    ) -> Iterator[str | ToolResult]:
        """Search the documents for passages about something, the best first, each with its document_id.

        Args:
            query: a few words the text may hold, a "phrase in quotes" as one; no operators
            limit: how many passages to return
        """
        if len(query) > MAX_QUERY:
            raise _fail(
                f"the query has {len(query):,} characters; at most {MAX_QUERY:,} are allowed: give the words that matter", "too_long"
            )
        index, collection = self._ready(config)
        known = index.refresh(invocation().check_cancelled, invocation().remaining)
        passages: list[dict[str, Any]] = []
        for place, score in index.search(query, collection, min(limit, config.max_passages)):
            found = index.passage(place)
            if found is None:
                continue
            passage, document = found
            described = {"document_id": document.id, "passage_id": passage.id, "title": document.title, "path": document.path}
            passages.append({**described, "line": passage.line, "score": score, "text": passage.text})
            source = f"{document.path}, document_id {document.id}, passage {passage.number}"
            yield f"[{len(passages)}] {document.title} ({source})\n{passage.text}\n\n"
        if not passages:
            yield f"No passage of {known.documents} documents holds any of these words; try other words, or fewer.\n"
        unreadable, skipped = index.skipped(collection, MAX_SKIPPED)
        notes = [f"{unreadable} documents could not be read"] if unreadable else []
        notes += [f"{known.left_out} documents are over the index's limit and not searched"] if known.left_out else []
        yield from (f"({note})\n" for note in notes)
        unreadable_documents = [{"document_id": each.id, "path": each.path, "error": each.error} for each in skipped]
        yield ToolResult.ok({"passages": passages, "documents": known.documents, "notes": notes, "skipped": unreadable_documents})

    @operation(group="knowledge", timeout=60.0)
    def get_document_info(
        self,
        config: KnowledgeConfig,
        document_id: str,
        first: Annotated[int, Meta(ge=1)] = 1,
        passages: Annotated[int, Meta(ge=0, le=MAX_SHOWN)] = 0,
    ) -> ToolResult:
        """Tell about a document: title, path, format, size, date, and number of passages; its text on demand.

        Args:
            document_id: from a result of knowledge_search; a passage_id will do
            first: the number of the first passage to show, from 1
            passages: how many passages of the text to show
        """
        index, collection = self._ready(config)
        index.refresh(invocation().check_cancelled, invocation().remaining)
        found = index.document(document_id.partition(":")[0].strip(), collection)
        if found is None:
            shown = document_id if len(document_id) <= 60 else f"{document_id[:59]}…"
            message = f"there is no document {shown!r}; take a document_id from knowledge_search"
            raise ToolError(message, type="not_found", code="no_document")
        described = _described(found)
        text = "".join(f"{name}: {value}\n" for name, value in described.items() if value != "")
        shown_passages = index.passages(found.id, first, passages) if passages else []
        for passage in shown_passages:
            text += f"\n[passage {passage.number}, line {passage.line}]\n{passage.text}\n"
        data = {**described, "text": [{"passage_id": each.id, "line": each.line, "text": each.text} for each in shown_passages]}
        return ToolResult.ok(data, output=text)

    def _ready(self, config: KnowledgeConfig) -> tuple[Index, str]:
        if self._index is None:
            message = "no folder of documents is set; an operator sets TOOLBUS_KNOWLEDGE_FOLDER for the worker"
            raise ToolError(message, type="unavailable", code="no_root")
        parts = split(config.collection)
        return self._index, "".join(f"{part}/" for part in parts)


def _described(document: Info) -> dict[str, Any]:
    return {
        "document_id": document.id,
        "title": document.title,
        "path": document.path,
        "format": document.format,
        "bytes": document.size,
        "characters": document.characters,
        "passages": document.passages,
        "modified": date(document.modified),
        "error": document.error,
        "assumed_encoding": document.encoding,
    }


def _fail(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
