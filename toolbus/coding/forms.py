"""``Forms``: which folders of tools' code a deployment has made, and the removal of those that no record names."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from pathlib import Path

import msgspec

from toolbus.platform.store import Snapshot
from toolbus.settings import Settings
from toolbus.urls import redact

NOTES = ".forms"
"""Folder below that of the tools: for each deployment, a file for each form that it has made."""

# Programs of a former revision may run, and records that were exported may come back, for so many seconds.
_KEPT = 14 * 86_400.0
_NAMED, _UNNAMED = "", "unnamed"


class Forms:
    """The forms that one namespace of one server has made; what others made in the same folder is never touched.

    Args:
        tools: folder of the tools, with a folder ``<tool>/<digest>`` for each form.
        settings: name the server and the namespace.
    """

    def __init__(self, tools: Path, settings: Settings) -> None:
        self._tools = tools
        whose = f"{redact(settings.url)} {settings.namespace}".encode()
        self._notes = tools / NOTES / hashlib.blake2b(whose, digest_size=8).hexdigest()

    def note(self, form: Path) -> None:
        """Note that a form is this deployment's; one without a note is kept for good."""
        note = self._notes / form.relative_to(self._tools)
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(_NAMED)

    def clean(self, found: Snapshot) -> None:
        """Remove forms that no record, approved or pending, has named for two weeks."""
        records = msgspec.json.encode([*found.tools.values(), *found.pending.values()])
        # One that can't be read may name any form of its tool.
        unknown = {each.key.partition("/")[2] for each in found.refused}
        for note in list(self._notes.glob("*/*")):
            tool, digest = note.parent.name, note.name
            # Another process may clean at the same time.
            with contextlib.suppress(OSError):
                if tool in unknown or digest.encode() in records:
                    note.write_text(_NAMED)
                elif note.read_text() != _UNNAMED:
                    note.write_text(_UNNAMED)
                elif time.time() - note.stat().st_mtime > _KEPT:
                    note.unlink()
                    self._remove(tool, digest)

    def _remove(self, tool: str, digest: str) -> None:
        # The same code may be another deployment's, too.
        if not any((self._tools / NOTES).glob(f"*/{tool}/{digest}")):
            shutil.rmtree(self._tools / tool / digest, ignore_errors=True)
