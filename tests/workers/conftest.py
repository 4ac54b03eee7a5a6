"""The SQL tools on a client, empty or with a table of sales, and an operator's commands."""

import asyncio
import json
import os
from pathlib import Path

import pytest

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
        await command(url, namespace, "put", f"tool/{name}", given=json.dumps(document))

    return run
