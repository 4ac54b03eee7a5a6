"""Read files under one root folder by line ranges, and list folders.

``TOOLBUS_FILES_ROOT=/path toolbus worker file_read`` serves ``file_read`` and ``file_list``. No path leads out of the
root: neither ``..`` nor a link, not even one that is created while a file is being opened.
"""

from __future__ import annotations

import codecs
import io
import os
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgspec
from msgspec import Meta

from toolbus import ToolError, ToolResult, invocation
from toolbus_workers.charset import codec_of, likeliest
from toolbus_workers.operations import Config, OperationService, load_limits, operation
from toolbus_workers.sandbox import MAX_ENTRIES, Entry, Root, date, split

SETTINGS = {"TOOLBUS_FILES_ROOT": "the folder whose files can be read; required"}

MAX_LINES = 10_000
MAX_BYTES = 1_000_000
# Up to this many bytes into a file lines are counted; beyond, a position is given in bytes.
MAX_SCAN = 64 << 20
# Most bytes of a UTF-16 or UTF-32 file, which is converted to UTF-8 as a whole.
MAX_WIDE = 8 << 20

_CHUNK = 256 << 10
_HEAD = 8_192
_WIDE = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or an office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90", "a Windows program"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"PAR1", "a Parquet table"),
    (b"RIFF", "an audio, video or WebP file"),
    (b"OggS", "an Ogg audio file"),
    (b"ID3", "an MP3 audio file"),
    (b"\0asm", "a WebAssembly program"),
    (b"\xca\xfe\xba\xbe", "a Java class or a program"),
)


class FilesConfig(Config, frozen=True, kw_only=True):
    """The config values that a tool's descriptor may set.

    Attributes:
        folder: folder below the root where the tool's paths start; the root itself when empty.
        max_bytes: most bytes of text in one answer.
        max_entries: most entries of one listing.
    """

    folder: str = ""
    max_bytes: Annotated[int, Meta(ge=100, le=MAX_BYTES)] = 50_000
    max_entries: Annotated[int, Meta(ge=1, le=5_000)] = 500


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The root folder; read from ``TOOLBUS_FILES_ROOT``."""

    root: str = ""


class Part(NamedTuple):
    """Some lines of a file.

    Attributes:
        end: byte offset after them.
        whole: True when they end with a complete line.
        last: True when the file ends with them.
        assumed: encoding that was found out, or empty when the file is UTF-8 or its encoding was given.
    """

    text: str
    lines: int
    end: int
    whole: bool
    last: bool
    assumed: str


class FileRead(OperationService, config=FilesConfig):
    """Serves files under one root folder."""

    id = "file_read"

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = load_limits(Limits, "TOOLBUS_FILES_") if limits is None else limits

    @operation(group="files", timeout=30.0)
    def file_read(
        self,
        config: FilesConfig,
        path: str,
        start_line: Annotated[int, Meta(ge=1)] = 1,
        lines: Annotated[int, Meta(ge=1, le=MAX_LINES)] = 500,
        offset: Annotated[int, Meta(ge=0, le=1 << 60)] = 0,
        encoding: str = "",
    ) -> ToolResult:
        """Read lines of a text file; paths are relative to the root folder, see file_list.

        Args:
            path: the file, e.g. notes/today.md
            start_line: the first line to read, from 1, counted from offset
            lines: how many lines to read
            offset: the byte to begin at; next_offset of an earlier answer goes on where it ended
            encoding: the file's encoding, e.g. windows-1251 or gbk; when empty, it is UTF-8 or found out, and the answer says so
        """
        with self._root().open(_joined(config.folder, path)) as (opened, status):
            file = _as_utf8(opened, status.st_size)
            size = file.seek(0, os.SEEK_END)
            if offset > size:
                raise _wrong(f"the file has {size:,} bytes; give an offset up to that", "beyond_end")
            part = _lines(file, offset, start_line, lines, config.max_bytes, encoding)
        notes = []
        if not part.whole:
            notes.append(f"the last line is cut; go on with offset={part.end}")
        elif not part.last:
            notes.append(f"there is more; go on with {f'start_line={start_line + part.lines}' if not offset else f'offset={part.end}'}")
        if part.assumed:
            notes.append(f"the file is not UTF-8; it was read as {part.assumed}, so give its encoding if that looks wrong")
        data = {
            "path": path,
            "bytes": status.st_size,
            "modified": date(status.st_mtime),
            "start_line": start_line,
            "lines": part.lines,
            "next_offset": None if part.last else part.end,
            "text": part.text,
            "assumed_encoding": part.assumed,
        }
        separator = "" if part.text.endswith("\n") or not part.text else "\n"
        text = part.text or "(no text)\n"
        return ToolResult.ok(data, output=text + separator + "".join(f"({note})\n" for note in notes))

    @operation(group="files", timeout=30.0)
    def file_list(self, config: FilesConfig, path: str = "") -> ToolResult:
        """List a folder: its folders first, then its files with their sizes.

        Args:
            path: the folder, relative to the root folder; empty for the root folder itself
        """
        prefix = "/".join(split(config.folder))
        found, total = self._root().entries(_joined(config.folder, path), config.max_entries)
        entries = [_described(entry, prefix) for entry in found]
        rows = [f"{each['path']}{'/' if each['kind'] == 'folder' else _size(each)}" for each in entries]
        if total > len(found):
            count = f"more than {total - len(found)}" if total == MAX_ENTRIES else str(total - len(found))
            rows.append(f"({count} more entries are not listed; name a folder or a file in it)")
        data = {"path": path, "entries": entries, "total": total}
        return ToolResult.ok(data, output="\n".join(rows) or "The folder is empty.")

    def _root(self) -> Root:
        if not self._limits.root:
            message = "no root folder is set; an operator sets TOOLBUS_FILES_ROOT for the worker"
            raise ToolError(message, type="unavailable", code="no_root")
        return Root(self._limits.root)


def _joined(folder: str, path: str) -> str:
    """Join a path to the tool's own folder; each is checked separately, so that neither leads out of the other."""
    return "/".join([*split(folder), *split(path)])


def _as_utf8(file: BinaryIO, size: int) -> BinaryIO:
    """Return the file if it is text, converted to UTF-8 from UTF-16 or UTF-32.

    Raises:
        ToolError: the file is binary; the message names its kind.
    """
    head = file.read(_HEAD)
    for mark, encoding in _WIDE:
        if head.startswith(mark):
            if size > MAX_WIDE:
                raise _wrong(
                    f"the file is {encoding.upper()} and larger than {MAX_WIDE:,} bytes; it must be converted to UTF-8", "too_large"
                )
            file.seek(0)
            return io.BytesIO(file.read(MAX_WIDE + 1).decode(encoding, "replace").encode("utf-8", "replace"))
    for mark, kind in _MAGIC:
        if head.startswith(mark) and (b"\0" in head or not head.isascii() or kind == "a PDF document"):
            raise _binary(kind)
    if b"\0" in head:
        raise _binary("binary data" if head.strip(b"\0") else "empty space: its first bytes are all zero")
    return file


def _lines(file: BinaryIO, offset: int, start_line: int, lines: int, most: int, encoding: str) -> Part:
    """Return ``lines`` lines, at most ``most`` bytes, from a position on.

    Raises:
        ToolError: there is no such line, it is too far into the file, or the file is binary.
    """
    at = _place_of(file, offset, start_line)
    file.seek(at)
    content = file.read(most + 4)
    reached = len(content) <= most
    content = content[:most]
    if b"\0" in content:
        raise _binary("binary data")
    codec, assumed = _encoding(file, content, encoding)
    if not reached:
        content = _without_half(content, codec)
    end = 0
    count = 0
    while count < lines and (found := content.find(b"\n", end)) >= 0:
        end = found + 1
        count += 1
    if count < lines and end < len(content) and (reached or not count):
        # This is the last line of the file, or one that is longer than an answer may be.
        end = len(content)
        count += 1
    taken = content[:end]
    last = reached and end == len(content)
    whole = last or taken.endswith(b"\n")
    text = taken.removeprefix(codecs.BOM_UTF8) if not at else taken
    return Part(text.decode(codec, "replace").replace("\r\n", "\n"), count, at + end, whole, last, assumed)


def _place_of(file: BinaryIO, offset: int, start_line: int) -> int:
    """Return the byte offset at which a line begins; the first line begins at ``offset``."""
    file.seek(offset)
    at = offset
    left = start_line - 1
    call = invocation()
    while left:
        if at - offset >= MAX_SCAN:
            message = f"line {start_line} is more than {MAX_SCAN:,} bytes into the file; give a place in bytes with offset"
            raise _wrong(message, "too_far")
        call.check_cancelled()
        chunk = file.read(_CHUNK)
        found = chunk.count(b"\n")
        if found >= left:
            place = -1
            for _ in range(left):
                place = chunk.find(b"\n", place + 1)
            return at + place + 1
        if not chunk:
            raise _wrong(f"the file has no line {start_line}; it ends with line {start_line - left}", "beyond_end")
        left -= found
        at += len(chunk)
    return at


def _without_half(content: bytes, codec: str) -> bytes:
    """Return the bytes without a character that was cut at their end."""
    decoder = codecs.getincrementaldecoder(codec)("replace")
    decoder.decode(content)
    half = len(decoder.getstate()[0])
    return content[: len(content) - half] if half < len(content) else content


def _encoding(file: BinaryIO, content: bytes, encoding: str) -> tuple[str, str]:
    """Return the codec of a file's part, and the encoding that was assumed, if any.

    Raises:
        ToolError: the given encoding is unknown, or the file is not UTF-8 and several encodings are as likely.
    """
    if encoding:
        return codec_of(encoding), ""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(content)
    except UnicodeDecodeError:
        # All parts of a file are read alike, so its beginning decides where it can.
        file.seek(0)
        head = file.read(MAX_BYTES)
        found = likeliest(content if head.isascii() else head)
        return found, "" if found == "utf-8" else found
    return "utf-8", ""


def _described(entry: Entry, prefix: str) -> dict[str, Any]:
    path = entry.path.removeprefix(f"{prefix}/") if prefix else entry.path
    return {"path": path, "kind": entry.kind, "bytes": entry.size, "modified": date(entry.modified)}


def _size(entry: dict[str, Any]) -> str:
    return f" ({entry['bytes']:,} bytes)" if entry["kind"] == "file" else f" ({entry['kind']}, which can't be read)"


def _binary(kind: str) -> ToolError:
    return _wrong(f"the file is {kind}, not text; choose a text file, or a tool for its kind", "binary")


def _wrong(message: str, code: str) -> ToolError:
    return ToolError(message, type="invalid_arguments", code=code)
