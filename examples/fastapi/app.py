"""A web application whose requests call tools. Needs `pip install toolbus fastapi uvicorn`."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from socket import socket
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import StreamingResponse

from toolbus import Call, Progress, ToolBus
from toolbus.events import Finished, Text

streams: set[Call] = set()
STATUS = {"invalid_arguments": 422, "not_found": 404, "unavailable": 503, "overloaded": 503, "deadline_exceeded": 504}


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, ToolBus]]:
    """Open one bus for the process. It is closed after the last request, and ends the calls that still run."""
    async with ToolBus() as bus:
        yield {"bus": bus}


def open_bus(request: Request) -> ToolBus:
    """Return the bus of this process."""
    return request.state.bus


app = FastAPI(lifespan=lifespan)
Bus = Annotated[ToolBus, Depends(open_bus)]


@app.get("/trains")
async def trains(bus: Bus, start: str, to: str) -> list[dict[str, str]]:
    """Answer with what a tool returns, or with the status that fits its error."""
    result = await bus.call("find_trains", {"start": start, "to": to}, user="web", timeout=10)
    if result.error is not None:
        raise HTTPException(STATUS.get(result.error.type, 502), str(result))
    return result.data


@app.get("/seats")
async def seats(bus: Bus, train: Annotated[list[str], Query()]) -> StreamingResponse:
    """Stream what a tool does while it does it, as server-sent events."""
    return StreamingResponse(events(bus, train), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def events(bus: ToolBus, trains: list[str]) -> AsyncIterator[str]:
    """Write each event of a call. A browser that leaves ends this generator, and leaving the block cancels the call."""
    async with bus.stream("count_free_seats", {"trains": trains}, user="web") as call:
        streams.add(call)
        try:
            async for event in call.events():
                match event:
                    case Progress(done=done, total=total, message=message):
                        yield written("progress", {"done": done, "total": total, "message": message})
                    case Text(text=text):
                        yield written("text", {"text": text})
                    case Finished(result=result):
                        yield written("end", {"success": result.success, "output": str(result)})
        finally:
            streams.discard(call)


def written(name: str, data: dict[str, object]) -> str:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


class Server(uvicorn.Server):
    """A server that ends the streams when it is told to stop; it would wait for them instead, and then break them off."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Tell each stream's reader that the call was cancelled, let other requests finish, and run the end of the lifespan."""
        for call in streams:
            call.cancel()
        await super().shutdown(sockets)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # uvicorn passes Ctrl-C on when everything has ended
        Server(uvicorn.Config(app, port=int(os.environ.get("PORT", "8000")), timeout_graceful_shutdown=5)).run()
