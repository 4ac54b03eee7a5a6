"""Requests and frames survive the wire, and hostile bytes do no harm."""

from __future__ import annotations

import contextlib
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus.bus.values import envelope
from toolbus.bus.values.envelope import Frame, FrameKind, Request
from toolbus.bus.values.results import ERROR_TYPES, Blob, EnvelopeError, ErrorInfo, Progress

LIMIT = 1 << 20

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
IDENT = st.text(st.sampled_from("abzABZ019_-"), min_size=1, max_size=64)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SMALL = st.integers(-(2**63), 2**63 - 1)
INTEGER = SMALL | st.integers(-(10**100), 10**100)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGER | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
OBJECT = st.dictionaries(TEXT, JSON, max_size=4)

REQUESTS = st.builds(
    Request,
    id=IDENT,
    agent=IDENT,
    service=TEXT,
    tool=TEXT,
    user=TEXT,
    session=TEXT,
    config=OBJECT,
    arguments=OBJECT,
    timeout=FINITE,
    effect=TEXT,
    digest=TEXT,
    events=st.booleans(),
    priority=SMALL,
    idempotency_key=TEXT,
    metadata=st.dictionaries(TEXT, TEXT, max_size=3),
    traceparent=TEXT,
)
ERRORS = st.builds(
    ErrorInfo, st.sampled_from(sorted(ERROR_TYPES)), TEXT, TEXT, st.booleans(), st.none() | FINITE, JSON
)  # fmt: skip
FRAMES = st.builds(
    Frame,
    id=TEXT,
    run=TEXT,
    attempt=SMALL,
    seq=SMALL,
    kind=st.sampled_from(get_args(FrameKind)),
    response=st.none() | TEXT,
    end_of_stream=st.booleans(),
    error=st.none() | ERRORS,
    data=JSON,
    progress=st.none() | st.builds(Progress, FINITE, st.none() | FINITE, TEXT),
    blob=st.none() | st.builds(Blob, TEXT, st.binary(max_size=40)),
    more=st.booleans(),
    worker=TEXT,
    queued_ms=FINITE,
)
ENDLESS = [b"[" * 100_000, b'{"id":' * 100_000]
ODD = [b"", b"null", b"[]", b'"\xff"', b'[{"id":"a","run":"\xed\xa0\x80"}]', b"1e999", b"[1e999]", b"\x00"]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a valid message that is cut off, or has a byte replaced by others."""
    good = envelope.encode(draw(REQUESTS | FRAMES))
    at = draw(st.integers(0, len(good) - 1))
    return good[:at] + draw(st.just(b"") | st.binary(max_size=3).map(lambda other: other + good[at + 1 :]))


HOSTILE = st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()) | damaged() | st.sampled_from(ENDLESS + ODD)


@pytest.mark.usefixtures("slow")
@given(REQUESTS)
def test_request_survives_the_wire(request: Request) -> None:
    """Any request decodes to what was encoded."""
    assert envelope.decode_request(envelope.encode(request), limit=LIMIT) == request


@pytest.mark.usefixtures("slow")
@given(st.lists(FRAMES, max_size=4))
def test_frames_survive_the_wire(frames: list[Frame]) -> None:
    """Any frames that share one entry decode to what was encoded, in order."""
    payload = envelope.join_frames([envelope.encode(frame) for frame in frames])
    assert envelope.decode_frames(payload, limit=LIMIT) == (frames, [])


@pytest.mark.usefixtures("slow")
@given(HOSTILE)
def test_hostile_request_only_raises_envelope_error(payload: bytes) -> None:
    """For any bytes, decoding a request returns one or raises EnvelopeError, and reading its address never fails."""
    with contextlib.suppress(EnvelopeError):
        assert isinstance(envelope.decode_request(payload, limit=LIMIT), Request)
    found = envelope.address(payload)
    assert found is None or all(envelope.is_ident(part) for part in found)


@given(HOSTILE | st.lists(HOSTILE, max_size=4).map(envelope.join_frames))
def test_hostile_entry_only_gives_problems(payload: bytes) -> None:
    """For any bytes, decoding a reply entry returns frames and problems and never raises."""
    frames, problems = envelope.decode_frames(payload, limit=LIMIT)
    assert all(isinstance(frame, Frame) for frame in frames)
    assert all(problems)


def test_one_bad_frame_leaves_the_others() -> None:
    """A frame that can't be read is reported, and the good ones of its entry arrive."""
    good = [Frame("a", "r", seq=seq) for seq in range(2)]
    payload = envelope.join_frames([envelope.encode(good[0]), b'{"id":7}', b'{"id":"a","run":"r","kind":"?"}', envelope.encode(good[1])])
    frames, problems = envelope.decode_frames(payload, limit=LIMIT)
    assert frames == good
    assert len(problems) == 2
    assert all(problem.startswith("malformed frame: ") for problem in problems)


def test_unknown_fields_are_ignored() -> None:
    """A newer side may send fields that this one does not know."""
    request = envelope.decode_request(b'{"id":"a","agent":"b","service":"s","later":{"x":[1]}}', limit=LIMIT)
    assert request == Request("a", "b", "s")
    frames, problems = envelope.decode_frames(b'[{"id":"a","run":"r","later":1}]', limit=LIMIT)
    assert (frames, problems) == ([Frame("a", "r")], [])


def test_other_version_is_refused() -> None:
    """A request of another version is refused with both versions, and says which side is to be upgraded."""
    for version, behind in ((2, "worker"), (0, "caller")):
        expected = f"a request of protocol version {version}, and this worker reads 1 to 1: upgrade the {behind}"
        with pytest.raises(EnvelopeError, match=expected):
            envelope.decode_request(b'{"id":"a","agent":"b","service":"s","v":%d}' % version, limit=LIMIT)


def test_a_request_without_a_version_is_of_the_first() -> None:
    """A later version does not change what requests without one are."""
    assert Request("a", "b", "s").v == envelope.decode_request(b'{"id":"a","agent":"b","service":"s"}', limit=LIMIT).v == 1


def test_size_is_checked_before_anything_else() -> None:
    """A payload over the limit is refused by its size alone; one exactly at the limit is read."""
    payload = envelope.encode(Request("a", "b", "s"))
    assert envelope.decode_request(payload, limit=len(payload)).id == "a"
    with pytest.raises(EnvelopeError, match=f"request of {len(payload)} bytes is over the limit of 10"):
        envelope.decode_request(payload, limit=10)
    assert envelope.decode_frames(b"[" * 100, limit=99) == ([], ["reply entry of 100 bytes is over the limit of 99"])


def test_a_request_may_have_nobody_to_answer_to() -> None:
    """An empty agent id is no reply address; an empty call id is refused."""
    assert envelope.decode_request(b'{"id":"a","agent":"","service":"s"}', limit=LIMIT).agent == ""
    with pytest.raises(EnvelopeError, match=r"\$\.id"):
        envelope.decode_request(b'{"id":"","agent":"b","service":"s"}', limit=LIMIT)


@pytest.mark.parametrize("value", ["a b", "é", "a" * 65, "a\n", "a{b}", "a:b", "*"])
def test_ids_that_could_name_another_key_are_refused(value: str) -> None:
    """Call and agent ids have a small alphabet, since keys are derived from them."""
    for field in ("id", "agent"):
        fields = {"id": "a", "agent": "b", "service": "s", field: value}
        with pytest.raises(EnvelopeError, match=rf"\$\.{field}"):
            envelope.decode_request(json.dumps(fields).encode(), limit=LIMIT)


@pytest.mark.parametrize("value", [object(), {1, object()}, {(1, 2): 3}, "\ud800", {"\udfff": 1}, pytest.param(10**5000, id="huge")])
def test_what_json_cannot_carry_is_refused_at_the_sender(value: Any) -> None:
    """Encoding a value that JSON has no form for raises EnvelopeError."""
    with pytest.raises(EnvelopeError, match="not expressible in JSON"):
        envelope.encode(Request("a", "b", "s", arguments={"x": value}))


def test_endless_nesting_is_refused_at_the_sender() -> None:
    """A value that contains itself raises EnvelopeError."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EnvelopeError, match="not expressible in JSON"):
        envelope.encode(Frame("a", "r", data=loop))


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b'{"id":"a1","agent":"b_2","service":7}', ("a1", "b_2")),
        (b'{ "agent" : "b" ,\n"id"\t:\t"a", broken', ("a", "b")),
        (b'{"id":"a"}', None),
        (b'{"id":"a","agent":"not an id"}', None),
        (b"\xff\xfe", None),
        (b" " * 5000 + b'{"id":"a","agent":"b"}', None),
    ],
)
def test_address_of_an_unreadable_request(payload: bytes, found: tuple[str, str] | None) -> None:
    """Id and agent are found near the start of a request that can't be decoded, so that it can be answered."""
    assert envelope.address(payload) == found


@given(st.text(st.characters(), max_size=300), st.integers(4, 40))
def test_pieces_reassemble(text: str, limit: int) -> None:
    """Pieces join to the text (lone surrogates replaced), and each is valid UTF-8 of at most ``limit`` bytes."""
    found = list(envelope.pieces(text, limit))
    encoded = [piece.encode() for piece in found]
    assert all(len(piece) <= limit for piece in encoded)
    joined = "".join(found)
    # As UTF-16 pairs of surrogates are one character, whoever wrote them apart.
    assert joined == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert all(found) or found == [""]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), st.integers(4, 40))
def test_pieces_are_as_few_as_can_be(text: str, limit: int) -> None:
    """No piece is more than three bytes short of the limit, except the last."""
    found = list(envelope.pieces(text, limit))
    assert all(len(piece.encode()) > limit - 4 for piece in found[:-1])


def test_ids_are_random_and_valid() -> None:
    """Fresh ids and run tokens differ and fit their alphabet."""
    ids = {envelope.new_id() for _ in range(1000)}
    runs = {envelope.new_run() for _ in range(1000)}
    assert len(ids) == len(runs) == 1000
    assert all(envelope.is_ident(each) for each in ids | runs)
    assert {len(each) for each in ids} == {32}
    assert {len(each) for each in runs} == {12}


@pytest.mark.parametrize(
    "field",
    [
        b'"response":5',
        b'"error":"broken"',
        b'"error":{"type":"timeout"}',
        b'"blob":{"media_type":"a/b","data":"no base64"}',
        b'"data":"\xff"',
    ],
)
def test_a_last_frame_that_can_not_be_read_ends_its_call(field: bytes) -> None:
    """Its caller hears at once what is wrong with it; the frames beside it are read."""
    whole = envelope.encode(Frame("a1", "r1", response="fine"))
    last = b'{"id":"b2","run":"r2","attempt":2,"seq":3,"epoch":1,"kind":"end","end_of_stream":true,' + field + b"}"
    frames, problems = envelope.decode_frames(envelope.join_frames([last, whole]), limit=10_000)
    assert len(problems) == 1
    ended, other = frames
    assert (ended.id, ended.run, ended.attempt, ended.seq, ended.epoch, ended.end_of_stream) == ("b2", "r2", 2, 3, 1, True)
    assert ended.error is not None
    assert (ended.error.type, ended.error.code) == ("outcome_unknown", "malformed_frame")
    assert other.response == "fine"


def test_bad_frames_are_not_looked_at_for_ever() -> None:
    """Of an entry that holds nothing else, a thousand are enough to know."""
    frames, problems = envelope.decode_frames(envelope.join_frames([b"{}"] * 100_000), limit=1_000_000)
    assert (len(frames), len(problems)) == (0, 1_000)
