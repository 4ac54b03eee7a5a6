"""grpc.aio: one channel, documents by msgspec."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec

from benchmarks.adapters.contract import Peer, Setup, main, ready


class Request(msgspec.Struct, omit_defaults=True):
    """One call."""

    text: str = ""
    seconds: float = 0.0


class Reply(msgspec.Struct):
    """One answer."""

    text: str


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_reply = msgspec.json.Decoder(Reply).decode


class Caller:
    """Calls over one channel."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._echo = channel.unary_unary("/tools/echo", request_serializer=encode, response_deserializer=decode_reply)
        self._nap = channel.unary_unary("/tools/nap", request_serializer=encode, response_deserializer=decode_reply)

    async def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        reply: Reply = await self._echo(Request(text=text), timeout=30)
        return reply.text

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self._nap(Request(seconds=seconds), timeout=30)


async def serve(setup: Setup) -> None:
    """Serve both tools."""

    async def echo(request: Request, context: Any) -> Reply:
        return Reply(request.text)

    async def nap(request: Request, context: Any) -> Reply:
        await asyncio.sleep(request.seconds)
        return Reply("slept")

    methods = {
        name: grpc.unary_unary_rpc_method_handler(function, request_deserializer=decode_request, response_serializer=encode)
        for name, function in (("echo", echo), ("nap", nap))
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tools", methods),))
    server.add_insecure_port(f"127.0.0.1:{setup.port}")
    await server.start()
    ready()
    await server.wait_for_termination()


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[Caller]:
    """Open a channel."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{setup.port}") as channel:
        yield Caller(channel)


if __name__ == "__main__":
    main(Peer(serve, connect))
