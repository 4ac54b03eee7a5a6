"""``Windows``: every window of a contact, in one folder."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from toolbus import telemetry
from toolbus.im.frames import BadFrame, Message
from toolbus.im.window import Window, chat_of, folder_of
from toolbus.results import ConfigurationError

MOST = 1_000
"""Most windows of one contact."""

_WINDOWS = "windows"
# Begins the ids of shared windows. No sender's name begins so: it is written without such characters.
_SHARED = "*/"
_MOST_OWNER, _MOST_ID = 100, 255


class Windows:
    """The windows of a contact, for ``with``; one process at a time has them.

    A window is that of who speaks in it: a window of the same name that another sender names is another one, with a memory of its own.

    Args:
        folder: in which each has a folder of its own.
        shared: names of windows that all senders share.

    Raises:
        ConfigurationError: the folder can't be used, or another process uses it.
    """

    def __init__(self, folder: Path, shared: Collection[str] = ()) -> None:
        self._folder = folder
        self._shared = frozenset(shared)
        self._lock = -1
        self._windows: dict[str, Window] = {}

    def __enter__(self) -> Self:
        try:
            (self._folder / _WINDOWS).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigurationError(f"the windows can't be kept in {self._folder}: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ConfigurationError(f"another process keeps its windows in {self._folder}; stop it, or choose another --state") from None
        for each in sorted((self._folder / _WINDOWS).iterdir()):
            if each.is_dir():
                self._keep(each)
        return self

    def _keep(self, folder: Path) -> None:
        """Go on with a window; one that can't be used keeps nobody else's messages from being answered."""
        try:
            window = Window(folder, chat_of(folder))
        except ConfigurationError as error:
            telemetry.log.error("im.unreadable", chat=chat_of(folder), file=folder.name, error=str(error))
        else:
            self._windows[window.chat_id] = window

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._lock)

    @property
    def ids(self) -> list[str]:
        """The ids of the windows, which are chats of the service agent."""
        return list(self._windows)

    @property
    def names(self) -> list[str]:
        """The names of the windows in the messenger, each once."""
        return list(dict.fromkeys(each.name for each in self._windows.values()))

    def all(self) -> list[Window]:
        """Return the windows."""
        return list(self._windows.values())

    def of(self, message: Message) -> list[Window]:
        """Return the windows that a message is for: its sender's of that name, which opens with it, or all that its sender has or shares.

        With no window to be found, one opens for the sender's.

        Raises:
            BadFrame: there would be too many windows, or one has too many messages that wait.
        """
        owners = _owner(message), _SHARED
        found = [each for chat_id, each in self._windows.items() if chat_id.startswith(owners)]
        if message.receiver_chat_id or not found:
            found = [self._opened(message.receiver_chat_id or message.sender_chat_id or "main", message)]
        full = next((each.name for each in found if each.full), None)
        if full is not None:
            raise BadFrame(f"the window {full!r} has too many messages that wait for their answers; send it again later", message.id)
        return found

    def _opened(self, name: str, message: Message) -> Window:
        chat_id = _bounded(f"{_SHARED if name in self._shared else _owner(message)}{name}")
        window = self._windows.get(chat_id)
        if window is None:
            if len(self._windows) >= MOST:
                raise BadFrame(f"there are {MOST} windows already", message.id)
            window = self._windows[chat_id] = Window(self._folder / _WINDOWS / folder_of(chat_id), chat_id, name)
        return window


def _owner(message: Message) -> str:
    """Return the beginning of the ids of a sender's windows; it ends with the only slash in it."""
    return f"{_bounded(quote(message.sender or message.sender_chat_id, safe=''), _MOST_OWNER)}/"


def _bounded(text: str, most: int = _MOST_ID) -> str:
    """Return a text that stands for this one alone, and has no more characters than that."""
    if len(text) <= most:
        return text
    return f"{text[: most - 33]}~{hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"
