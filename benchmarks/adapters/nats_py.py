"""nats-py: core NATS request and reply with a queue group, documents by msgspec; nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import nats
from nats.aio.client import Client
from nats.aio.msg import Msg

from benchmarks.adapters.contract import Peer, Setup, dated, main, ready


class Request(msgspec.Struct, omit_defaults=True):
    """One call."""

    text: str = ""
    seconds: float = 0.0
    count: int = 0
    size: int = 0


class Reply(msgspec.Struct, omit_defaults=True):
    """One answer, or one piece of a stream."""

    text: str = ""
    end: bool = False


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode


class Caller:
    """Calls over one connection."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        message = await self.client.request("echo", encode(Request(text=text)), timeout=30)
        return decode_reply(message.data).text

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self.client.request("nap", encode(Request(seconds=seconds)), timeout=30)

    def chunks(self, count: int, size: int) -> AsyncIterator[str]:
        """Have the worker stream ``count`` pieces."""
        return self._stream("chunks", Request(count=count, size=size))

    def trickle(self, count: int, size: int, seconds: float) -> AsyncIterator[str]:
        """Have the worker stream ``count`` dated pieces."""
        return self._stream("trickle", Request(count=count, size=size, seconds=seconds))

    async def _stream(self, subject: str, request: Request) -> AsyncIterator[str]:
        """Yield the pieces as they arrive; a callback subscription is the fastest way in nats-py."""
        arrived: asyncio.Queue[Reply] = asyncio.Queue()

        async def received(message: Msg) -> None:
            arrived.put_nowait(decode_reply(message.data))

        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox, cb=received)
        try:
            await self.client.publish(subject, encode(request), reply=inbox)
            while not (reply := await arrived.get()).end:
                yield reply.text
        finally:
            await subscription.unsubscribe()


async def serve(setup: Setup) -> None:
    """Serve in callbacks; slow ones get a task each, because nats-py awaits a subscription's callbacks one by one."""
    client = await nats.connect(setup.url)
    running: set[asyncio.Task[None]] = set()

    async def echo(message: Msg) -> None:
        await message.respond(encode(Reply(text=decode_request(message.data).text)))

    async def napping(message: Msg) -> None:
        await asyncio.sleep(decode_request(message.data).seconds)
        await message.respond(encode(Reply(text="slept")))

    async def streaming(message: Msg) -> None:
        request = decode_request(message.data)
        piece = "x" * request.size
        for _ in range(request.count):
            await message.respond(encode(Reply(text=piece)))
            await asyncio.sleep(0)
        await message.respond(encode(Reply(end=True)))

    async def trickling(message: Msg) -> None:
        request = decode_request(message.data)
        async for text in dated(request.count, request.size, request.seconds):
            await message.respond(encode(Reply(text=text)))
        await message.respond(encode(Reply(end=True)))

    async def nap(message: Msg) -> None:
        _start(napping(message))

    async def chunks(message: Msg) -> None:
        _start(streaming(message))

    async def trickle(message: Msg) -> None:
        _start(trickling(message))

    def _start(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        running.add(task)
        task.add_done_callback(running.discard)

    for subject, callback in (("echo", echo), ("nap", nap), ("chunks", chunks), ("trickle", trickle)):
        await client.subscribe(subject, queue="workers", cb=callback)
    await client.flush()
    ready()
    await asyncio.Event().wait()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open the client side."""
    client = await nats.connect(setup.url)
    try:
        yield Caller(client)
    finally:
        await client.close()


if __name__ == "__main__":
    main(Peer(serve, connect))
