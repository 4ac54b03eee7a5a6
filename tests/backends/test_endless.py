"""Programs that answer without end, in places that are no body."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from contextlib import suppress

import pytest

from tests.backends.places import Heard
from tests.listening import Listening
from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.http import Endpoint, HttpCalls

pytestmark = pytest.mark.anyio

_CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_ZIPPED = b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n\r\n" + gzip.compress(b"{}")
_FORMS = {
    "after gzip": (b"HTTP/1.1 200 OK\r\n" + _ZIPPED, b"x" * 65_536, "bad_answer"),
    "error after gzip": (b"HTTP/1.1 500 X\r\n" + _ZIPPED, b"x" * 65_536, "bad_answer"),
    "trailer": (_CHUNKED + b"1\r\n1\r\n0\r\nX-T: ", b"x" * 65_536, "too_long"),
    "trailers": (_CHUNKED + b"1\r\n1\r\n0\r\n", b"X-T: y\r\n" * 8_192, "too_long"),
    "chunk extension": (_CHUNKED + b"1;a=", b"x" * 65_536, "too_long"),
    "header": (b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65_536, "bad_answer"),
}


@pytest.mark.parametrize("form", _FORMS)
async def test_endless_answers_end(form: str) -> None:
    """A call ends with an error while the program goes on, keeps little of what came, and others are answered meanwhile."""
    start, more, code = _FORMS[form]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            if b"/well" in await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            else:
                writer.write(start)
                while True:
                    writer.write(more)
                    await writer.drain()

    listening = await Listening(serve).start()
    calls = HttpCalls(Endpoint(base=f"http://127.0.0.1:{listening.port}"))
    tracemalloc.start()
    try:
        endless = asyncio.create_task(calls.call({}, Heard()))
        assert await calls.get("/well", 60) == ""
        with pytest.raises(ToolError) as raised:
            await asyncio.wait_for(endless, 60)
        assert raised.value.error.code == code
        assert tracemalloc.get_traced_memory()[1] < 16_777_216
    finally:
        tracemalloc.stop()
        await calls.aclose()
        await listening.aclose()
