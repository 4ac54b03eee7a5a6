"""Copies of tools' code in the folder where hosts find them: one folder for each form of a tool, which never changes."""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

from toolbus.coding.workspace.files import Folder
from toolbus.platform.digests import MOST_BYTES, digest_of_folder, files_of
from toolbus.platform.lockfiles import check_locked
from toolbus.results import ConfigurationError, ToolError

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
