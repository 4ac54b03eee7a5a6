"""One server with the tools of the examples, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples_run.desk import Desk
from tests.examples_run.pages import EXAMPLES, commands


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run each file by one process, so that few have to start a server."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
            # Each command is a program of its own, which takes its time to start on a busy machine.
            item.add_marker(pytest.mark.timeout(400))


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """The examples beside the server and the worker that their page starts."""
    made = Desk(tmp_path_factory.mktemp("reader"))
    [command] = [each for each in commands(EXAMPLES / "README.md") if each.startswith("toolbus dev")]
    with made.running(f"{command} --http-port 0", "Ctrl-C stops everything") as running:
        yield made
        printed = running.printed
        assert running.stop() == 0, printed
