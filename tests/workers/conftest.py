"""Clients of the SQL tools and of the graph store, empty or not, and an operator's commands."""

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from tests.workers import graph_client
from tests.workers.data_client import SALES, serving
from toolbus import Session


@pytest.fixture
async def client(namespace):
    async with serving(namespace=namespace) as opened:
        yield opened


@pytest.fixture
async def sales(client):
    return await with_sales(client)


@pytest.fixture(scope="module")
async def opened():
    """A client for the tests of a module, which take its sessions by ``session_of``."""
    async with serving(namespace="shared") as made:
        yield made


@pytest.fixture
async def shared_client(opened):
    """A client whose session is that of the tests before, and empty."""
    async with session_of(opened, "empty", []) as client:
        yield client


@pytest.fixture
async def shared_sales(opened):
    """The same with the table of sales."""
    async with session_of(opened, "sales", ["sales"]) as client:
        yield client


@contextlib.asynccontextmanager
async def session_of(opened, session, tables):
    """A session with these tables; it is ended when a test leaves others, so that the next one starts anew."""
    client = opened.other(session=session)
    if "sales" in tables and not await tables_of(client):
        await with_sales(client)
    assert await tables_of(client) == tables
    yield client
    if await tables_of(client) != tables:
        await client.service.cleanup(Session(client.who["user"], client.who["session"]))


async def tables_of(client):
    result = await client.call("data_tables")
    assert result.success, result.error
    return [each["name"] for each in result.data["tables"]]


async def with_sales(client):
    result = await client.upload("sales", SALES)
    assert result.success, result.error
    return client


@pytest.fixture
async def graph(namespace):
    """A client of a graph store that is empty."""
    async with graph_client.serving(namespace) as opened:
        yield opened


@pytest.fixture
async def people(graph):
    """A client of a graph store with three people."""
    return await with_people(graph)


@pytest.fixture(scope="module")
async def same_people():
    """A client of a graph store with three people, which the tests of a module leave as it is."""
    async with graph_client.serving("shared") as graph:
        yield await with_people(graph)


async def with_people(graph):
    assert (await graph.load("vertices", "Person", csv=graph_client.PEOPLE)).success
    assert (await graph.load("edges", "KNOWS", rows=graph_client.KNOWS, source="Person", target="Person")).success
    return graph


@pytest.fixture
def command(forks):
    """``await command(url, namespace, *words, given="")`` runs a toolbus command, which must succeed, and returns what it says."""

    async def run(url, namespace, *words, given=""):
        line = ["-m", "toolbus", "--url", url, "--namespace", namespace, *words]
        done = await asyncio.to_thread(forks.run, *line, folder=Path.cwd(), environment=os.environ, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def put(command):
    """``await put(url, namespace, name, service, **config)`` adds a tool to a running service from the command line."""

    async def run(url, namespace, name, service, **config):
        document = {"type": "tool-service", "name": name, "description": "a tool", "service": service, **config}
        await command(url, namespace, "operate", "items", "put", f"tool/{name}", given=json.dumps(document))

    return run
