"""FastAPI: the tools as routes with checked bodies."""

from __future__ import annotations

import asyncio

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.adapters.contract import Setup, ready

app = FastAPI()


class Echo(BaseModel):
    """The body of an echo."""

    text: str


class Nap(BaseModel):
    """The body of a nap."""

    seconds: float


class Answer(BaseModel):
    """An answer."""

    text: str


@app.post("/echo")
async def echo(body: Echo) -> Answer:
    """Return the argument."""
    return Answer(text=body.text)


@app.post("/nap")
async def nap(body: Nap) -> Answer:
    """Sleep, like a tool that waits for a network."""
    await asyncio.sleep(body.seconds)
    return Answer(text="slept")


async def serve(setup: Setup) -> None:
    """Serve without any log."""
    ready()
    await uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=setup.port, log_config=None, access_log=False)).serve()
