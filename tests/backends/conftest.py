"""A place of each kind of source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.backends import containers
from tests.backends.places import Place, folder_with, listening, local_source
from tests.backends.served import PROGRAM
from tests.forking import ForkServer
from toolbus.platform.host.host import KINDS, make_runner
from toolbus.platform.records import ToolSource


@pytest.fixture(params=list(KINDS))
async def place(request: pytest.FixtureRequest, forks: ForkServer, tmp_path: Path) -> AsyncIterator[Place]:
    """A place of each kind that the table of kinds has."""
    with ExitStack() as stack:
        match request.param:
            case "local":
                source = local_source(folder_with(PROGRAM, tmp_path))
            case "remote":
                port = stack.enter_context(listening(forks, tmp_path))
                source = ToolSource(type="remote", url=f"http://127.0.0.1:{port}")
            case "docker":
                source = containers.source(folder_with(PROGRAM, tmp_path))
            case kind:
                raise AssertionError(f"no place for {kind}")
        runner = await make_runner(request.param, "host-of-tests", ["127.0.0.1"])
        yield Place(runner, source)
        await runner.aclose()


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[Place]:
    """A place for a local program."""
    runner = await make_runner("local", "host-of-tests")
    yield Place(runner, local_source(folder_with(PROGRAM, tmp_path)))
    await runner.aclose()
