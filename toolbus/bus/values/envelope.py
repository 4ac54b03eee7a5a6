"""Requests and frames: the messages between agents and workers, and their codec.

Both are JSON documents. Unknown fields are ignored, so either side may be
newer than the other. docs/protocol.md specifies them for other languages.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values import encoding
from toolbus.bus.values.canonical import digest, digests
from toolbus.bus.values.encoding import DECODE_ERRORS, encode_json, whole_text
from toolbus.bus.values.results import Blob, EnvelopeError, ErrorInfo, Progress, ResultMeta, ToolResult

OLDEST, VERSION = 1, 1
"""The versions of the protocol that this release reads. It writes the one that the namespace is of."""
# Bytes of frames that are sent in one entry.
_MOST_TOGETHER = 262_144
# Frames of one entry that can't be decoded; the rest of it is not looked at.
_MOST_PROBLEMS = 1_000
NOT_BEGUN = "not_begun"
"""Error code of a cancellation that came before the handler started, so nothing was done."""
NOT_TAKEN = "not_taken"
"""Error code of a call whose time was up before a worker ran it."""
NOT_FINISHED = "not_finished"
"""Error code of a call whose time was up while a worker had it."""
BEGAN_LATE = "began_late"
"""Error code of a call whose time was up while it ran, most of which it had waited: for a free slot, or for any worker at all."""
REQUEST_TOO_LARGE = "request_too_large"
"""The code of a call that was not published, since it has more bytes than a request may have."""

FRAMES_REFUSED = "frames_refused"
"""The code of an end that stands for frames before it, too, which the server did not take."""

SESSION_LOST = "session_lost"
"""Error code of a call that was not run, or not run again, since the state of its session was lost."""
NEW_STATE = "new"
"""The state that a call names when its caller has closed the session before: it is meant for none that was."""

EntryNumbers = tuple[int, ...]
"""The numbers of an entry's id, by which entries are in order; empty before all."""


def numbers_of(entry: bytes) -> EntryNumbers:
    """Return the numbers of an entry's id."""
    return tuple(map(int, entry.split(b"-")))


_is_ident = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch


def is_ident(value: str) -> bool:
    """Return whether a text can be a call id or agent id; keys are made from both."""
    # Ids that toolbus generates need no pattern, which would take three times as long.
    return (value.isalnum() and value.isascii() and len(value) <= 64) or _is_ident(value) is not None


FrameKind = Literal["start", "text", "progress", "blob", "output", "data", "reset", "confirm", "end"]


class Request(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One call on its way to a service. It is never part of a reference cycle, so the garbage collector skips it.

    Attributes:
        id: correlation id, at least 128 random bits.
        agent: the caller's agent id. Workers derive the reply stream from it; a request never names a key. Empty: send no reply.
        service: the service's id.
        tool: the tool's name; empty for the untyped lower tier.
        user: the tenant that the call runs for.
        session: the agent's session, or empty.
        config: values of the service's config params, from the tool descriptor.
        arguments: the arguments from the model.
        timeout: seconds from publication until the deadline, which the broker sets.
        effect: the declared effect, or empty when undeclared.
        digest: digest of the descriptor the caller validated against.
        events: send a ``start`` frame as soon as a worker takes the call.
        priority: reserved.
        idempotency_key: the caller's key, or empty.
        shared: write the frames to the call's own stream, where every caller with the same key reads them.
        metadata: free strings from the caller.
        traceparent: W3C trace context of the calling span.
        v: version of the protocol.
        confirmed: digest of the action that a person allowed, see ``confirmations.digest_of``; empty when no confirmation was asked for.
        ordered: it runs after the calls of its session that were published before it.
        state: token of the state of its session that the caller knows; empty when it knows of none.
        initial: what a session's state is made of, as the caller says, or None.
    """

    id: str
    agent: str
    service: str
    tool: str = ""
    user: str = ""
    session: str = ""
    config: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    timeout: float = 60.0
    effect: str = ""
    digest: str = ""
    events: bool = False
    priority: int = 0
    idempotency_key: str = ""
    metadata: dict[str, str] = {}
    traceparent: str = ""
    v: int = 1
    shared: bool = False
    confirmed: str = ""
    ordered: bool = False
    state: str = ""
    initial: dict[str, Any] | None = None


class Confirm(msgspec.Struct, frozen=True, omit_defaults=True):
    """A handler starts or stops waiting for a person.

    Attributes:
        id: id of the confirmation request.
        question: the question to the person.
        timeout: most seconds that the handler waits; 0 when it has stopped waiting.
        allowed: the answer, when the handler has stopped waiting; None when none came.
    """

    id: str
    question: str = ""
    timeout: float = 0.0
    allowed: bool | None = None


class Frame(msgspec.Struct, omit_defaults=True):
    """One piece of a response; the last of a run has ``end_of_stream``.

    Attributes:
        id: the request's id.
        run: random token of one start of the handler; each attempt has its own.
        attempt: delivery number, from 1.
        seq: position within the run, from 0, without gaps.
        kind: which kind of content the frame carries.
        response: a piece of text; on the ``end`` frame the whole output, or None when the pieces are the output.
        end_of_stream: true on the one final frame.
        error: on the ``end`` frame, why the call failed.
        data: on the ``end`` frame, the result for programs.
        progress: content of a ``progress`` frame.
        blob: content of a ``blob`` frame; ``more`` means that the next frame continues it.
        epoch: how many times the service's consumer group was recreated; attempts count from 1 in each epoch.
        texts: the pieces of a ``text`` frame that carries several, in order; ``response`` is then None.
        confirm: content of a ``confirm`` frame.
        worker: instance id, on the first frame of a run.
        queued_ms: milliseconds the request waited, on the first frame of a run.
        state: on the ``end`` frame of a call of a sticky session, the token of the session's state.
        restarted: on the ``end`` frame, the session's state was lost and the call ran on a new one.
    """

    id: str
    run: str
    attempt: int = 1
    seq: int = 0
    kind: FrameKind = "text"
    response: str | None = None
    end_of_stream: bool = False
    error: ErrorInfo | None = None
    data: Any = None
    progress: Progress | None = None
    blob: Blob | None = None
    more: bool = False
    worker: str = ""
    queued_ms: float = 0.0
    epoch: int = 0
    texts: list[str] | None = None
    confirm: Confirm | None = None
    state: str = ""
    restarted: bool = False


class _Place(msgspec.Struct):
    """The address of a frame, when the rest of it can't be read."""

    id: str
    run: str
    attempt: int = 1
    seq: int = 0
    end_of_stream: bool = False
    epoch: int = 0


_drawn_ids: list[str] = []
# A forked child must not repeat the ids of its parent.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drawn_ids.clear)


def new_id() -> str:
    """Return a new call id: 128 random bits as 32 hexadecimal digits."""
    try:
        return _drawn_ids.pop()
    except IndexError:
        # 256 at a time: a system call for each cost 3 % of a caller's time.
        drawn = os.urandom(16 * 256).hex()
        _drawn_ids.extend(drawn[start : start + 32] for start in range(32, len(drawn), 32))
        return drawn[:32]


def new_run() -> str:
    """Return a new run token: 48 random bits as 12 hexadecimal digits."""
    return os.urandom(6).hex()


_request_decoder = msgspec.json.Decoder(Request)
_frame_decoder = msgspec.json.Decoder(Frame)
_frames_decoder = msgspec.json.Decoder(list[Frame])
_place_decoder = msgspec.json.Decoder(_Place)
_raws_decoder = msgspec.json.Decoder(list[msgspec.Raw])

_ADDRESS_FIELD = re.compile(rb'"(id|agent)"\s*:\s*"([A-Za-z0-9_-]{1,64})"')


def encode(message: object) -> bytes:
    """Encode a request or a frame.

    Raises:
        EnvelopeError: a value in it can't be expressed in JSON.
    """
    try:
        return encode_json(message)
    except Exception as error:  # noqa: BLE001 - a class of a user's may raise anything when it is asked for its value
        raise EnvelopeError(f"not expressible in JSON: {reason_of(error)}") from None


def encode_data(value: object) -> bytes:
    """Encode a value that a frame carries.

    Raises:
        EnvelopeError: JSON can't express it, or it is nested too deeply; the message names the place.
    """
    try:
        return encoding.encode_data(value)
    except ValueError as error:
        raise EnvelopeError(f"not expressible in JSON: {error}") from None


def encode_request(request: Request, *, limit: int) -> bytes:
    """Encode a request of at most ``limit`` bytes.

    Raises:
        EnvelopeError: it is too large, or a value in it can't be expressed in JSON.
    """
    document = encode(request)
    if len(document) > limit:
        message = f"request of {len(document)} bytes is over the limit of {limit} (TOOLBUS_MAX_REQUEST)"
        raise EnvelopeError(message, REQUEST_TOO_LARGE)
    if any(map(document.count, encoding.NO_NUMBERS)):
        for part in (request.arguments, request.config):
            if not encoding.is_finite(part):
                encode_data(part)
    return document


def decode_request(payload: bytes, *, limit: int) -> Request:
    """Decode a request of at most ``limit`` bytes.

    Raises:
        EnvelopeError: it is too large, malformed, or of a newer major version.
    """
    if len(payload) > limit:
        raise EnvelopeError(f"request of {len(payload)} bytes is over the limit of {limit}")
    try:
        request = _request_decoder.decode(payload)
    except DECODE_ERRORS as error:
        raise EnvelopeError(f"malformed request: {error}") from None
    # A pattern in the type would do the same but cost twice as much as decoding the request. Ids of toolbus need not even a function.
    ids = f"{request.id}{request.agent}"
    if not (request.id and ids.isalnum() and ids.isascii() and len(ids) <= 64):
        for field, value in (("id", request.id), ("agent", request.agent)):
            if not is_ident(value) and (value or field == "id"):
                raise EnvelopeError(f"malformed request: {value[:80]!r} is not 1 to 64 letters, digits, '_' or '-' - at `$.{field}`")
    if request.v != VERSION and not OLDEST <= request.v < VERSION:
        behind = "the worker" if request.v > VERSION else "the caller"
        raise EnvelopeError(f"a request of protocol version {request.v}, and this worker reads {OLDEST} to {VERSION}: upgrade {behind}")
    return request


def share_digest(request: Request) -> str:
    """Return the digest that callers of one shared call have in common: user and idempotency key."""
    return digest((request.user, request.idempotency_key))


def work_digest(request: Request) -> str:
    """Return the digest of what a call does, of service, tool, config, arguments and session.

    When agents of earlier releases have another digest of it, that one follows after a space. Calls that differ in it can't share one
    idempotency key: an answer may depend on its session, which another session must not read, and running the call once more might be a
    second effect.
    """
    work = (request.service, request.tool, request.config, request.arguments, request.session)
    return " ".join(digests(work))


def address(payload: bytes) -> tuple[str, str] | None:
    """Return the (id, agent) of a request that can't be decoded, when both can still be found in it."""
    found: dict[bytes, str] = {}
    for name, value in _ADDRESS_FIELD.findall(payload[:4096]):
        found.setdefault(name, value.decode())
    if b"id" in found and b"agent" in found:
        return found[b"id"], found[b"agent"]
    return None


def text_of(data: Any) -> str:
    """Return the text of a result that has none of its own: its data as JSON, for whoever asks for text."""
    return "" if data is None else encode_json(data).decode()


def result_of_frame(frame: Frame, call: str, ms: float) -> ToolResult:
    """Return the result of a call whose first frame is its last: the same as is assembled of that frame.

    Args:
        frame: the only frame.
        call: the call's id, for the result's ``meta``.
        ms: milliseconds since the call began, for the result's ``meta``.
    """
    output, error = frame.response, frame.error
    if not output:
        output = text_of(frame.data) if error is None else None
    return ToolResult(error is None, output, frame.data, error, (), ResultMeta(call, frame.attempt, frame.worker, ms, (), frame.restarted))


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Return the payload of one reply entry: a JSON list of encoded frames."""
    return b"[" + b",".join(frames) + b"]"


def entry_limit(max_frame: int) -> int:
    """Return the most bytes of a reply entry that workers with this ``max_frame`` write.

    A byte of text takes up to six in JSON; beside the text an entry may have data, an error, and other frames.
    """
    return 6 * max(_MOST_TOGETHER, max_frame)


def decode_frames(payload: bytes, *, limit: int) -> tuple[list[Frame], list[str]]:
    """Return the frames of one reply entry, and a reason for each one that can't be decoded.

    One bad frame does not affect the others of its entry, up to a thousand of them. A last one still ends its call, and says why.
    """
    if len(payload) > limit:
        return [], [f"reply entry of {len(payload)} bytes is over the limit of {limit}"]
    try:
        return _frames_decoder.decode(payload), []
    except DECODE_ERRORS as error:
        reason = f"malformed reply entry: {error}"
    try:
        raws = _raws_decoder.decode(payload)
    except DECODE_ERRORS:
        return [], [reason]
    frames: list[Frame] = []
    problems: list[str] = []
    for raw in raws:
        try:
            frames.append(_frame_decoder.decode(raw))
        except DECODE_ERRORS as error:
            problems.append(f"malformed frame: {error}")
            frames += _end_of(raw, str(error))
            if len(problems) >= _MOST_PROBLEMS:
                break
    return frames, problems


def _end_of(raw: msgspec.Raw, problem: str) -> list[Frame]:
    """Return what ends the call of a last frame that can't be read; nothing when it is not the last one, or not known to be."""
    try:
        place = _place_decoder.decode(raw)
    except DECODE_ERRORS:
        return []
    if not place.end_of_stream:
        return []
    error = ErrorInfo("outcome_unknown", "malformed_frame", f"the worker has answered, but its answer can't be read: {problem}")
    return [Frame(place.id, place.run, place.attempt, place.seq, "end", None, True, error, epoch=place.epoch)]


def pieces(text: str, limit: int) -> Iterator[str]:
    """Split text into pieces of at most ``limit`` bytes of UTF-8, never inside a character.

    Lone surrogates, which UTF-8 can't carry, become U+FFFD.
    """
    data = whole_text(text).encode()
    if len(data) <= limit:
        yield data.decode()
        return
    start = 0
    while start < len(data):
        end = min(start + limit, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end


def late_code(timeout: float, queued_ms: float) -> str:
    """Return the code of a call whose ``timeout`` (seconds) was up while it ran, after it had waited for so many milliseconds."""
    return BEGAN_LATE if queued_ms > timeout * 500 > 0 else NOT_FINISHED


def waited_for(queued_ms: float) -> str:
    """Return what to add to a sentence about a call's time that it spent waiting; empty for less than a second."""
    return f", of which it had waited {queued_ms / 1000:.1f} s for a free slot of a worker" if queued_ms >= 1_000 else ""
