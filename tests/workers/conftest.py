"""The SQL tools on a desk, empty or with a table of sales."""

import pytest

from tests.workers.data_desk import SALES, serving


@pytest.fixture
async def desk(namespace):
    async with serving(namespace=namespace) as opened:
        yield opened


@pytest.fixture
async def sales(desk):
    result = await desk.upload("sales", SALES)
    assert result.success, result.error
    return desk
