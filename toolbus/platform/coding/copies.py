"""Copies of tools' code in the folder where hosts find them: one folder for each form of a tool, which never changes."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import shutil
import time
from pathlib import Path

import msgspec

from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.bus.values.settings import Settings
from toolbus.bus.values.urls import redact
from toolbus.platform.coding.files import Folder
from toolbus.platform.documents import MOST_BYTES, digest_of_folder, files_of
from toolbus.platform.lockfiles import check_locked
from toolbus.platform.store import Snapshot

STAGING = ".new"
"""Folder below that of the tools where copies stand until they have their names."""

LAST = ("pyproject.toml", "Dockerfile")
"""Files of a project that are brought last, so that one of them tells that all are there."""

# Digits of a digest that name a folder.
_DIGITS = 16


class Copy:
    """The code of a project, copied to a folder of its own beside the tools until ``place`` gives it its name.

    Args:
        files: of the workspace.
        project: its folder there.
        tools: folder of all tools.
        locked: whether the project must name all that it depends on; a container's image holds that itself.

    Attributes:
        digest: of the code.
        folder: that it stands in until ``place``.

    Raises:
        ToolError: the project has something that is no code, too much of it, or depends on code that can change.
    """

    def __init__(self, files: Folder, project: str, tools: Path, *, locked: bool = True) -> None:
        self._tools = tools
        self.folder = tools / STAGING / secrets.token_hex(8)
        try:
            self.folder.mkdir(parents=True)
            self._copy(files, project)
            self.digest = digest_of_folder(self.folder)
            if locked:
                check_locked(self.folder)
        except OSError as error:
            self.discard()
            message = f"the folder of tools {str(tools)!r} can't be written at the coding agent: {error.strerror}"
            raise ToolError(message, type="unavailable", code="no_tools_folder") from None
        except ConfigurationError as error:
            self.discard()
            raise ToolError(str(error).replace(str(self.folder), project), type="invalid_arguments", code="bad_project") from None
        except BaseException:
            self.discard()
            raise

    def place(self, tool_id: str) -> Path:
        """Give it its name among the forms of a tool, and return the folder."""
        place = self._tools / tool_id / self.digest[:_DIGITS]
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.folder.rename(place)
        except OSError:
            # It is there already, or what is there has been changed.
            if not place.is_dir() or digest_of_folder(place) == self.digest:
                return place
            shutil.rmtree(place)
            self.folder.rename(place)
        return place

    def discard(self) -> None:
        """Remove it, unless it has its name."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _copy(self, files: Folder, project: str) -> None:
        left = MOST_BYTES
        for name in files_of(files.folder(project)):
            data, size = files.read(f"{project}/{name}", left + 1)
            left -= size
            if left < 0:
                raise ConfigurationError(f"the project has more than {MOST_BYTES:,} bytes")
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(0o755 if Path(files.path, project, name).stat(follow_symlinks=False).st_mode & 0o100 else 0o644)
        # Hosts that are the superuser run it as another user.
        for each in (self.folder, *filter(Path.is_dir, self.folder.rglob("*"))):
            each.chmod(0o755)


def digest_in(files: Folder, project: str) -> str:
    """Return the digest of a project's code as it is in the workspace now."""
    return digest_of_folder(files.folder(project))


def bring_code(folder: str, files: Folder, project: str) -> int:
    """Copy the code of a tool into a workspace; return the number of its files.

    Raises:
        ConfigurationError: the folder can't be read as code.
        ToolError: the workspace has no room.
        OSError: a file can't be read.
    """
    names = files_of(folder)
    for name in sorted(names, key=LAST.__contains__):
        files.write(f"{project}/{name}", Path(folder, name).read_bytes())
    return len(names)


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
