"""The web application of ``examples/fastapi``: values, streams, a client that leaves, and its end."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from urllib.error import HTTPError

import pytest

from tests.examples_run.desk import PATIENCE, Desk, Running
from tests.examples_run.pages import EXAMPLES, commands
from tests.servers import eventually_sync
from toolbus.bus.broker.transport.embedded import free_port

COMMANDS = commands(EXAMPLES / "README.md")
[START] = [each for each in COMMANDS if each.endswith("fastapi/app.py")]
# A call that takes a minute.
LONG = "/seats?" + "&".join(["train=R61"] * 400)


class Application:
    """The application that runs, as its page starts it, at another port."""

    def __init__(self, running: Running, port: str) -> None:
        self.running = running
        self.port = port
        self.paths = [re.findall(r"localhost:\d+(\S+)'", each)[0] for each in COMMANDS if each.startswith("curl")]

    def get(self, path: str) -> str:
        """Return the answer to a request."""
        with self.open(path) as answer:
            return str(answer.read().decode())

    def open(self, path: str) -> urllib.request._UrlopenRet:
        """Begin to read the answer to a request."""
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE)


@pytest.fixture(scope="module")
def application(desk: Desk) -> Iterator[Application]:
    """The application, started by the page's command."""
    port = str(free_port())
    with desk.running(f"env PORT={port} {START}", "Uvicorn running") as running:
        yield Application(running, port)


@pytest.mark.usefixtures("slow")
def test_a_request_is_answered_with_the_value_of_a_tool(application: Application) -> None:
    """The first request of the page gets the trains as JSON."""
    found = json.loads(application.get(application.paths[0]))
    assert [each["train"] for each in found] == ["R61", "R601", "R63"]


def test_a_stream_has_each_event_up_to_the_end(application: Application) -> None:
    """The second request gets progress, text and one end."""
    events = re.findall(r"event: (\w+)\ndata: (.*)\n\n", application.get(application.paths[1]))
    assert [name for name, _ in events].count("progress") == 6
    assert "".join(json.loads(data)["text"] for name, data in events if name == "text") == json.loads(events[-1][1])["output"]
    assert [name for name, _ in events].index("end") == len(events) - 1


def test_failures_have_a_status(application: Application) -> None:
    """A wrong request is refused, and a stream that has begun says at its end that the tool failed."""
    with pytest.raises(HTTPError) as refused:
        application.get("/trains?start=Oslo")
    assert refused.value.code == 422
    refused.value.close()
    assert '"success": false' in application.get("/seats?train=none")


@pytest.mark.usefixtures("slow")
def test_a_client_that_leaves_cancels_its_call(application: Application, desk: Desk) -> None:
    """Closing the connection in the middle of a stream ends the tool's run."""
    before = desk.run("toolbus see calls").count("cancelled")
    with application.open(LONG) as answer:
        assert answer.readline() == b"event: progress\n"
    eventually_sync(lambda: desk.run("toolbus see calls").count("cancelled") > before, timeout=PATIENCE)


@pytest.mark.usefixtures("slow")
def test_ctrl_c_ends_it_cleanly(desk: Desk) -> None:
    """A stream that is open ends with an event that says so, the bus is closed, and nothing is said to have gone wrong."""
    port = str(free_port())
    with desk.running(f"env PORT={port} {START}", "Uvicorn running") as running:
        with Application(running, port).open(LONG) as answer:
            assert answer.readline() == b"event: progress\n"
            running.interrupt()
            rest = answer.read().decode()
        running.stop()
    assert rest.rpartition("event: ")[2].startswith("end\n")
    assert "cancelled" in rest.rpartition("event: ")[2]
    assert "Application shutdown complete" in running.printed
    assert "Traceback" not in running.printed
