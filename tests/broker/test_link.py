"""The link alone, against a server that does as it is told: order, repetition and refusals over lost connections."""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from collections import Counter
from collections.abc import Callable
from typing import Any

import hiredis
import pytest

from tests.broker.serving import Server, link, server, silent
from tests.servers import eventually
from toolbus.bus.broker.publish import failure
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport import clients
from toolbus.bus.broker.transport.command import ELSEWHERE, REFUSES_ALL, SOON, ReplyError
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.links import ShortLink
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio

__all__ = ["link", "server"]


async def test_answers_come_back_in_order_and_a_tick_is_one_write(link: Link) -> None:
    """Each command's callback gets its own answer; commands of one tick leave together."""
    answers: list[Any] = []
    before = link.statistics().writes
    for number in range(100):
        link.send(("PING", str(number)), answers.append)
    await eventually(lambda: len(answers) == 100)
    assert answers == [b"OK"] * 100
    assert link.statistics().writes == before + 1


async def test_what_may_be_repeated_is_written_again_and_the_rest_is_told(server: Server, link: Link) -> None:
    """After a cut: repeatable commands in their order, ahead of what came meanwhile; the others end as unavailable."""
    server.answer = silent
    answers: dict[str, Any] = {}
    link.subscribe("channel")
    for name in ("FIRST", "SECOND", "THIRD"):
        link.send((name,), lambda reply, name=name: answers.__setitem__(name, reply), repeatable=name != "SECOND")
    await eventually(lambda: server.names == ["FIRST", "SECOND", "THIRD"])
    server.seen.clear()
    server.answer = lambda command: b"+" + command[0] + b"\r\n"
    await server_gone(server, link)
    assert isinstance(answers.get("SECOND"), BrokerUnavailable)
    link.send(("LATER",), lambda reply: answers.__setitem__("LATER", reply))
    await eventually(lambda: "LATER" in answers)
    assert server.names == ["FIRST", "THIRD", "LATER"]
    assert [answers[name] for name in ("FIRST", "THIRD", "LATER")] == [b"FIRST", b"THIRD", b"LATER"]


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_pinned_command_is_repeated_to_the_same_process_only(server: Server, link: Link, restarted: bool) -> None:
    """The same run id gets it again; another one may have forgotten what the first did, so it ends as unavailable."""
    server.answer = silent
    answers: list[Any] = []
    link.send(("PAY",), answers.append, repeatable=True, same_server=True)
    await eventually(lambda: server.names == ["PAY"])
    server.answer = lambda command: b"+paid\r\n"
    if restarted:
        server.run_id = "two"
    server.cut()
    await eventually(lambda: answers)
    assert isinstance(answers[0], BrokerUnavailable) if restarted else answers == [b"paid"]
    assert server.names.count("PAY") == (1 if restarted else 2)


@pytest.mark.parametrize(
    "refusal",
    [
        b"-READONLY You can't write against a read only replica.",
        b"-LOADING Redis is loading the dataset in memory",
        b"-MASTERDOWN Link with MASTER is down",
        b"-CLUSTERDOWN The cluster is down",
        b"-UNBLOCKED force unblock from blocking operation",
        b"-MOVED 5 127.0.0.1:1",
        b"-TRYAGAIN Multiple keys request during rehashing of slot",
        b"-NOREPLICAS Not enough good replicas to write.",
    ],
)
async def test_a_refused_command_is_carried_out_later(server: Server, link: Link, refusal: bytes) -> None:
    """It is nobody's answer, also for what may not be repeated: it was certainly not carried out."""
    refusals = 3
    answers: list[Any] = []

    def answer(command: list[bytes]) -> bytes:
        nonlocal refusals
        if refusals:
            refusals -= 1
            return refusal + b"\r\n"
        return b"+done\r\n"

    server.answer = answer
    link.send(("WRITE",), answers.append)
    await eventually(lambda: answers)
    assert answers == [b"done"]
    assert server.names == ["WRITE"] * 4


@pytest.mark.parametrize(
    "refusal", ["READONLY", "LOADING", "CLUSTERDOWN", "MOVED 5 127.0.0.1:1", "TRYAGAIN", "NOREPLICAS", "BUSY", "NOSCRIPT"]
)
async def test_nothing_overtakes_what_was_refused(server: Server, link: Link, refusal: str) -> None:
    """Refused commands are carried out in the order in which they were sent, and before everything that was sent afterwards."""
    answers: list[Any] = []
    refused: Counter[bytes] = Counter()

    def answer(command: list[bytes]) -> bytes:
        word = command[-1]
        if word[:5] == b"early" and refused[word] < (2 if word == b"early 0" else 1) and command[0] != b"EVAL":
            refused[word] += 1
            return b"-" + refusal.encode() + b"\r\n"
        return b"+" + word + b"\r\n"

    server.answer = answer
    expected = [f"early {number}".encode() for number in range(6)]
    for word in expected[:3]:
        link.run(scripts.CANCEL, ("key",), (word,), answers.append)
    link.flush()
    for word in expected[3:]:
        link.run(scripts.CANCEL, ("key",), (word,), answers.append)
    await eventually(lambda: refused[expected[0]])
    link.run(scripts.CANCEL, ("key",), (b"late",), answers.append)
    await eventually(lambda: len(answers) == 7, timeout=20)
    assert answers == [*expected, b"late"]


async def test_what_another_node_carries_out_holds_up_the_rest(server: Server, link: Link) -> None:
    """A command that was answered with ASK is carried out by the node that is named, before whatever was sent after it."""
    other = Server()
    await other.start()
    done: list[str] = []

    def answer(command: list[bytes]) -> bytes:
        if command[0] == b"MOVING":
            return b"-ASK 5 127.0.0.1:%d\r\n" % other.port
        done.append(command[0].decode())
        return b"+OK\r\n"

    def elsewhere(command: list[bytes]) -> bytes | None:
        done.append(f"other {command[0].decode()}")
        return b"+OK\r\n" if command[0] == b"ASKING" else None

    server.answer, other.answer = answer, elsewhere
    answers: list[Any] = []
    for _ in range(2):
        link.send(("MOVING",), answers.append)
    await eventually(lambda: len(done) == 2)
    link.send(("LATER",), answers.append)
    link.flush()
    for number in (1, 2):
        await eventually(lambda number=number: len(done) == 2 * number)
        other.say(b"+moved\r\n")
    await eventually(lambda: len(answers) == 3)
    await other.stop()
    assert answers == [b"moved", b"moved", b"OK"]
    assert done == ["other ASKING", "other MOVING"] * 2 + ["LATER"]


async def test_a_lost_connection_keeps_the_order_of_refused_commands(server: Server, link: Link) -> None:
    """Refused, repeated and waiting commands keep their order over a cut in the middle of the repetition."""
    refusing, cut = True, False
    done: list[bytes] = []

    def answer(command: list[bytes]) -> bytes | None:
        nonlocal cut
        if refusing:
            return b"-TRYAGAIN not now\r\n"
        if command[0] == b"2" and not cut:
            cut = True
            server.cut()
            return None
        done.append(command[0])
        return b"+OK\r\n"

    server.answer = answer
    for number in range(4):
        link.send((str(number),), repeatable=True)
    await eventually(lambda: len(server.seen) >= 5)
    for number in range(4, 8):
        link.send((str(number),), repeatable=True)
    refusing = False
    await eventually(lambda: len(done) == 8)
    assert done == [b"%d" % number for number in range(8)]


async def test_settled_waits_for_refused_commands(server: Server, link: Link) -> None:
    """After it everything that was sent before has its answer, also what had to be sent again."""
    refusals = 4
    answers: list[Any] = []

    def answer(command: list[bytes]) -> bytes:
        nonlocal refusals
        if command[0] == b"WRITE" and refusals:
            refusals -= 1
            return b"-TRYAGAIN not now\r\n"
        return b"+WRITE\r\n" if command[0] == b"WRITE" else b"*2\r\n$1\r\n1\r\n$1\r\n0\r\n"

    server.answer = answer
    link.send(("WRITE",), answers.append)
    await link.settled()
    assert answers == [b"WRITE"]


async def test_refusals_without_end_are_not_a_hot_loop(server: Server, link: Link) -> None:
    """A server that accepts connections and refuses every command is asked less and less often."""
    server.answer = lambda command: b"-READONLY You can't write against a read only replica.\r\n"
    link.send(("WRITE",))
    async with asyncio.timeout(10):
        await eventually(lambda: server.accepted >= 4)
        began = asyncio.get_running_loop().time()
        await eventually(lambda: server.accepted >= 6, timeout=8)
    assert asyncio.get_running_loop().time() - began > 0.3


async def test_other_errors_are_answers(server: Server, link: Link) -> None:
    """An error that says something about the command itself is passed on as a value, once."""
    server.answer = lambda command: b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
    with pytest.raises(ReplyError, match="OOM"):
        await link.execute("WRITE")
    assert server.names == ["WRITE"]


async def test_more_than_the_buffer_takes_is_refused(server: Server, link: Link) -> None:
    """While nothing can be written, commands beyond the limit end at once, certainly not carried out, and the others wait."""
    server.answer = lambda command: b"+OK\r\n"
    await server_gone(server, link)
    answers: list[Any] = []
    for _ in range(5):
        link.send(("SET", "key", "x" * 4_000), answers.append)
    assert [isinstance(answer, BrokerUnavailable) for answer in answers] == [True] * 3
    assert "buffer is full" in str(answers[0])
    assert [failure(answer).status for answer in answers] == ["failed"] * 3
    await eventually(lambda: answers[3:] == [b"OK"] * 2)


async def server_gone(server: Server, link: Link) -> None:
    """Cut the connection and return before there is another."""
    server.cut()
    await eventually(lambda: not link.connected, interval=0)


async def test_pushed_messages_do_not_disturb_answers(server: Server, link: Link) -> None:
    """Out-of-band messages go to their own callback, between answers."""
    server.answer = silent
    answers: list[Any] = []
    link.send(("ASK",), answers.append)
    await eventually(lambda: server.names == ["ASK"])
    server.say(b">3\r\n+message\r\n+channel\r\n+hello\r\n+answer\r\n")
    await eventually(lambda: answers == [b"answer"])
    assert [list(push) for push in link.heard] == [[b"message", b"channel", b"hello"]]  # type: ignore[attr-defined]


async def test_a_refused_subscription_disturbs_no_answer(server: Server, link: Link) -> None:
    """Without permission for a channel the other commands still get their own answers, also after a reconnect."""
    server.subscribed = b"-NOPERM this user has no permissions to access one of the channels\r\n"
    server.answer = lambda command: b"+" + command[0] + b"\r\n"
    link.subscribe("forbidden")
    assert [await link.execute(name) for name in ("ONE", "TWO")] == [b"ONE", b"TWO"]
    await server_gone(server, link)
    assert [await link.execute(name) for name in ("THREE", "FOUR")] == [b"THREE", b"FOUR"]


@pytest.mark.parametrize("code", sorted(ELSEWHERE | SOON | REFUSES_ALL | {"NOPERM"}))
async def test_a_refused_subscription_is_repeated_until_it_is_accepted(server: Server, link: Link, code: str) -> None:
    """A server that is another one now is left for it; then the listener hears that there may have been messages."""
    ups: list[bool] = []
    link.on_up = ups.append
    accepted, server.subscribed = server.subscribed, f"-{code} 5 127.0.0.1:1\r\n".encode()
    link.subscribe("channel")
    await eventually(lambda: server.subscriptions >= 2)
    asked, heard, server.subscribed = server.subscriptions, len(ups), accepted
    await eventually(lambda: server.subscriptions > asked and len(ups) > heard)
    assert (server.accepted > 1) == (code in ELSEWHERE)
    assert not any(ups)


@pytest.mark.parametrize("nonsense", [b"?what\r\n", b"+an answer to nothing\r\n"])
async def test_nonsense_from_the_server_is_a_lost_connection(server: Server, link: Link, nonsense: bytes) -> None:
    """Bytes outside of the protocol, or an answer to no command, end the connection; the next one works."""
    server.say(nonsense)
    await eventually(lambda: server.accepted == 2 and link.connected)
    assert await link.execute("PING") == b"OK"


async def test_a_closed_link_answers_everything(server: Server, link: Link) -> None:
    """Nobody waits for ever: sent, waiting and later commands all end as unavailable."""
    server.answer = silent
    answers: list[Any] = []
    link.send(("SENT",), answers.append, repeatable=True)
    await eventually(lambda: server.names == ["SENT"])
    link.send(("WAITING",), answers.append)
    link.close()
    link.send(("LATER",), answers.append)
    assert [isinstance(answer, BrokerUnavailable) for answer in answers] == [True] * 3


@pytest.mark.parametrize("late", [b"+late\r\n", b"-ERR late\r\n"])
async def test_an_answer_behind_the_close_of_its_link_is_no_error(link: Link, caplog: pytest.LogCaptureFixture, late: bytes) -> None:
    """One answer's callback closes the link while another answer has come already."""
    answers: list[Any] = []
    link.send(("FIRST",), lambda _: link.close())
    link.send(("SECOND",), answers.append)
    link.flush()
    link.data_received(b"+first\r\n" + late)
    assert [type(answer) for answer in answers] == [BrokerUnavailable]
    assert "link.protocol_error" not in caplog.text


async def test_a_link_that_nobody_maintains_ends_with_its_connection(server: Server) -> None:
    """A lost connection fails a short link's waiting commands, even repeatable ones, and all its later commands."""
    short = ShortLink(Connector(server.url))
    await short.connect()
    server.answer = silent
    waiting = asyncio.create_task(short.execute("GET", "key", repeatable=True))
    await eventually(lambda: server.names == ["GET"])
    server.cut()
    with pytest.raises(BrokerUnavailable, match="lost"):
        await waiting
    with pytest.raises(BrokerUnavailable):
        await short.execute("GET", "key", repeatable=True)
    short.close()


@pytest.mark.parametrize("refusal", [b"-READONLY it is a replica\r\n", b"-MOVED 1 127.0.0.1:1\r\n"])
async def test_a_link_that_nobody_maintains_is_told_of_refusals(server: Server, refusal: bytes) -> None:
    """It goes nowhere else, so a server that is not in charge is its answer."""
    short = ShortLink(Connector(server.url))
    await short.connect()
    server.answer = lambda command: refusal
    with pytest.raises(ReplyError):
        await short.execute("SET", "key", "value", repeatable=True)
    short.close()


async def test_a_cancelled_connect_is_cancelled_at_whatever_step_it_is(server: Server) -> None:
    """A cancellation is never lost between two steps of opening a connection, or a timeout around it would do nothing."""
    connector = Connector(server.url)
    for turns in range(10_000):
        connecting = asyncio.create_task(connector.connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        if connecting.done():
            await connecting.result()[0].disconnect(nowait=True)
            assert turns > 20
            return
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
    raise AssertionError("it never connected")


async def test_a_link_that_is_closed_while_it_connects_leaves_nothing_open(server: Server) -> None:
    """Closed at whatever step of opening its connection, it closes the connection, too, and says that it is not open."""
    for turns in range(10_000):
        link = Link(Connector(server.url))
        connecting = asyncio.create_task(link.connect())
        for _ in range(turns):
            await asyncio.sleep(0)
        connected = connecting.done()
        link.close()
        if not connected:
            with pytest.raises(BrokerUnavailable, match="while it was opened"):
                await connecting
        await link.wait_closed()
        await eventually(lambda: not server.connections)
        if connected:
            assert turns > 20
            return
    raise AssertionError("it never connected")


async def test_what_a_hanging_server_does_not_take_keeps_no_connection_open() -> None:
    """A connection that could not be opened is closed at once, whatever still waits to be written."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connection = clients.connection({"host": "127.0.0.1", "port": listening.getsockname()[1]})
        await connection._connect()
        transport = connection._writer.transport
        transport.write(bytes(50_000_000))
        assert transport.get_write_buffer_size() > 0
        await clients.drop(connection)
        assert transport.get_write_buffer_size() == 0


def test_pushed_messages_cost_no_memory() -> None:
    """The parser keeps nothing of a message that was read: a process hears millions of them."""
    reader = hiredis.Reader()
    message = b">3\r\n+message\r\n+channel\r\n+hello\r\n" * 1000

    def read(times: int) -> int:
        for _ in range(times):
            reader.feed(message)
            for _ in range(1000):
                reader.gets()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = read(20)
    assert read(300) - before < 10_000, "hiredis leaks pushed messages: version 3.4.2 does not"


def moved(link: Link) -> None:
    """Let the server answer that the slot is elsewhere."""
    link.send(("WRITE",))
    link.flush()
    link.data_received(b"-MOVED 5 127.0.0.1:1\r\n")


def later(link: Link) -> None:
    """Leave the server when connecting has ended."""
    asyncio.get_running_loop().call_later(0.02, link.relocate)


@pytest.mark.parametrize("end", [Link.relocate, Link.abort, moved, later])
async def test_a_server_that_is_none_again_and_again_is_left_more_and_more_slowly(link: Link, end: Callable[[Link], None]) -> None:
    """Connections that end at once, also in the tick in which they open, follow each other with longer and longer pauses."""
    opened: list[float] = []
    enough = asyncio.Event()

    def up(_restarted: bool) -> None:
        opened.append(asyncio.get_running_loop().time())
        if len(opened) < 5:
            end(link)
        else:
            enough.set()

    link.on_up = up
    end(link)
    async with asyncio.timeout(20):
        await enough.wait()
    pauses = [later - earlier for earlier, later in itertools.pairwise(opened)]
    assert pauses[-1] > 0.3, pauses
