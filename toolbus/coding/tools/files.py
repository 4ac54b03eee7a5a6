"""The tools for files in a task's workspace."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec

from toolbus.coding.workspace.workspace import Workspace
from toolbus.results import ToolError, ToolResult

_MOST_READ = 4 << 20
_MOST_LINES = 2_000
_MOST_CHARACTERS = 60_000

Lines = Annotated[int, msgspec.Meta(ge=1, le=_MOST_LINES)]


class FileTools:
    """The tools ``write_file`` and ``read_file``."""

    def __init__(self, workspace: Workspace) -> None:
        self._files = workspace.files

    async def write_file(self, path: str, content: str, mode: Literal["overwrite", "append"] = "overwrite") -> ToolResult:
        """Write a text file in the workspace; the folders on its way are made.

        Args:
            path: relative to the workspace, like stitcher/main.py
            content: the text
            mode: overwrite writes the whole file anew, append adds to its end
        """
        try:
            data = content.encode()
        except UnicodeEncodeError:
            raise ToolError(
                "the content holds half of a character (a lone surrogate): leave it out", type="invalid_arguments", code="bad_text"
            ) from None
        size = await asyncio.to_thread(self._files.write, path, data, append=mode == "append")
        return ToolResult.ok({"path": path, "bytes": size}, output=f"{path} has {size:,} bytes now")

    async def read_file(self, path: str, first_line: Annotated[int, msgspec.Meta(ge=1)] = 1, lines: Lines = 500) -> ToolResult:
        """Read lines of a text file in the workspace.

        Args:
            path: relative to the workspace
            first_line: the first line wanted, from 1
            lines: how many are wanted
        """
        data, size = await asyncio.to_thread(self._files.read, path, _MOST_READ)
        if b"\0" in data[:8_000]:
            raise ToolError(f"{path!r} is no text file: it has {size:,} bytes, among them zeros", code="no_text")
        whole = data.decode("utf-8", "replace").splitlines(keepends=True)
        text = "".join(whole[first_line - 1 : first_line - 1 + lines])
        last = min(first_line - 1 + lines, len(whole))
        if len(text) > _MOST_CHARACTERS:
            text = text[:_MOST_CHARACTERS]
            last = first_line - 1 + len(text.splitlines())
            text += "\n[… the rest is left out: ask for fewer lines …]"
        elif not text:
            text = f"[it has {len(whole)} lines, so none from {first_line} on]" if whole else "[it is empty]"
        elif last < len(whole):
            text += f"[… lines {last + 1} to {len(whole)} follow …]"
        elif len(data) < size:
            text += f"\n[… the file has {size:,} bytes; only the first {_MOST_READ:,} can be read …]"
        return ToolResult.ok({"path": path, "bytes": size, "first_line": first_line, "last_line": last, "lines": len(whole)}, output=text)
