"""Vectors for programs in other languages, made by toolbus's own code: ``python -m tests.conformance.vectors`` writes them."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from toolbus.bus.broker.held.confirmations import read_note
from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.publish import read_verdicts
from toolbus.bus.broker.server.keys import Keys, session_digest
from toolbus.bus.client.calls.assembly import Assembly
from toolbus.bus.values import pins
from toolbus.bus.values.canonical import canonical, digest
from toolbus.bus.values.confirmations import digest_of
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.envelope import Request, decode_frames, pieces, share_digest, work_digest
from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Text
from toolbus.bus.values.results import Blob, Progress, ToolResult
from toolbus.operations.conformance.exported import VECTORS

# -- canonical JSON and digests -------------------------------------------------------------------

# JSON as it stands in a message; the second list has integers that are no numbers of JavaScript.
_DOCUMENTS = [
    "{}", "[]", '""', "null", "[true,false]", "[0,-0,0.0,-0.0,1.0,1e0,100E-2]", "[1e15,9007199254740994.0,1e16,1e20,1e21,1.5e22]",
    "[0.00001,0.000001,1e-7,1.5e-10,5e-324,1.7976931348623157e308]", "[0.1,0.30000000000000004,333333333.33333329,4.50,2e-3]",
    "[9007199254740991,-9007199254740991]", '"\\u0000\\b\\t\\n\\f\\r\\u001f\\u007f\\u0080\\u2028 \\/ \\" \\\\ a&b<c>"',
    '"\\ud83d\\ude00 \\u20ac"',
    '{"\\u20ac":1,"\\r":2,"\\ufb33":3,"1":4,"\\ud83d\\ude00":5,"\\u0080":6,"\\u00f6":7,"":8}',
    '{"b":{"d":1,"c":[{"z":0.0,"a":null}]},"a":2}',
]  # fmt: skip
_LARGE = ["9007199254740993", "-18446744073709551616", "1000000000000000000000000"]
_REFUSED = ['"\\ud800"', '{"\\udfff":1}', "NaN", "Infinity", "1e400"]


def _documents(documents: Iterable[str]) -> list[dict[str, Any]]:
    found = []
    for document in documents:
        value = json.loads(document)
        found.append(
            {"json": document, "canonical": canonical(value).decode(), "digest": digest(value), "digest_of_32_bytes": digest(value, 32)}
        )
    return found


def _works() -> list[dict[str, Any]]:
    requests: list[dict[str, Any]] = [
        {"idempotency_key": "k1", "arguments": {"topic": "cats"}},
        {"idempotency_key": "k1", "arguments": {"delay": 0.0, "a&b": "<é>"}, "user": "alice", "session": "s1"},
        {"idempotency_key": 'a"b', "arguments": {"\U0001f600": 1e21, "\ufb33": -0.0}, "config": {"region": "eu"}},
    ]
    found = []
    for fields in requests:
        fields |= {"service": "jokes", "tool": "tell_joke"}
        request = msgspec.convert({"id": "c", "agent": "a", **fields}, Request)
        action = (request.service, request.tool, request.user, request.session)
        found.append(
            {
                "request": fields,
                "record": share_digest(request),
                "work": work_digest(request).split(" ")[0],
                "confirmed": digest_of("agent", *action, "", request.arguments),
                "asked by the worker": digest_of("worker", *action, "May it?", request.arguments),
            }
        )
    return found


def _pins() -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = [
        {"name": "add", "description": "Add.", "service": "calc", "parameters": {"type": "object", "properties": {"x": {"default": 1.0}}}},
        {"name": "erase", "description": "Erase.", "service": "files", "arguments": [], "confirm": True, "effect": "once", "timeout": 5.0},
    ]
    return [{"tool": each, "canonical": pins.approved(msgspec.convert(each, ToolDescriptor)).canonical} for each in tools]


# -- keys -----------------------------------------------------------------------------------------


def _keys() -> list[dict[str, Any]]:
    keys = Keys("prod")
    alice = {"user": "alice", "session": "s1"}
    nobody = {"user": "", "session": 'ü "\n'}
    request = Request(id="c1", agent="a1", service="jokes", user="alice", idempotency_key="k1")
    shared = {"user": "alice", "idempotency_key": "k1"}
    rows: list[tuple[str, dict[str, str], str]] = [
        ("requests", {"queue": "jokes"}, keys.queue("jokes")),
        ("replies", {"agent": "a1"}, keys.replies("a1")),
        ("replies of a shared call", {"call": "c1"}, keys.call("c1")),
        ("record of an idempotency key", shared, keys.shared(share_digest(request))),
        ("mark of once work", {"call": "c1"}, keys.started("c1")),
        ("owner of a session", {"queue": "jokes", **alice}, keys.session("jokes", session_digest(**alice))),
        ("owner of a session", {"queue": "jokes", **nobody}, keys.session("jokes", session_digest(**nobody))),
        ("snapshot of a session", {"queue": "jokes", **alice}, keys.snapshot("jokes", session_digest(**alice))),
        ("results of a session", alice, keys.results(session_digest(**alice))),
    ]
    return [{"of": name, "namespace": keys.namespace, **given, "key": key} for name, given, key in rows]


# -- frames ---------------------------------------------------------------------------------------


def _frame(seq: int, run: str = "r1", **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "run": run, "seq": seq, **fields}


def _text(seq: int, text: str, run: str = "r1", **fields: Any) -> dict[str, Any]:
    return _frame(seq, run, response=text, **fields)


def _end(seq: int, run: str = "r1", **fields: Any) -> dict[str, Any]:
    return _frame(seq, run, kind="end", end_of_stream=True, **fields)


def _more(seq: int, text: str) -> dict[str, Any]:
    return _text(seq, text, "r2", attempt=2)


def _last(seq: int, **fields: Any) -> dict[str, Any]:
    return _end(seq, "r2", attempt=2, **fields)


def _part(seq: int, text: str) -> dict[str, Any]:
    return _frame(seq, kind="data", response=text)


_FAILED = {"type": "tool_error", "message": "no"}
_PNG = [{"media_type": "image/png", "data": base64.b64encode(each).decode()} for each in (b"\x89PNG one, ", b"and two")]
_ASKS, _IS_ANSWERED = {"id": "q1", "question": "May it?", "timeout": 60}, {"id": "q1", "allowed": True}

# Each is a list of entries; an entry is a list of frames, or the text of the field f; at None, no frame comes
# for as long as one is waited for.
_SEQUENCES: dict[str, list[Any]] = {
    "one frame": [[_end(0, response="hello")]],
    "data without text": [[_end(0, data={"n": 1, "é": [None]})]],
    "text, then an end that stands for it": [[_text(0, "Why did ", worker="w1", queued_ms=0.4)], [_text(1, "the cat?"), _end(2)]],
    "several texts in a frame": [[_frame(0, texts=["a", "b"]), _text(1, "c"), _end(2, data=3)]],
    "no text at all": [[_end(0)]],
    "a failure behind text": [[_text(0, "so far")], [_end(1, error=_FAILED)]],
    "a frame that overtook another": [[_text(1, "b")], [_text(0, "a"), _end(2)]],
    "frames twice": [[_text(0, "a"), _text(1, "b")], [_text(1, "b"), _text(0, "a"), _text(2, "c")], [_end(3), _end(3)]],
    "a gap that stays": [[_text(0, "a"), _text(2, "c"), _end(3)], None],
    "a gap that a new run closes": [[_text(0, "a"), _end(2)], [_more(0, "ab"), _last(1)]],
    "an end that waits for no gap": [[_text(0, "a")], [_end(3, error={"type": "unavailable", "code": "frames_refused", "message": "no"})]],
    "a new run with the same text": [[_text(0, "one ", worker="w1"), _text(1, "two ")], [_more(0, "one two"), _last(1)]],
    "a new run in other pieces": [[_text(0, "abcd")], [_more(0, "ab"), _more(1, "cdef"), _last(2)]],
    "a new run with another text": [[_text(0, "one two")], [_more(0, "one ")], [_more(1, "2"), _last(2)]],
    "a new run that is shorter": [[_text(0, "one two")], [_more(0, "one"), _last(1)]],
    "a new run that is shorter and fails": [[_text(0, "one two")], [_more(0, "one"), _last(1, error=_FAILED)]],
    "frames of a run that was replaced": [[_text(0, "a")], [_more(0, "a")], [_text(1, "x"), _end(2)], [_more(1, "b"), _last(2)]],
    "a run with an earlier attempt": [[_more(0, "b")], [_text(0, "a"), _end(1)], [_last(1)]],
    "a group that was made anew": [[_more(0, "a")], [_text(0, "b", "r3", epoch=1), _end(1, "r3", epoch=1)], [_last(1)]],
    "two runs of one attempt": [[_text(0, "a")], [_text(0, "ab", "r2"), _end(1, "r2")]],
    "a reset": [[_text(0, "a"), _frame(1, kind="reset"), _text(2, "b"), _end(3)]],
    "a start": [[_frame(0, kind="start", worker="w1"), _end(1, response="x")]],
    "progress": [[_frame(0, kind="progress", progress={"done": 1, "total": 2}), _end(1, response="x")]],
    "a large end in pieces": [[_frame(0, kind="output", response="€"), _frame(1, kind="output", response="😀"), _end(2)]],
    "large data in pieces": [[_part(0, '{"text": "é'), _part(1, '😀", "n": 1'), _part(2, "}"), _end(3)]],
    "pieces that are no data": [[_part(0, "{"), _end(1)]],
    "a blob in two frames": [[_frame(0, kind="blob", blob=_PNG[0], more=True)], [_frame(1, kind="blob", blob=_PNG[1]), _end(2)]],
    "a handler that waits": [[_frame(0, kind="confirm", confirm=_ASKS)], [_frame(1, kind="confirm", confirm=_IS_ANSWERED), _end(2)]],
    "an end that can't be read": ['[{"id":"c1","run":"r1","response":"a"},{"id":"c1","run":"r1","seq":1,"end_of_stream":true,"error":7}]'],
    "a text that can't be read": ['[{"id":"c1","run":"r1","response":7},{"id":"c1","run":"r1","seq":1,"response":"b"}]', None],
    "unknown fields": [[_text(0, "a", later={"x": 1}), _end(1, and_more=[])]],
}  # fmt: skip


def _result(result: ToolResult) -> dict[str, Any]:
    found: dict[str, Any] = {"output": result.output, "data": result.data, "attempts": result.meta.attempts}
    if result.error is not None:
        found["error"] = {"type": result.error.type, "code": result.error.code}
    return found


_SHOWN: dict[type, Callable[[Any], dict[str, Any]]] = {
    Reset: lambda event: {"reset": event.attempt},
    Progress: lambda event: {"progress": msgspec.to_builtins(event)},
    Blob: lambda event: {"blob": {"media_type": event.media_type, "data": base64.b64encode(event.data).decode()}},
    Asked: lambda event: {"asked": event.question},
    Answered: lambda event: {"answered": event.allowed},
    Finished: lambda event: {"end": _result(event.result)},
}


def events_of(entries: list[Any]) -> list[dict[str, Any]]:
    """Return what a caller sees of entries; texts that follow one another are one."""
    assembly, events = Assembly(), list[Event]()
    for entry in entries:
        if entry is None:
            events.append(assembly.lose())
            continue
        document = entry.encode() if isinstance(entry, str) else msgspec.json.encode(entry)
        for frame in decode_frames(document, limit=1_000_000)[0]:
            events += assembly.feed(frame)
    found: list[dict[str, Any]] = []
    for event in events:
        if type(event) is Text:
            if found and "text" in found[-1]:
                found[-1]["text"] += event.text
            else:
                found.append({"text": event.text})
        elif type(event) in _SHOWN:
            found.append(_SHOWN[type(event)](event))
    return found


def _cuts() -> list[dict[str, Any]]:
    texts = [("abc", 2), ("a€b", 3), ("😀😀", 4), ("😀😀", 7), ("é" * 3, 5), ("", 4)]
    return [{"text": text, "bytes": most, "pieces": list(pieces(text, most))} for text, most in texts]


# -- deadlines and verdicts -----------------------------------------------------------------------


def _deadlines() -> list[dict[str, Any]]:
    found = []
    clock = ServerClock(30.0)
    for note, now in (
        ("9000 0 0", 1),
        ("9000 2000 5000", 1000),
        ("9000 2000 5000", 3000),
        ("9000 2000 5000", 8000),
        ("9000 2000 5000 2", 3000),
    ):
        deadline = read_note(note.encode(), clock).effective(now / 1000 - clock.offset) + clock.offset
        found.append({"entry": 7000, "note": note, "now": now, "deadline": max(7000, round(deadline * 1000))})
    return found


def _verdicts() -> list[dict[str, Any]]:
    found = []
    for answer, count in (("1790000000000-0", 1), ("1790000000000-0 - !7", 3), ("-", 1)):
        verdicts = read_verdicts(answer.encode(), count)
        found.append(
            {"answer": answer, "verdicts": [{"status": each.status, "entry": each.entry, "depth": each.depth} for each in verdicts]}
        )
    return found


def made() -> dict[str, Any]:
    """Return all vectors, as this code makes them."""
    return {
        "canonical": _documents(_DOCUMENTS),
        "large integers": _documents(_LARGE),
        "refused": _REFUSED,
        "work": _works(),
        "pins": _pins(),
        "keys": _keys(),
        "frames": [{"name": name, "entries": entries, "events": events_of(entries)} for name, entries in _SEQUENCES.items()],
        "cuts": _cuts(),
        "deadlines": _deadlines(),
        "verdicts": _verdicts(),
    }


def text_of(vectors: dict[str, Any]) -> str:
    """Return the text of the file: a line for each vector, in ASCII."""
    groups = (
        f"  {json.dumps(name)}: [\n" + ",\n".join(f"    {json.dumps(each)}" for each in group) + "\n  ]" for name, group in vectors.items()
    )
    return "{\n" + ",\n".join(groups) + "\n}\n"


if __name__ == "__main__":
    VECTORS.write_text(text_of(made()), encoding="utf-8")
    sys.stdout.write(f"wrote {VECTORS}\n")
