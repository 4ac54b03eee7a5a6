"""The SQL tools on a client, empty or with a table of sales."""

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
