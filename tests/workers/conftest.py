"""Clients of the SQL tools and of the graph store, empty or not, and an operator's commands."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.workers import graph_client
from tests.workers.data_client import SALES, serving


@pytest.fixture
async def client(namespace):
    async with serving(namespace=namespace) as opened:
        yield opened


@pytest.fixture
async def sales(client):
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
