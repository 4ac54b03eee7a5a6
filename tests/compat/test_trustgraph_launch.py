"""``launch``: a tool service of that project as a real process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract import Place
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.compat.trustgraph import ToolServiceClient

pytestmark = pytest.mark.anyio

SERVICE = '''"""
A service as that project writes one.

Example tool-service config:
{"id": "joke-service", "topic": "joke"}
"""

import asyncio
import os

from trustgraph.base import DynamicToolService

default_ident = "joke-service"


class Processor(DynamicToolService):
    def __init__(self, **params):
        super(Processor, self).__init__(**params)
        self.place = params["place"]

    async def start(self):
        await super(Processor, self).start()
        self.background = self.taskgroup.create_task(asyncio.Event().wait())

    async def invoke(self, user, config, arguments):
        if "wait" in arguments:
            open(arguments["wait"], "w").close()
            while os.path.exists(arguments["wait"]):
                await asyncio.sleep(0.01)
        return f"{self.id} {self.place} {user} {config.get('style')} {arguments.get('topic')}"

    @staticmethod
    def add_args(parser):
        DynamicToolService.add_args(parser)
        parser.add_argument("--place", default="here")


def run():
    Processor.launch(default_ident, __doc__)


run()
'''
REQUEST = "non-persistent://tg/request/joke"

Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Provide a function that starts the service as a process: ``launch(url, namespace, *options)``."""
    # Only its import is another than in that project.
    (tmp_path / "joke.py").write_text(SERVICE.replace("trustgraph.base", "toolbus.compat.trustgraph"))
    started: list[subprocess.Popen[str]] = []

    def start(url: str, namespace: str, *options: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "TOOLBUS_URL": url, "TOOLBUS_NAMESPACE": namespace, "TOOLBUS_LOG_FORMAT": "json"}
        command = [sys.executable, "joke.py", *options]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


async def served(bus: ToolBus, processes: int = 1) -> None:
    """Wait until so many processes serve the topic: each imports for a while first."""

    async def live() -> bool:
        async with Admin(bus.settings) as admin:
            return any(each.publication.service.id == "trustgraph.joke" and each.workers >= processes for each in await admin.services())

    await eventually(live, timeout=60)
    await eventually(lambda: "trustgraph.joke" in bus.services)


@pytest.mark.usefixtures("slow")
async def test_launch_serves_until_sigterm_and_finishes_what_runs(place: Place, launch: Launch, tmp_path: Path) -> None:
    """The process serves its topic with the subclass's own options; on SIGTERM the running call is answered, and it exits with 0."""
    url, namespace = place.settings.url, place.settings.namespace
    process = launch(url, namespace, "-t", "joke", "--place", "there")
    marker = tmp_path / "waits"
    async with place.bus() as bus:
        await served(bus)
        client = ToolServiceClient(REQUEST, bus=bus)
        assert await client.call("al", {"style": "pun"}, {"topic": "tea"}) == "joke-service there al pun tea"
        async with bus.service(REQUEST).stream("al", {}, {"wait": str(marker), "topic": "last"}) as call:
            await eventually(marker.exists)
            process.send_signal(signal.SIGTERM)
            await eventually(lambda: not bus.services["trustgraph.joke"].live if "trustgraph.joke" in bus.services else True)
            marker.unlink()
            assert (await call.result()).output == "joke-service there al None last"
    _, told = process.communicate(timeout=15)
    assert (process.returncode, "Traceback" in told) == (0, False), told


@pytest.mark.usefixtures("slow")
async def test_two_processes_share_a_topic(place: Place, launch: Launch, tmp_path: Path) -> None:
    """Each takes one call at a time, as in that project: two calls run at once in two processes."""
    url, namespace = place.settings.url, place.settings.namespace
    for number in (1, 2):
        launch(url, namespace, "--topic", "joke", "--id", f"joke-{number}")
    markers = [tmp_path / "first", tmp_path / "second"]
    async with place.bus() as bus:
        await served(bus, 2)
        service = bus.service(REQUEST)
        calls = [service.stream("al", {}, {"wait": str(marker)}) for marker in markers]
        async with calls[0], calls[1]:
            await eventually(lambda: all(marker.exists() for marker in markers), timeout=15)
            for marker in markers:
                marker.unlink()
            told = {str((await call.result()).output).partition(" ")[0] for call in calls}
    assert told == {"joke-1", "joke-2"}


@pytest.mark.usefixtures("slow")
def test_a_bad_command_line_says_what_is_wrong(launch: Launch, url: str, namespace: str) -> None:
    """Wrong options exit with 2 and a usage line, wrong settings with 1 and one line; --help shows the document."""
    for options, code, said in (
        (("--topik", "joke"), 2, "unrecognized arguments: --topik joke"),
        (("--concurrency", "many"), 2, "invalid int value"),
        (("--concurrency", "-1"), 1, "concurrency"),
        (("--url", "http://nowhere"), 1, "http"),
    ):
        process = launch(url, namespace, *options)
        _, told = process.communicate(timeout=30)
        assert (process.returncode, said in told, "Traceback" in told) == (code, True, False), told
        assert told.splitlines()[-1].startswith("joke-service: ")
    told, _ = launch(url, namespace, "--help").communicate(timeout=30)
    assert '{"id": "joke-service", "topic": "joke"}' in told
    assert re.search(r"-t(, | TOPIC, )--topic", told)


@pytest.mark.usefixtures("slow")
async def test_launch_waits_for_its_server(launch: Launch, namespace: str, fresh_server: Callable[..., EmbeddedServer]) -> None:
    """Started before its server, the process serves when the server is there; SIGTERM while it waits ends it with 0."""
    server = fresh_server()
    server.stop()
    process, other = (launch(server.url, namespace, "-t", "joke") for _ in range(2))
    for each in (process, other):
        assert each.stderr is not None
        assert "trustgraph.unavailable" in each.stderr.readline()
    other.send_signal(signal.SIGTERM)
    assert other.wait(10) == 0
    server.start()
    async with ToolBus(server.url, namespace=namespace) as bus:
        await served(bus)
        assert (await ToolServiceClient(REQUEST, bus=bus).call("al", {}, {})).startswith("joke-service here al")
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 0
