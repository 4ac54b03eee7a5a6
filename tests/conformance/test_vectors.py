"""The vectors and schemas that `toolbus protocol scripts` writes: what this code does, and what a second implementation does."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import redis

from tests.conformance.vectors import made, text_of
from tests.contract import Place
from toolbus import Progress, ToolError, invocation, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.envelope import decode_request
from toolbus.bus.values.results import Blob, EnvelopeError
from toolbus.operations.conformance.exported import SCHEMAS, VECTORS, schema_of, write

NODE = shutil.which("node")


def test_the_vectors_are_what_this_code_does() -> None:
    """The file says what this code makes of each input; `python -m tests.conformance.vectors` writes it."""
    assert VECTORS.read_text("utf-8") == text_of(made())


def test_what_has_no_digest_is_refused_in_a_request() -> None:
    """A document of the list of refused ones is no argument of a request."""
    for document in made()["refused"]:
        with pytest.raises(EnvelopeError):
            decode_request(b'{"id":"c","agent":"a","service":"s","arguments":{"x":%b}}' % document.encode(), limit=1_000)


def in_node(file: Path) -> dict[str, Any]:
    """Return what the implementation in Node.js finds in a file of vectors."""
    if NODE is None:
        pytest.skip("there is no Node.js on this machine: the vectors were not checked by a second implementation")
    told = subprocess.run([NODE, str(Path(__file__).with_name("vectors.mjs")), str(file)], check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def test_a_second_implementation_agrees(tmp_path: Path) -> None:
    """A program in JavaScript agrees with each vector, and names each one that was changed."""
    vectors = made()
    checked = sum(len(group) for name, group in vectors.items() if name not in {"large integers", "refused"})
    assert in_node(VECTORS) == {"checked": checked, "wrong": []}
    # Every outcome is changed in one way or another.
    changed = json.loads(VECTORS.read_bytes())
    outcomes = {"digest", "work", "canonical", "key", "deadline", "verdicts", "pieces", "events"}
    for group in changed.values():
        for each in group:
            for name in outcomes & each.keys() if isinstance(each, dict) else ():
                each[name] = [] if isinstance(each[name], list) else 0
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    found = in_node(tmp_path / "changed.json")
    assert (found["checked"], len(found["wrong"])) == (checked, checked)


@tool(service="schemas", effect="read")
async def stream(words: int):
    """Stream."""
    yield Progress(1, 2)
    for word in range(words):
        yield f"{word} "
    yield Blob("image/png", b"\x89PNG")


@tool(service="schemas", effect="idempotent", timeout=20.0, groups=["a"])
async def data() -> dict[str, Any]:
    """Return data."""
    return {"n": 1.5, "none": None}


@tool(service="schemas")
async def refuse() -> str:
    """Fail."""
    raise ToolError("no", retryable=True, retry_after=1.0)


@tool(service="schemas", effect="once")
async def ask() -> str:
    """Ask a person."""
    return str(await invocation().confirm("May it?", {"n": 1}))


_WORDS = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(rb"\\(x[0-9a-f]{2}|.)")
_PLAIN = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}


def words_of(line: bytes) -> list[bytes]:
    """Return the words of a command as MONITOR shows it."""

    def plain(found: re.Match[bytes]) -> bytes:
        code = found[1]
        return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _PLAIN.get(code, code)

    return [_ESCAPED.sub(plain, word) for word in _WORDS.findall(line)]


def documents_of(words: list[bytes], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the documents that a command writes, each with the name of its schema."""
    name, key, *rest = (words[0].upper(), words[1].decode("utf-8", "replace"), *words[2:]) if len(words) > 1 else (b"", "", b"")
    kind = key.removeprefix(prefix).partition(":")[0]
    fields = dict(zip(rest[::2], rest[1::2], strict=False)) if name == b"HSET" else {}
    if name == b"XADD":
        at = next((at for at, word in enumerate(rest) if word in {b"f", b"r", b"op"}), len(rest))
        fields = dict(zip(rest[at::2], rest[at + 1 :: 2], strict=False))
    if kind == "q" and b"r" in fields:
        yield "request", json.loads(fields[b"r"])
    elif kind in {"rsp", "call"} and b"f" in fields:
        yield "frames", json.loads(fields[b"f"])
    elif kind == "log" and b"op" in fields:
        yield "log-entry", {field.decode(): value.decode() for field, value in fields.items()}
        if fields[b"op"] == b"up":
            yield "publication", json.loads(fields[b"doc"])
    elif kind == "reg" and key.endswith(":pins"):
        yield from (("pin", json.loads(document)) for document in fields.values())
    elif kind == "confirm" and b"doc" in fields:
        yield "confirmation", json.loads(fields[b"doc"])
    elif kind == "confirm" and b"answer" in fields:
        yield "answer", json.loads(fields[b"answer"])


def listen(client: redis.Redis, prefix: str, until: bytes, found: list[tuple[str, Any]], ready: Any) -> None:
    """Collect the documents that scripts write below a prefix, until a key is written."""
    with client.client() as connected:
        link = connected.connection
        assert link is not None
        link.send_command("MONITOR")
        link.read_response()
        ready()
        while True:
            words = words_of(link.read_response())
            if until in words:
                return
            found += documents_of(words, prefix)


@pytest.mark.anyio
async def test_real_messages_fit_the_schemas(place: Place) -> None:
    """Messages of agents, workers and operators are valid, and documents with a wrong field are not."""
    prefix, found, started = f"tb:{{{place.settings.namespace}}}:", list[tuple[str, Any]](), asyncio.Event()
    client = redis.Redis.from_url(place.settings.url, protocol=2)
    loop = asyncio.get_running_loop()
    end = f"{prefix}end-of-test"
    listening = asyncio.create_task(
        asyncio.to_thread(listen, client, prefix, end.encode(), found, lambda: loop.call_soon_threadsafe(started.set))
    )
    try:
        await started.wait()
        async with place.serving(stream, data, refuse, ask) as bus, Admin(place.settings) as admin:
            await bus.wait_for_tool("ask")
            await admin.pins.approve("data")
            assert (await bus.call("stream", {"words": 3}, user="u", idempotency_key="k")).success
            assert (await bus.call("data", metadata={"a": "b"})).success
            assert not (await bus.call("refuse")).success
            asking = asyncio.create_task(bus.call("ask", timeout=60.0))
            async for request in bus.confirmations.watch():
                await bus.confirmations.allow(request.id)
                break
            assert (await asking).success
    finally:
        await asyncio.to_thread(client.set, end, "", ex=5)
        await listening
        client.close()
    assert {name for name, _ in found} == SCHEMAS.keys()
    for name, document in found:
        jsonschema_rs.validator_for(schema_of(name)).validate(document)
    kinds = {frame.get("kind", "text") for name, frames in found if name == "frames" for frame in frames}
    assert kinds >= {"text", "progress", "blob", "confirm", "end"}
    wrong = {
        "request": {"id": "a b", "agent": "a", "service": "s"},
        "frames": [{"id": "c", "run": "r", "kind": "other"}],
        "publication": {},
    }
    wrong |= {"log-entry": {"op": "other"}, "pin": {"state": "maybe"}, "confirmation": {"id": 1}, "answer": {"allowed": "yes"}}
    for name, document in wrong.items():
        assert not jsonschema_rs.validator_for(schema_of(name)).is_valid(document), name


def test_vectors_schemas_and_requirements_are_written(tmp_path: Path) -> None:
    """They stand beside the scripts; a field that a message may leave out is not required, and each requirement has a meaning."""
    write(tmp_path)
    required = msgspec.json.decode((tmp_path / "requirements.json").read_bytes())
    assert {"id": "W13", "level": 0} in [{name: each[name] for name in ("id", "level")} for each in required["worker"]]
    assert all(each["meaning"] for each in (*required["worker"], *required["agent"]))
    assert (tmp_path / "vectors.json").read_bytes() == VECTORS.read_bytes()
    assert {path.stem for path in (tmp_path / "schemas").iterdir()} == SCHEMAS.keys()
    request = msgspec.json.decode((tmp_path / "schemas" / "request.json").read_bytes())["$defs"]["Request"]
    assert request["required"] == ["id", "agent", "service"]
    assert request["properties"]["timeout"] == {"type": "number", "default": 60.0}
