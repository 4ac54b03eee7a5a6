"""A full-text index of the documents in a folder, in memory, updated as files are added, changed and removed."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from toolbus import ToolError
from toolbus_workers.documents import FORMATS, ZIPPED, Document, Unreadable, format_of, read
from toolbus_workers.sandbox import Entry, Root
from toolbus_workers.text import parts

_logger = logging.getLogger("toolbus.knowledge")

MAX_FILES = 50_000
PASSAGE = 800
MAX_TERMS = 32
MAX_TERM = 64

_SCHEMA = """
CREATE TABLE documents (
    id TEXT PRIMARY KEY, path TEXT, title TEXT, format TEXT, size INTEGER, modified REAL, characters INTEGER, passages INTEGER, error TEXT,
    encoding TEXT);
CREATE TABLE passages (id INTEGER PRIMARY KEY, document TEXT, number INTEGER, line INTEGER, text TEXT);
CREATE INDEX of_document ON passages (document, number);
CREATE VIRTUAL TABLE words USING fts5 (text, title, tokenize = 'porter unicode61 remove_diacritics 2');
"""
_PHRASE = re.compile(r'"([^"]*)"|([^"\s]+)')
_WORD = re.compile(r"[^\W_]+")
# In scripts without spaces between words, each character counts as a word.
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


class Info(NamedTuple):
    """A document in the index; ``error`` is the reason when its text could not be read, ``encoding`` the one that was assumed."""

    id: str
    path: str
    title: str
    format: str
    size: int
    modified: float
    characters: int
    passages: int
    error: str
    encoding: str


class Passage(NamedTuple):
    """A piece of a document's text; ``line`` is the line where it begins."""

    document: str
    number: int
    line: int
    text: str

    @property
    def id(self) -> str:
        """The passage's id: its document's id, and its number from 1."""
        return f"{self.document}:{self.number}"


class Statistics(NamedTuple):
    """The numbers of documents in the index, readable or not, and of those left out because of its limits."""

    documents: int
    left_out: int


class Index:
    """The documents below one root.

    Every method may be called from any thread; they use the database one at a time.
    """

    def __init__(self, root: Root, *, most_documents: int, most_document: int, most_text: int, rescan: float) -> None:
        self._root = root
        self._most_documents = most_documents
        self._most_document = most_document
        self._most_text = most_text
        self._rescan = rescan
        self._lock = threading.Lock()
        self._known: dict[str, tuple[int, int, int]] = {}
        self._left_out = 0
        self._scanned = -rescan
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the index."""
        with self._lock:
            self._database.close()

    def refresh(self, check: Callable[[], None], seconds: float) -> Statistics:
        """Update the index with the changes in the folder since the last time.

        ``check`` is called between files and may raise to stop the update; finished files stay in the index.

        Raises:
            ToolError: another call is still updating, or the root can't be read.
        """
        if not self._lock.acquire(timeout=max(0.0, seconds)):
            message = "the documents are still being indexed; try again in a few seconds"
            raise ToolError(message, type="unavailable", code="indexing", retryable=True, retry_after=5.0)
        try:
            if time.monotonic() - self._scanned >= self._rescan:
                self._scan(check)
                self._scanned = time.monotonic()
            (documents,) = self._database.execute("SELECT count(*) FROM documents").fetchone()
            return Statistics(documents, self._left_out)
        finally:
            self._lock.release()

    def search(self, query: str, collection: str, most: int) -> list[tuple[int, float]]:
        """Return the best passages for a query: their places in the index, and scores (higher is better).

        Raises:
            ToolError: the query contains no word.
        """
        expression = _expression(query)
        sql = (
            "SELECT words.rowid, bm25(words, 1.0, 0.5) AS score FROM words JOIN passages ON passages.id = words.rowid "
            "JOIN documents ON documents.id = passages.document WHERE words MATCH ? AND substr(documents.path, 1, ?) = ? "
            "ORDER BY score, documents.path, passages.number LIMIT ?"
        )
        with self._lock:
            found = self._database.execute(sql, (expression, len(collection), collection, most)).fetchall()
        return [(place, round(-score, 6)) for place, score in found]

    def passage(self, place: int) -> tuple[Passage, Info] | None:
        """Return a passage and its document, or None when the file has changed."""
        with self._lock:
            row = self._database.execute("SELECT document, number, line, text FROM passages WHERE id = ?", (place,)).fetchone()
            info = row and self._database.execute("SELECT * FROM documents WHERE id = ?", (row[0],)).fetchone()
        return None if info is None else (Passage(*row), Info(*info))

    def document(self, id: str, collection: str) -> Info | None:
        """Return a document of a collection, or None."""
        with self._lock:
            row = self._database.execute("SELECT * FROM documents WHERE id = ?", (id,)).fetchone()
        info = None if row is None else Info(*row)
        return info if info is not None and info.path.startswith(collection) else None

    def passages(self, document: str, first: int, most: int) -> list[Passage]:
        """Return passages of a document, starting at a number."""
        sql = "SELECT document, number, line, text FROM passages WHERE document = ? AND number >= ? ORDER BY number LIMIT ?"
        with self._lock:
            return [Passage(*row) for row in self._database.execute(sql, (document, first, most)).fetchall()]

    def skipped(self, collection: str, most: int) -> tuple[int, list[Info]]:
        """Return the number of unreadable documents in a collection, and the first of them by path."""
        where = "FROM documents WHERE error != '' AND substr(path, 1, ?) = ?"
        with self._lock:
            (count,) = self._database.execute(f"SELECT count(*) {where}", (len(collection), collection)).fetchone()
            sql = f"SELECT * {where} ORDER BY path LIMIT ?"
            return count, [Info(*row) for row in self._database.execute(sql, (len(collection), collection, most)).fetchall()]

    def _scan(self, check: Callable[[], None]) -> None:
        found = [entry for entry in self._root.walk(MAX_FILES) if format_of(entry.path) in FORMATS]
        kept = {entry.path: entry for entry in found[: self._most_documents]}
        self._left_out = len(found) - len(kept)
        for path in [path for path in self._known if path not in kept]:
            self._forget(path)
        (total,) = self._database.execute("SELECT coalesce(sum(characters), 0) FROM documents").fetchone()
        for path, entry in kept.items():
            if self._known.get(path) == entry.identity:
                continue
            check()
            total -= self._forget(path)
            total += self._take_in(entry, self._most_text - total)
            self._known[path] = entry.identity

    def _forget(self, path: str) -> int:
        """Drop a document and return its number of characters."""
        document = document_id(path)
        self._known.pop(path, None)
        row = self._database.execute("SELECT characters FROM documents WHERE id = ?", (document,)).fetchone()
        if row is None:
            return 0
        self._database.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM passages WHERE document = ?)", (document,))
        self._database.execute("DELETE FROM passages WHERE document = ?", (document,))
        self._database.execute("DELETE FROM documents WHERE id = ?", (document,))
        return int(row[0])

    def _take_in(self, entry: Entry, room: int) -> int:
        """Add a document, readable or not, and return its number of characters."""
        try:
            found = self._read(entry, room)
            self._add(entry, found.title, len(found.text), list(_pieces(found.text)), encoding=found.assumed)
        except Unreadable as reason:
            error = str(reason)
        except ToolError as reason:
            error = reason.error.message
        except Exception as reason:  # noqa: BLE001 - no file may make the others unsearchable
            error = f"it can't be read ({type(reason).__name__})"
        else:
            return len(found.text)
        self._add(entry, entry.path.rpartition("/")[2], 0, [], error)
        _logger.warning("%s is left out of the index: %s", json.dumps(entry.path), error)
        return 0

    def _add(self, entry: Entry, title: str, characters: int, pieces: list[tuple[int, str]], error: str = "", encoding: str = "") -> None:
        document = document_id(entry.path)
        described = (
            document,
            entry.path,
            title,
            format_of(entry.path),
            entry.size,
            entry.modified,
            characters,
            len(pieces),
            error,
            encoding,
        )
        with self._database as database:
            database.execute("BEGIN")
            database.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", described)
            for number, (line, piece) in enumerate(pieces, 1):
                made = database.execute(
                    "INSERT INTO passages (document, number, line, text) VALUES (?, ?, ?, ?)", (document, number, line, piece)
                )
                words = (made.lastrowid, _spaced(piece), _spaced(title))
                database.execute("INSERT INTO words (rowid, text, title) VALUES (?, ?, ?)", words)

    def _read(self, entry: Entry, room: int) -> Document:
        if entry.size > self._most_document:
            raise Unreadable(f"it has {entry.size:,} bytes; at most {self._most_document:,} are read")
        with self._root.open(entry.path) as (file, _):
            content = file.read(self._most_document + 1)
        # A packed file may hold much more text than its size.
        most = min(self._most_document, len(content) * (20 if format_of(entry.path) in ZIPPED else 1))
        found = read(content, entry.path, most)
        if len(found.text) > room:
            raise Unreadable("the index is full; an operator may raise its limit of text")
        # The database can't store lone surrogates, which UTF-16 text may contain.
        title, text = (part.encode("utf-8", "replace").decode() for part in (found.title, found.text))
        return Document(title, text, found.assumed)


def document_id(path: str) -> str:
    """Return the id of the document at a path: the same in every worker, and after every restart."""
    return f"d{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}"


def _pieces(text: str) -> list[tuple[int, str]]:
    """Return the passages of a text with the lines where they begin."""
    found: list[tuple[int, str]] = []
    line = 1
    for piece in parts(text, PASSAGE):
        stripped = piece.strip()
        if stripped:
            found.append((line + piece[: len(piece) - len(piece.lstrip())].count("\n"), stripped))
        line += piece.count("\n")
    return found


def _spaced(text: str) -> str:
    return _UNSPACED.sub(r" \g<0> ", text)


def _expression(query: str) -> str:
    """Return a query in the index's language: every word and phrase in quotes, so that nothing in it is syntax.

    Raises:
        ToolError: the query contains no word.
    """
    terms: dict[str, None] = {}
    for phrase, word in _PHRASE.findall(query):
        # Words that are joined by hyphens and the like become a phrase.
        words = _WORD.findall(_spaced(phrase or word))[:MAX_TERMS]
        if words:
            terms['"' + " ".join(each[:MAX_TERM] for each in words) + '"'] = None
        if len(terms) == MAX_TERMS:
            break
    if not terms:
        message = 'the query holds no word to search for; give a few words of what the text may say, a "phrase in quotes" as one'
        raise ToolError(message, type="invalid_arguments", code="bad_query")
    return " OR ".join(terms)
