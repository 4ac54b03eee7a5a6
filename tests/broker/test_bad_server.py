"""The link at a server that answers late, too much, never, or with directions to nowhere: each command ends, and so does each wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.broker.observing import Observed
from tests.broker.serving import Server, link, linked, server, silent
from tests.servers import eventually
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport import command as refusals
from toolbus.bus.broker.transport import link as link_module
from toolbus.bus.broker.transport import links as short_link
from toolbus.bus.broker.transport import wire
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import ShortLink
from toolbus.bus.broker.transport.mastership import Replication
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

__all__ = ["link", "server"]


@pytest.mark.parametrize("nowhere", ["ASK 1 garbage", "ASK", "ASK 1", "ASK 1 host:0", "ASK 1 host:99999999", "ASK 1 host:" + "9" * 5_000])
async def test_a_redirection_to_nowhere_is_an_error(server: Server, link: Link, nowhere: str) -> None:
    """It ends the command that it answers, once; the next ones are carried out."""
    answers: list[Any] = []
    server.answer = lambda command: b"-" + nowhere.encode() + b"\r\n" if command[0] == b"ASKED" else b"+OK\r\n"
    link.send(("ASKED",), answers.append)
    assert await link.execute("NEXT") == b"OK"
    assert [str(answer) for answer in answers] == [nowhere]


@pytest.mark.parametrize("nowhere", ["MOVED 1 garbage", "MOVED", "MOVED 1", "MOVED 1 host:0"])
async def test_a_move_to_nowhere_is_looked_up_afresh(server: Server, link: Link, nowhere: str) -> None:
    """The server is not in charge, wherever it says that another one is: the command is carried out there that is found."""
    refuse = True

    def answer(command: list[bytes]) -> bytes:
        nonlocal refuse
        refuse, refused = False, refuse
        return b"-" + nowhere.encode() + b"\r\n" if refused else b"+OK\r\n"

    server.answer = answer
    assert await link.execute("WRITE") == b"OK"
    assert server.accepted == 2


@pytest.mark.parametrize("push", [b">0\r\n", b">1\r\n*0\r\n", b">3\r\n$7\r\nmessage\r\n:-5\r\n_\r\n"])
async def test_a_push_that_nobody_can_read_disturbs_nobody(server: Server, push: bytes) -> None:
    """Also when its listener raises, and while a subscription waits for its own."""
    heard: list[Any] = []

    def raises(message: list[Any]) -> None:
        heard.append(message)
        raise ValueError("unreadable")

    server.subscribed = push + server.subscribed
    made = Link(Connector(server.url), on_push=raises)
    await made.connect()
    made.subscribe("channel")
    assert await made.execute("PING") == b"OK"
    made.close()
    assert len(heard) == 1
    assert server.accepted == 1


async def test_an_answer_without_end_is_given_up(server: Server, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would fill the memory; the next connection answers."""
    monkeypatch.setattr(wire, "_MOST_REPLY", 100_000)
    server.answer = lambda command: b"$2500000000\r\n" + b"x" * 200_000 if server.accepted == 1 else b"+OK\r\n"
    assert await link.execute("READ", repeatable=True) == b"OK"
    assert server.accepted == 2


async def test_more_elements_than_memory_are_given_up(server: Server, link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reply that the parser can't hold is a lost connection, like one that it can't read."""

    class Full:
        def feed(self, data: bytes) -> None: ...

        def gets(self) -> None:
            raise MemoryError

    server.answer = silent
    answers: list[Any] = []
    link.send(("READ",), answers.append)
    await eventually(lambda: server.names == ["READ"])
    monkeypatch.setattr(link, "_reader", Full())
    server.say(b"*4294967290\r\n")
    await eventually(lambda: answers and link.connected)
    assert [type(answer) for answer in answers] == [BrokerUnavailable]


@pytest.mark.parametrize("piece", [b"x", b">2\r\n$1\r\na\r\n$1\r\nb\r\n"])
async def test_drops_are_no_sign_of_life(server: Server, monkeypatch: pytest.MonkeyPatch, observed: Observed, piece: bytes) -> None:
    """An answer that comes byte by byte, or messages in its place, are given up in time, and that is said."""
    monkeypatch.setattr(link_module, "_STALLED", 0.4)
    server.answer = lambda command: (b"$1000000\r\n" if piece == b"x" else b"") if server.accepted == 1 else b"+OK\r\n"
    async with linked(server) as link:
        reading = asyncio.ensure_future(link.execute("READ", repeatable=True))
        await eventually(lambda: server.names == ["READ"])

        def dripped() -> bool:
            server.say(piece)
            return reading.done()

        await eventually(dripped, timeout=10.0, interval=0.05)
        assert reading.result() == b"OK"
    assert next(event["event"] for event in observed.events) == "link.stalled"


async def test_a_large_answer_that_comes_steadily_is_waited_for(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take longer than a small one, as it grows."""
    monkeypatch.setattr(link_module, "_STALLED", 0.2)
    monkeypatch.setattr(wire, "_SLOWEST", 1_000)
    server.answer = silent
    async with linked(server) as link:
        reading = asyncio.ensure_future(link.execute("READ"))
        await eventually(lambda: server.names == ["READ"])
        # What is here gives more time than the pieces take, so that a busy machine does not look like a slow server.
        server.say(b"$20000\r\n" + b"x" * 3_000)
        began = asyncio.get_running_loop().time()

        def more() -> bool:
            server.say(b"x" * 1_000)
            return asyncio.get_running_loop().time() - began > 0.8

        await eventually(more, interval=0.1)
        server.say(b"x" * 20_000)
        await eventually(reading.done)
        assert server.accepted == 1


@pytest.mark.parametrize("refusal", ["TRYAGAIN not now", "ASK 1 127.0.0.1:1"])
async def test_refusals_without_end_become_the_answer(
    server: Server, link: Link, monkeypatch: pytest.MonkeyPatch, observed: Observed, refusal: str
) -> None:
    """It is said once that they go on; then what is sent behind goes out again."""
    monkeypatch.setattr(refusals, "_WARN_AFTER", 0.1)
    monkeypatch.setattr(refusals, "_PATIENCE", 0.4)
    server.answer = lambda command: b"-" + refusal.encode() + b"\r\n" if command[0] == b"WRITE" else b"+OK\r\n"
    answers: list[Any] = []
    for _ in range(3):
        link.send(("WRITE",), answers.append)
    await eventually(lambda: len(answers) == 3)
    assert await link.execute("NEXT") == b"OK"
    assert [str(answer) for answer in answers] == [refusal] * 3
    assert [event["event"] for event in observed.events].count("link.held_up") == 1


@pytest.mark.parametrize("refusal", ["NOREPLICAS Not enough good replicas to write.", "BUSY a script runs"])
async def test_what_an_operator_must_end_is_waited_for(
    server: Server, link: Link, monkeypatch: pytest.MonkeyPatch, observed: Observed, refusal: str
) -> None:
    """Nobody could carry it out meanwhile; it is said once, too."""
    monkeypatch.setattr(refusals, "_WARN_AFTER", 0.1)
    monkeypatch.setattr(refusals, "_PATIENCE", 0.2)
    refusing = True
    server.answer = lambda command: b"-" + refusal.encode() + b"\r\n" if refusing else b"+OK\r\n"
    answers: list[Any] = []
    link.send(("WRITE",), answers.append)
    began = asyncio.get_running_loop().time()
    await eventually(lambda: asyncio.get_running_loop().time() - began > 0.6)
    assert answers == []
    refusing = False
    await eventually(lambda: answers == [b"OK"])
    assert [event["event"] for event in observed.events] == ["link.held_up"]


async def test_an_opening_that_the_server_refuses_says_what_it_was_told(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its time: a server that answers every command with a refusal is not one that does not answer."""
    monkeypatch.setattr(short_link, "_OPENING", 0.3)
    refusal = "NOREPLICAS Not enough good replicas to write."
    server.answer = lambda command: b"-" + refusal.encode() + b"\r\n" if command[0] == b"WRITE" else b"+OK\r\n"
    links = short_link.Links(Connector(server.url), on_failed=pytest.fail)
    with pytest.raises(BrokerUnavailable, match=f"refused for 0.3 s what it was asked .{refusal}"):
        async with links.opening(10):
            await links.writing.execute("WRITE")


async def test_what_each_connection_asks_for_is_done_once_more_and_not_as_often_as_it_was_asked(server: Server) -> None:
    """A task that waits stays one, however often the connection comes and goes; what fails is done again when asked."""
    links, done, answer = short_link.Links(Connector(server.url), on_failed=pytest.fail), list[str](), asyncio.Event()

    async def ask(name: str) -> None:
        done.append(name)
        await answer.wait()
        raise BrokerUnavailable("it is lost")

    links.repeat(ask, "before it was opened")
    async with links.opening(10):
        for _ in range(100):
            links.repeat(ask, "one")
            links.repeat(ask, "two")
            await asyncio.sleep(0)
        assert done == ["one", "two"]
        answer.set()
        await eventually(lambda: done == ["one", "two", "one", "two"])
        await asyncio.sleep(0)
        links.repeat(ask, "one")
        await eventually(lambda: done[4:] == ["one"])
    await links.leave()
    links.repeat(ask, "after it was left")


@pytest.mark.usefixtures("slow")
async def test_connections_that_open_and_end_are_made_less_and_less_often(server: Server, link: Link) -> None:
    """A server that closes at every command is no hot loop."""

    def close(_: list[bytes]) -> None:
        server.cut()

    server.answer = close
    link.send(("READ",), repeatable=True)
    async with asyncio.timeout(10):
        await eventually(lambda: server.accepted >= 5, timeout=8)
        began = asyncio.get_running_loop().time()
        await eventually(lambda: server.accepted >= 7, timeout=8)
    assert asyncio.get_running_loop().time() - began > 0.3


async def test_redirections_to_ever_new_nodes_leave_no_connections(server: Server, link: Link) -> None:
    """Only those to the newest nodes stay open."""
    other = Server()
    await other.start("0.0.0.0")
    number, most = 0, 0

    def answer(command: list[bytes]) -> bytes:
        nonlocal number, most
        most = max(most, len(other.connections))
        number += 1
        return b"-ASK 1 127.0.1.%d:%d\r\n" % (number, other.port) if number <= 20 else b"+OK\r\n"

    server.answer = answer
    other.answer = lambda command: b"+OK\r\n" if command[0] == b"ASKING" else b"-TRYAGAIN not now\r\n"
    assert await link.execute("READ") == b"OK"
    assert other.accepted == 20
    # One more may not have ended yet.
    assert most <= 3
    await other.stop()


@pytest.mark.parametrize("answer", [b"", b"$1000000\r\nx", b"-TRYAGAIN not now\r\n"])
async def test_an_operator_does_not_wait_for_ever(server: Server, monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    """A short link ends when an answer is late, whatever asks, and says what it heard."""
    monkeypatch.setattr(short_link, "_ANSWER", 0.3)
    server.answer = lambda command: answer
    for ask in (
        lambda short: short.execute("GET", "key"),
        lambda short: short.execute_script(scripts.PAUSE, ("key",), (), repeatable=True),
        lambda short: Replication(short, 0, 1.0).run(scripts.CHANGE, ("key",), ()),
    ):
        short = ShortLink(Connector(server.url))
        await short.connect()
        with pytest.raises(BrokerUnavailable, match="TRYAGAIN" if b"TRYAGAIN" in answer else "did not answer within 0.3 s"):
            await ask(short)
        with pytest.raises(BrokerUnavailable):
            await short.execute("GET", "key")
        short.close()
        await short.wait_closed()


async def test_a_short_link_says_nothing_late(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that came in time leave it open."""
    monkeypatch.setattr(short_link, "_ANSWER", 0.1)
    short = ShortLink(Connector(server.url))
    await short.connect()
    assert await short.execute("FIRST") == b"OK"
    began = asyncio.get_running_loop().time()
    await eventually(lambda: asyncio.get_running_loop().time() - began > 0.3)
    assert await short.execute("SECOND") == b"OK"
    short.close()
    server.answer = lambda command: b"-ERR no\r\n"
    short = ShortLink(Connector(server.url))
    await short.connect()
    with pytest.raises(ReplyError, match="ERR no"):
        await short.execute("THIRD")
    short.close()
