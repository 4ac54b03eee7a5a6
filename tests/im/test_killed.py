"""A connector that is killed at each of its steps: the next one answers everything, and nothing twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract import Place
from tests.forking import ForkServer, Program
from tests.im.messenger import Messenger, messenger
from tests.im.test_connector import Chat
from tests.servers import eventually
from toolbus import Worker

pytestmark = pytest.mark.anyio

MESSAGES = (("m1", "one"), ("m2", "two"))
# So many processes are killed at once.
AT_ONCE = 4


class Scene:
    """Connectors as processes, each scene with a messenger of its own."""

    def __init__(self, place: Place, forks: ForkServer, folder: Path) -> None:
        self.place = place
        self.forks = forks
        self.folder = folder

    def start(self, server: Messenger, name: str, step: str) -> Program:
        """Start a connector that dies at a step."""
        environment = {
            **os.environ,
            "TOOLBUS_URL": self.place.settings.url,
            "TOOLBUS_NAMESPACE": self.place.settings.namespace,
            "NO_PROXY": "127.0.0.1",
        }
        words = ("platform", "im", "--server", server.url, "--contact", f"tool_agent {name}", "--state", str(self.folder / name))
        return self.forks.start("-m", "tests.im.dying", str(self.folder / f"trace {name}"), step, *words, environment=environment)

    async def run(self, name: str, step: str) -> list[str]:
        """Answer the messages with a process that dies at the step, and with the next one; return what is wrong."""
        async with messenger() as server:
            for key, text in MESSAGES:
                await server.send(key, f"{text} {name}", receiver_chat_id=f"w {name}")
            processes = [self.start(server, name, step)]
            try:
                if step:
                    code = await asyncio.to_thread(processes[0].wait)
                    await eventually(lambda: server.connections == 0, 60)
                    if code != -signal.SIGKILL:
                        return [f"{step!r} was not reached"]
                    processes.append(self.start(server, name, ""))
                await eventually(lambda: len(server.replies) == len(MESSAGES) and len(server.acknowledged) == len(MESSAGES), 60)
                await eventually(self.settled(name), 60)
                # The process before may have died before its first frame.
                await eventually(lambda: server.connections == 1, 60)
                processes[-1].terminate()
                code = await asyncio.to_thread(processes[-1].wait)
            finally:
                for each in processes:
                    each.kill()
            wrong = [] if code == 0 else [f"{step!r}: the last process ended with {code}"]
            expected = [("alice-1", key, f"alice/w {name} heard {text} {name}") for key, text in MESSAGES]
            return wrong + ([] if server.answers() == expected else [f"{step!r}: {server.answers()}"])

    def settled(self, name: str) -> Callable[[], bool]:
        """Return a condition: every answer stands in the chatbox, once, and nothing is pending."""

        def condition() -> bool:
            (window,) = (self.folder / name / "windows").iterdir()
            lines = (window / "chatbox.jsonl").read_text().splitlines()
            return len(lines) == 2 * len(MESSAGES) and '"pending": []' in (window / "pending.json").read_text()

        return condition


@pytest.mark.usefixtures("slow")
async def test_killed_at_each_step(valkey_server: str, namespace: str, forks: ForkServer, tmp_path: Path) -> None:
    """After SIGKILL at any step each message has one answer, and the chat was asked for it once."""
    place = Place(valkey_server, namespace)
    chat = Chat()
    scene = Scene(place, forks, tmp_path)
    async with Worker(chat.tool(), settings=place.settings):
        assert await scene.run("undisturbed", "") == []
        steps = (tmp_path / "trace undisturbed").read_text().splitlines()
        assert len(steps) > 40
        waiting = [*enumerate(sorted(set(steps)))]
        wrong: list[str] = []

        async def work() -> None:
            while waiting:
                number, step = waiting.pop()
                wrong.extend(await scene.run(str(number), step))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    assert wrong == []
    assert set(chat.ran.values()) == {1}
