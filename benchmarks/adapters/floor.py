"""The floor: the least that a Python program can do to call through Redis Streams, without any feature.

It uses toolbus's wire format (the documents of toolbus.envelope, one consumer group per
service, one reply stream per agent whose entries carry lists of frames) over an asyncio
Protocol with hiredis, one connection for writes and one for blocking reads. Everything
written in one tick of the loop is sent together, and each call is one asyncio task in
the worker. There is no lease, fence, deadline, registry, validation, cancellation, bound or
recovery: the distance to it is the cost of those.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import msgspec

from benchmarks.adapters.contract import Peer, Setup, dated, main, ready
from toolbus.bus.values.envelope import Frame, Request, new_id, new_run

QUEUE = b"floor:q"
GROUP = b"g"
REPLIES = b"floor:rsp:"
TRIM_EVERY = 64

encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(Request).decode
decode_frames = msgspec.json.Decoder(list[Frame]).decode
pack = hiredis.pack_command


class Connection(asyncio.Protocol):
    """One connection: commands are sent once per tick, replies go to a function."""

    def __init__(self, received: Callable[[Any], None]) -> None:
        self.received = received
        self.reader = hiredis.Reader()
        self.pending: list[bytes] = []
        self.transport: asyncio.WriteTransport | None = None
        self.loop = asyncio.get_running_loop()

    @classmethod
    async def open(cls, setup: Setup, received: Callable[[Any], None]) -> Connection:
        """Connect."""
        _, connection = await asyncio.get_running_loop().create_connection(lambda: cls(received), setup.host, setup.port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Parse the data, and pass on each reply."""
        reader = self.reader
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            self.received(reply)

    def send(self, *command: Any) -> None:
        """Write a command at the end of this tick."""
        if not self.pending:
            self.loop.call_soon(self.flush)
        self.pending.append(pack(command))

    def flush(self) -> None:
        """Write the commands of this tick."""
        assert self.transport is not None
        self.transport.write(b"".join(self.pending))
        self.pending.clear()

    def close(self) -> None:
        """Disconnect."""
        if self.transport is not None:
            self.transport.abort()


def _ignore(reply: Any) -> None:
    if isinstance(reply, hiredis.ReplyError) and not str(reply).startswith("BUSYGROUP"):
        raise reply


class FloorWorker:
    """Takes requests, runs each as a task, and writes a tick's frames, acknowledgements and deletions together."""

    def __init__(self, setup: Setup) -> None:
        self.free = setup.concurrency
        self.frames: defaultdict[str, list[bytes]] = defaultdict(list)
        self.finished: list[bytes] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop = asyncio.get_running_loop()
        self.taking = False
        self.scheduled = False

    async def run(self, setup: Setup) -> None:
        """Serve until cancelled."""
        self.writer = await Connection.open(setup, _ignore)
        self.writer.send(b"XGROUP", b"CREATE", QUEUE, GROUP, b"0", b"MKSTREAM")
        await asyncio.sleep(0.1)
        self.source = await Connection.open(setup, self.taken)
        self.take()
        ready()
        await asyncio.Event().wait()

    def take(self) -> None:
        """Ask for as many requests as there are free slots."""
        if self.taking or self.free <= 0:
            return
        self.taking = True
        self.source.send(b"XREADGROUP", b"GROUP", GROUP, b"w%d" % os.getpid(), b"COUNT", self.free, b"BLOCK", 2000, b"STREAMS", QUEUE, b">")

    def taken(self, reply: Any) -> None:
        """Start a task for each request."""
        self.taking = False
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        if reply:
            for entry, fields in reply[0][1]:
                self.free -= 1
                task = self.loop.create_task(self.handle(entry, decode_request(fields[1])))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        self.take()

    async def handle(self, entry: bytes, request: Request) -> None:
        """Run one call."""
        run = new_run()
        arguments = request.arguments
        if request.tool == "echo":
            end = Frame(request.id, run, kind="end", response=arguments["text"], end_of_stream=True)
        elif request.tool == "nap":
            await asyncio.sleep(arguments["seconds"])
            end = Frame(request.id, run, kind="end", response="slept", end_of_stream=True)
        elif request.tool == "trickle":
            seq = 0
            async for text in dated(**arguments):
                self.emit(request.agent, Frame(request.id, run, 1, seq, "text", text))
                seq += 1
            end = Frame(request.id, run, 1, seq, "end", end_of_stream=True)
        else:
            piece = "x" * arguments["size"]
            count = arguments["count"]
            for seq in range(count):
                self.emit(request.agent, Frame(request.id, run, 1, seq, "text", piece))
                await asyncio.sleep(0)
            end = Frame(request.id, run, 1, count, "end", end_of_stream=True)
        self.emit(request.agent, end)
        self.finished.append(entry)

    def emit(self, agent: str, frame: Frame) -> None:
        """Add a frame to this tick's."""
        self.frames[agent].append(encode(frame))
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write this tick's frames as one entry per agent, and acknowledge the finished requests."""
        self.scheduled = False
        commands = [
            pack((b"XADD", REPLIES + agent.encode(), b"*", b"f", b"[" + b",".join(frames) + b"]")) for agent, frames in self.frames.items()
        ]
        self.frames.clear()
        if self.finished:
            self.free += len(self.finished)
            commands.append(pack((b"XACK", QUEUE, GROUP, *self.finished)))
            commands.append(pack((b"XDEL", QUEUE, *self.finished)))
            self.finished.clear()
            self.take()
        assert self.writer.transport is not None
        self.writer.transport.write(b"".join(commands))


class FloorCaller:
    """Publishes requests and routes the frames of one reply stream."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.stream = REPLIES + agent.encode()
        self.waiting: dict[str, asyncio.Future[str | None]] = {}
        self.streams: dict[str, asyncio.Queue[Frame]] = {}
        self.last = b"0"
        self.entries = 0
        self.loop = asyncio.get_running_loop()

    async def open(self, setup: Setup) -> None:
        """Connect and start reading."""
        self.writer = await Connection.open(setup, _ignore)
        self.source = await Connection.open(setup, self.arrived)
        self.read()

    def read(self) -> None:
        """Ask for the next replies."""
        self.source.send(b"XREAD", b"BLOCK", 2000, b"STREAMS", self.stream, self.last)

    def arrived(self, reply: Any) -> None:
        """Route each frame, and regularly trim the entries that have been read."""
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        if reply:
            entries = reply[0][1]
            self.last = entries[-1][0]
            self.entries += len(entries)
            for _, fields in entries:
                for frame in decode_frames(fields[1]):
                    self.route(frame)
            if self.entries >= TRIM_EVERY:
                self.entries = 0
                self.writer.send(b"XTRIM", self.stream, b"MINID", self.last)
        self.read()

    def route(self, frame: Frame) -> None:
        """Pass a frame to its call."""
        future = self.waiting.pop(frame.id, None)
        if future is not None:
            if not future.done():
                future.set_result(frame.response)
            return
        queue = self.streams.get(frame.id)
        if queue is not None:
            queue.put_nowait(frame)

    def publish(self, tool: str, arguments: dict[str, Any]) -> str:
        """Send a request."""
        request = Request(new_id(), self.agent, "bench", tool, arguments=arguments)
        self.writer.send(b"XADD", QUEUE, b"*", b"r", encode(request))
        return request.id

    async def _call(self, tool: str, arguments: dict[str, Any]) -> str | None:
        future = self.waiting[self.publish(tool, arguments)] = self.loop.create_future()
        return await future

    async def echo(self, text: str) -> str | None:
        """Have the worker return ``text``."""
        return await self._call("echo", {"text": text})

    async def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        await self._call("nap", {"seconds": seconds})

    def chunks(self, count: int, size: int) -> AsyncIterator[str]:
        """Have the worker stream ``count`` pieces."""
        return self._stream("chunks", {"count": count, "size": size})

    def trickle(self, count: int, size: int, seconds: float) -> AsyncIterator[str]:
        """Have the worker stream ``count`` dated pieces."""
        return self._stream("trickle", {"count": count, "size": size, "seconds": seconds})

    async def _stream(self, tool: str, arguments: dict[str, Any]) -> AsyncIterator[str]:
        queue: asyncio.Queue[Frame] = asyncio.Queue()
        call = self.publish(tool, arguments)
        self.streams[call] = queue
        try:
            while not (frame := await queue.get()).end_of_stream:
                yield frame.response or ""
        finally:
            del self.streams[call]


async def serve(setup: Setup) -> None:
    """Serve until terminated."""
    await FloorWorker(setup).run(setup)


@asynccontextmanager
async def connect(setup: Setup) -> AsyncIterator[FloorCaller]:
    """Open the client side."""
    caller = FloorCaller(os.urandom(8).hex())
    await caller.open(setup)
    try:
        yield caller
    finally:
        caller.source.close()
        caller.writer.close()


if __name__ == "__main__":
    main(Peer(serve, connect))
