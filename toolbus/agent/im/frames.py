"""Frames of the messenger's WebSocket: read with bounds, and written."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from toolbus.bus.support.display import one_line, visible

MOST = 1_048_576
"""Most bytes of a frame that is read; a longer one is skipped."""

MOST_TEXT = 100_000
"""Most characters of a message."""

_MOST_ID = 200
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


def read(data: str | bytes) -> Message | None:
    """Return the message that a frame is; None for a frame of another known kind.

    Raises:
        BadFrame: it is none, or goes beyond a bound.
    """
    if isinstance(data, bytes):
        raise BadFrame("a binary frame; messages are JSON texts")
    if len(data) > MOST:
        raise BadFrame(f"a frame of {len(data):,} characters; the most is {MOST:,}")
    try:
        kind = msgspec.json.decode(data, type=_Frame).type
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadFrame(f"no JSON object of a frame: {one_line(str(error), _MOST_SHOWN)}") from None
    if kind in _IGNORED:
        return None
    if kind != "message":
        raise BadFrame(f"a frame of the unknown type {one_line(kind, _MOST_SHOWN)!r}")
    try:
        message = msgspec.json.decode(data, type=Message)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
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


def registration(contact: str, windows: list[str]) -> str:
    """Return the first frame of a connection: who this is, and which windows it has."""
    return _text({"type": "register", "contact": contact, "windows": windows})


def acknowledgement(id: str) -> str:
    """Return the frame that tells that a message is kept, and need not be sent again."""
    return _text({"type": "ack", "id": id})


def complaint(error: BadFrame) -> str:
    """Return the frame that tells what was wrong with one."""
    return _text({"type": "error", "id": error.id, "message": str(error)})


def reply_text(reply: Reply) -> str:
    """Return the frame of an answer."""
    return _text(reply)


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
