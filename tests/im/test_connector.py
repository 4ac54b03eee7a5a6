"""The connector with a real WebSocket server: windows, order, bad frames, lost connections."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.contract import Place
from tests.im.messenger import Messenger, messenger
from tests.servers import eventually
from toolbus import ToolBus, Worker, tool
from toolbus.agent.im.connector import Connector
from toolbus.agent.im.window import Windows
from toolbus.bus.values.results import ConfigurationError, ToolError

pytestmark = pytest.mark.anyio


class Chat:
    """A chat tool that counts how often it ran."""

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.failures: list[ToolError] = []
        self.gate = asyncio.Event()
        self.gate.set()

    def tool(self) -> object:
        """The tool."""

        @tool(name="chat", service="chat-stand-in", effect="idempotent", replace=True)
        async def chat(message: str, chat_id: str) -> dict[str, str]:
            """Answer."""
            self.ran[message] += 1
            await self.gate.wait()
            if self.failures:
                raise self.failures.pop()
            return {"response": f"{chat_id} heard {message}", "chat_id": chat_id}

        return chat


@asynccontextmanager
async def connected(place: Place, server: Messenger, folder: Path, *, token: str = "") -> AsyncIterator[ToolBus]:
    """A connector for as long as the body runs."""
    async with ToolBus(settings=place.settings) as bus:
        with Windows(folder) as windows:
            connector = Connector(server.url, "tool_agent", windows, bus, "chat", token=token)
            running = asyncio.create_task(connector.run())
            try:
                yield bus
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
                await connector.leave()


@pytest.fixture
def place(server: str, namespace: str) -> Place:
    """A namespace on a server."""
    return Place(server, namespace)


async def test_answers_go_to_the_window_of_their_sender(place: Place, tmp_path: Path) -> None:
    """A message for one window is answered by it, one for no window by all of them, each to its sender's window."""
    chat = Chat()
    async with messenger() as server, Worker(chat.tool(), settings=place.settings), connected(place, server, tmp_path, token="t1") as bus:
        await server.send("m1", "one", "alice-1", receiver_chat_id="w1")
        await server.send("m2", "two", "bob-7", receiver_chat_id="w2")
        await eventually(lambda: len(server.replies) == 2, 30)
        await server.send("m3", "all", "alice-1")
        await eventually(lambda: len(server.replies) == 4, 30)
        assert server.answers() == [
            ("alice-1", "m1", "alice/w1 heard one"),
            ("alice-1", "m3", "alice/w1 heard all"),
            ("alice-1", "m3", "alice/w2 heard all"),
            ("bob-7", "m2", "alice/w2 heard two"),
        ]
        assert server.registered == [{"type": "register", "contact": "tool_agent", "windows": []}]
        assert server.headers[0]["authorization"] == "Bearer t1"
        assert {each["receiver"] for each in server.replies.values()} == {"alice"}

        async def told() -> bool:
            found = await bus.chats.messenger()
            return found is not None and found.connected and found.windows == ("alice/w1", "alice/w2")

        await eventually(told, 30)
        # An answer arrives before its sender has heard that, and may even overtake what acknowledges its message.
        await eventually(lambda: server.acknowledged == {"m1", "m2", "m3"}, 30)
        pending = tmp_path / "windows/alice%2Fw1/pending.json"
        done = {"chat_id": "alice/w1", "pending": [], "name": "w1"}
        await eventually(lambda: json.loads(pending.read_text()) == done, 30)
    lines = [json.loads(line) for line in (tmp_path / "windows/alice%2Fw1/chatbox.jsonl").read_text().splitlines()]
    assert [(each["kind"], each["id"], each["content"]) for each in lines] == [
        ("message", "m1", "one"),
        ("answer", "m1", "alice/w1 heard one"),
        ("message", "m3", "all"),
        ("answer", "m3", "alice/w1 heard all"),
    ]


async def test_a_message_without_any_window_opens_that_of_its_sender(place: Place, tmp_path: Path) -> None:
    """The first message, for all windows, is answered although there is none yet."""
    chat = Chat()
    async with messenger() as server, Worker(chat.tool(), settings=place.settings), connected(place, server, tmp_path):
        await server.send("m1", "hi", "alice-1")
        await eventually(lambda: server.answers() == [("alice-1", "m1", "alice/alice-1 heard hi")], 30)


async def test_a_repeated_message_is_answered_once(place: Place, tmp_path: Path) -> None:
    """A message that comes again, also to the next process, is acknowledged again and not answered again."""
    chat = Chat()
    async with messenger() as server, Worker(chat.tool(), settings=place.settings):
        async with connected(place, server, tmp_path):
            await server.send("m1", "one", receiver_chat_id="w")
            await eventually(lambda: len(server.replies) == 1 and server.acknowledged == {"m1"}, 30)
            server.acknowledged.clear()
            await server.send("m1", "one", receiver_chat_id="w")
            await eventually(lambda: "m1" in server.acknowledged, 30)
        async with connected(place, server, tmp_path):
            await eventually(lambda: len(server.registered) == 2, 30)
            server.acknowledged.clear()
            await server.send("m1", "one", receiver_chat_id="w")
            await server.send("m2", "two", receiver_chat_id="w")
            await eventually(lambda: len(server.replies) == 2 and server.acknowledged == {"m1", "m2"}, 30)
    assert chat.ran == {"one": 1, "two": 1}
    assert set(server.heard.values()) == {1}


@pytest.mark.usefixtures("slow")
async def test_messages_outlive_the_connection_and_the_server(place: Place, tmp_path: Path) -> None:
    """A connection that breaks while an answer is made, and a server that is away for a while, lose nothing."""
    chat = Chat()
    chat.gate.clear()
    async with messenger() as server, Worker(chat.tool(), settings=place.settings), connected(place, server, tmp_path):
        await eventually(lambda: server.registered, 30)
        for number in range(5):
            await server.send(f"m{number}", f"text {number}", receiver_chat_id=f"w{number % 2}")
        await eventually(lambda: chat.ran.total() == 2, 30)
        await server.drop()
        await eventually(lambda: len(server.registered) == 2, 30)
        await server.stop()
        chat.gate.set()
        await server.start()
        await eventually(lambda: len(server.replies) == 5, 60)
    assert set(chat.ran.values()) == {1}


async def test_bad_frames_are_told_and_skipped(place: Place, tmp_path: Path) -> None:
    """Frames that are no messages are complained of, one by one, on the same connection, and the next message is answered."""
    chat = Chat()
    bad: list[str | bytes] = [
        "{",
        "[]",
        "5",
        b"\x00\x01",
        "[" * 100_000,
        '{"type": "dance"}',
        '{"type": "message"}',
        '{"type": "message", "id": "", "content": "x"}',
        '{"type": "message", "id": "a", "content": 5}',
        '{"type": "message", "id": "b", "content": "  "}',
        json.dumps({"id": "c", "content": "x" * 100_001}),
        json.dumps({"id": "d", "content": "x", "receiver_chat_id": "w" * 256}),
        json.dumps({"id": "e", "content": "x", "receiver_chat_id": "a\u202eb"}),
        json.dumps({"id": "e", "content": "x", "receiver_chat_id": "\ud800"}),
        "x" * 2_000_000,
    ]
    async with messenger() as server, Worker(chat.tool(), settings=place.settings), connected(place, server, tmp_path):
        await eventually(lambda: server.registered, 30)
        for each in bad:
            await server.raw(each)
        await server.raw('{"type": "ack", "id": "other"}')
        for name in ("../../etc", "/", "..", ".", "a/b", "lock"):
            await server.send(f"at {name}", "ok", receiver_chat_id=name)
        await eventually(lambda: len(server.replies) == 6, 60)
    assert len(server.complaints) == len(bad)
    assert len(server.registered) == 1
    assert all(each["message"] and "\n" not in each["message"] for each in server.complaints)
    found = await asyncio.to_thread(lambda: [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json*")])
    assert {path.count("/") for path in found} == {2}
    assert {path.partition("/")[0] for path in found} == {"windows"}


async def test_failures_of_the_chat(place: Place, tmp_path: Path) -> None:
    """A passing failure is asked again; one that will not pass is the answer."""
    chat = Chat()
    chat.failures = [ToolError("no such thing", code="nope"), ToolError("busy", type="unavailable")]
    async with messenger() as server, Worker(chat.tool(), settings=place.settings), connected(place, server, tmp_path):
        await server.send("m1", "one", receiver_chat_id="w")
        await server.send("m2", "two", receiver_chat_id="w")
        await eventually(lambda: len(server.replies) == 2, 60)
    assert server.answers() == [("alice-1", "m1", "I can't answer this: no such thing"), ("alice-1", "m2", "alice/w heard two")]
    assert chat.ran == {"one": 2, "two": 1}


async def test_messages_wait_for_a_service_agent(place: Place, tmp_path: Path) -> None:
    """A message that comes before any worker does is kept, and answered once there is one."""
    chat = Chat()
    async with messenger() as server, connected(place, server, tmp_path):
        await server.send("m1", "one", receiver_chat_id="w")
        await eventually(lambda: server.acknowledged == {"m1"}, 30)
        async with Worker(chat.tool(), settings=place.settings):
            await eventually(lambda: len(server.replies) == 1, 60)


async def test_one_process_has_the_windows(place: Place, tmp_path: Path) -> None:
    """A second process with the same folder is refused, with what to do."""
    with Windows(tmp_path), pytest.raises(ConfigurationError, match=r"another process.*--state"), Windows(tmp_path):
        pass
