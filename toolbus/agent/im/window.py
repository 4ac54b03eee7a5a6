"""Windows of a messenger's chats on the disk, and the frames of its WebSocket: read with bounds, and written."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote, unquote

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.support.display import one_line, visible
from toolbus.bus.support.files import append, lock, replace
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ConfigurationError

MOST_FRAME = 1_048_576
"""Most bytes of a frame that is read_frame; a longer one is skipped."""

MOST_TEXT = 100_000
"""Most characters of a message."""

_MOST_ID = 255
_MOST_NAME = 255
_MOST_SHOWN = 120


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message to this contact.

    Attributes:
        id: unique among the messages of its sender's window; one that comes again is the same message.
        sender: the name of its sender.
        sender_chat_id: the sender's window, to which the answer goes.
        receiver_chat_id: the window of ours that it is for; empty for all of them.
    """

    id: str
    content: str
    sender: str = ""
    sender_chat_id: str = ""
    receiver_chat_id: str = ""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; its ``id`` is the same whenever it is sent again."""

    id: str
    reply_to: str
    sender: str
    sender_chat_id: str
    receiver: str
    receiver_chat_id: str
    content: str
    type: Literal["message"] = "message"


class _Frame(msgspec.Struct):
    type: str = "message"


class BadFrame(Exception):
    """A frame can't be used; the text says why. ``id`` is that of its message, as far as it is known."""

    def __init__(self, reason: str, id: str = "") -> None:
        super().__init__(reason)
        self.id = id


_IGNORED = frozenset({"ack", "registered", "ping", "pong", "error"})


def read_frame(data: str | bytes) -> Message | None:
    """Return the message that a frame is; None for a frame of another known kind.

    Raises:
        BadFrame: it is none, or goes beyond a bound.
    """
    if isinstance(data, bytes):
        raise BadFrame("a binary frame; messages are JSON texts")
    if len(data) > MOST_FRAME:
        raise BadFrame(f"a frame of {len(data):,} characters; the most is {MOST_FRAME:,}")
    try:
        kind = msgspec.json.decode(data, type=_Frame).type
    except DECODE_ERRORS as error:
        raise BadFrame(f"no JSON object of a frame: {one_line(str(error), _MOST_SHOWN)}") from None
    if kind in _IGNORED:
        return None
    if kind != "message":
        raise BadFrame(f"a frame of the unknown type {one_line(kind, _MOST_SHOWN)!r}")
    try:
        message = msgspec.json.decode(data, type=Message)
    except DECODE_ERRORS as error:
        raise BadFrame(f"no message: {one_line(str(error), _MOST_SHOWN)}") from None
    _check(message)
    return message


def _check(message: Message) -> None:
    if not message.id or len(message.id) > _MOST_ID:
        raise BadFrame(f"the id of a message has 1 to {_MOST_ID} characters")
    names = {"sender": message.sender, "sender_chat_id": message.sender_chat_id, "receiver_chat_id": message.receiver_chat_id}
    for name, value in names.items():
        if len(value) > _MOST_NAME or visible(value) != value:
            raise BadFrame(f"{name} has at most {_MOST_NAME} characters, and none that is invisible", message.id)
    if not message.content.strip():
        raise BadFrame("the message is empty", message.id)
    if len(message.content) > MOST_TEXT:
        raise BadFrame(f"the message has {len(message.content):,} characters; the most is {MOST_TEXT:,}", message.id)


def complaint(error: BadFrame) -> str:
    """Return the frame that tells what was wrong with one."""
    return frame({"type": "error", "id": error.id, "message": str(error)})


def frame(value: Any) -> str:
    """Return the frame of an answer, or of any other value."""
    return msgspec.json.encode(value).decode()


def lines(path: Path, most: int) -> Iterator[bytes]:
    """Yield the last lines of a file, within so many bytes of its end.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        if size > most:
            file.readline()
        yield from file


MOST_PENDING = 1_000
"""Most messages that wait for their answers in one window."""

# A message is known again by the last bytes of the chatbox.
_MOST_READ = 4_194_304
_LONGEST_NAME = 200

_Key = tuple[str, str, str]
"""The sender of a message, its window, and its id there."""


class Pending(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message that was not answered for good yet; ``answer`` is set once it is known."""

    message: Message
    answer: str | None = None


class _Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line of the chatbox; for an answer ``id`` is that of its message, and ``to`` is who sent that."""

    kind: Literal["message", "answer"]
    id: str
    sender: str
    sender_chat_id: str
    content: str
    at: float
    to: str = ""


class _Kept(msgspec.Struct):
    chat_id: str
    pending: list[Pending] = []
    name: str = ""


class Window:
    """One window: ``pending.json`` has what is to be answered, ``chatbox.jsonl`` what was said.

    A message is in ``pending.json`` before its sender is told that it is kept, and leaves it after its answer stands in the chatbox, which
    is after it was sent. A crash at any moment leaves either a message to be answered, or an answer to be sent (again, with the same
    id), or nothing to do.

    Args:
        folder: the window's own.
        chat_id: its id: the chat of the service agent, so that each has a memory of its own.
        name: of the window in the messenger; that which was kept, or else the id, when left out.

    Attributes:
        chat_id: its id.
        name: of the window in the messenger.
        pending: the messages to be answered, the oldest first.

    Raises:
        ConfigurationError: the folder can't be used.
    """

    def __init__(self, folder: Path, chat_id: str, name: str = "") -> None:
        self._pending_file = folder / "pending.json"
        self._chatbox = folder / "chatbox.jsonl"
        self.chat_id = chat_id
        self.name = name
        self.pending: list[Pending] = []
        self._known: set[_Key] = set()
        self._answered: set[_Key] = set()
        try:
            if any(each.is_symlink() for each in (folder, self._pending_file, self._chatbox)):
                raise ConfigurationError(
                    f"the window {chat_id!r} can't be kept in {folder}: it has a link, which could lead anywhere; remove it"
                )
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in folder.glob(f".{self._pending_file.name}.*"):
                left.unlink()
            if append(self._chatbox, b""):
                telemetry.log.warning("im.mended", chat=chat_id)
            self._read()
        except OSError as error:
            raise ConfigurationError(f"the window {chat_id!r} can't be kept in {folder}: {error.strerror}") from None

    def take(self, message: Message) -> bool:
        """Keep a message; False when it is known already.

        Raises:
            OSError: it can't be kept.
        """
        key = _key(message)
        if key in self._known:
            return False
        self.pending.append(Pending(message=message))
        try:
            self._write_pending()
        except OSError:
            self.pending.pop()
            raise
        self._known.add(key)
        self._log("message", message, message.sender, message.content)
        return True

    @property
    def full(self) -> bool:
        """True while no further message is taken, until some are answered."""
        return len(self.pending) >= MOST_PENDING

    def answer(self, entry: Pending, text: str) -> None:
        """Keep the answer of a message, which was not sent yet.

        Raises:
            OSError: it can't be kept.
        """
        entry.answer = text
        self._write_pending()

    def reply(self, entry: Pending, contact: str) -> Reply:
        """Return the frame of an answer, the same whenever it is made."""
        message = entry.message
        words = "\0".join((contact, self.chat_id, message.sender, message.sender_chat_id, message.id))
        made = hashlib.blake2b(words.encode(), digest_size=12).hexdigest()
        return Reply(
            id=f"answer-{made}",
            reply_to=message.id,
            sender=contact,
            sender_chat_id=self.name,
            receiver=message.sender,
            receiver_chat_id=message.sender_chat_id,
            content=entry.answer or "",
        )

    def sent(self, entry: Pending, contact: str) -> None:
        """Take note that an answer was sent.

        Raises:
            OSError: it can't be kept.
        """
        self._log("answer", entry.message, contact, entry.answer or "")
        self.pending.remove(entry)
        self._write_pending()

    # -- the disk ---------------------------------------------------------------------------------

    def _read(self) -> None:
        kept = self._stored()
        self.name = self.name or kept.name or self.chat_id
        for line in lines(self._chatbox, _MOST_READ):
            try:
                entry = msgspec.json.decode(line, type=_Entry)
            except DECODE_ERRORS:
                telemetry.log.warning("im.unreadable", chat=self.chat_id, file=self._chatbox.name)
                continue
            key = entry.to if entry.kind == "answer" else entry.sender, entry.sender_chat_id, entry.id
            self._known.add(key)
            if entry.kind == "answer":
                self._answered.add(key)
        logged = set(self._known)
        self.pending = [each for each in kept.pending if _key(each.message) not in self._answered]
        for each in self.pending:
            self._known.add(_key(each.message))
            if _key(each.message) not in logged:
                self._log("message", each.message, each.message.sender, each.message.content)
        self._write_pending()

    def _stored(self) -> _Kept:
        if not self._pending_file.exists():
            return _Kept(self.chat_id)
        data = self._pending_file.read_bytes()
        try:
            return msgspec.json.decode(data, type=_Kept)
        except DECODE_ERRORS as error:
            aside = self._pending_file.with_name("pending.unreadable.json")
            self._pending_file.replace(aside)
            telemetry.log.error("im.unreadable", chat=self.chat_id, file=aside.name, error=str(error))
            return _Kept(self.chat_id)

    def _write_pending(self) -> None:
        replace(self._pending_file, msgspec.json.format(msgspec.json.encode(_Kept(self.chat_id, self.pending, self.name))))

    def _log(self, kind: Literal["message", "answer"], message: Message, sender: str, content: str) -> None:
        to = message.sender if kind == "answer" else ""
        entry = _Entry(
            kind=kind, id=message.id, sender=sender, sender_chat_id=message.sender_chat_id, content=content, at=time.time(), to=to
        )
        append(self._chatbox, msgspec.json.encode(entry) + b"\n")


def folder_of(chat_id: str) -> str:
    """Return the name of a window's folder, which stands for one id alone and leads nowhere else."""
    name = quote(chat_id, safe="").replace(".", "%2E")
    if len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 34]}~{hashlib.blake2b(chat_id.encode(), digest_size=16).hexdigest()}"


def chat_of(folder: Path) -> str:
    """Return the id of the window that a folder is of."""
    try:
        return msgspec.json.decode((folder / "pending.json").read_bytes(), type=_Kept).chat_id
    except (OSError, *DECODE_ERRORS):
        return unquote(folder.name)


def _key(message: Message) -> _Key:
    return message.sender, message.sender_chat_id, message.id


MOST = 1_000
"""Most windows of one contact."""

_WINDOWS = "windows"
# Begins the ids of shared windows. No sender's name begins so: it is written without such characters.
_SHARED = "*/"
_MOST_OWNER = 100


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
            self._lock = lock(self._folder / "lock", within=0.0)
        except BlockingIOError:
            raise ConfigurationError(f"another process keeps its windows in {self._folder}; stop it, or choose another --state") from None
        except OSError as error:
            raise ConfigurationError(f"the windows can't be kept in {self._folder}: {error.strerror}") from None
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
