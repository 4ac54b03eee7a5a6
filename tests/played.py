"""Servers that are played by a test: each answers a command as the test says, also with what no real server answers."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from toolbus.bus.broker.transport.embedded import HOST

Words = list[bytes]


class Drip(NamedTuple):
    """An answer that comes byte by byte and never ends."""

    begin: bytes = b"$1000000\r\n"
    pause: float = 0.02


Answer = bytes | Drip


class Played:
    """A server on a port of its own.

    Args:
        answer: returns the answer to the words of a command.
    """

    def __init__(self, answer: Callable[[Words], Answer]) -> None:
        self.answer = answer
        self.connections = 0
        self.commands = 0
        self.port = 0
        self.over = threading.Event()

    def handle(self, handler: socketserver.StreamRequestHandler) -> None:
        """Serve one connection."""
        self.connections += 1
        with suppress(OSError):
            while words := _words(handler):
                self.commands += 1
                answer = self.answer(words)
                if isinstance(answer, bytes):
                    handler.wfile.write(answer)
                    continue
                handler.wfile.write(answer.begin)
                while not self.over.wait(answer.pause):
                    handler.wfile.write(b"a")
                return


def bulk(value: object) -> bytes:
    """Return a value as a string in an answer."""
    text = value if isinstance(value, bytes) else str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def array(*parts: bytes) -> bytes:
    """Return parts as an array in an answer."""
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def greet(words: Words) -> bytes | None:
    """Return the answer of any server to what a connection begins with; None to everything else."""
    if words[0] == b"HELLO":
        # By the protocol that is asked for.
        return b"%1\r\n" + bulk("proto") + b":3\r\n" if words[1:2] == [b"3"] else array(bulk("proto"), b":2\r\n")
    return b"+OK\r\n" if words[0] in {b"CLIENT", b"SELECT"} else None


class PlayedSentinel:
    """A Sentinel, which names the master that it is told to.

    Attributes:
        port: of the master.
        epoch: of its report.
        pushes: sent after the last subscription.
        answers: what it answers to every question, instead of its report.
    """

    def __init__(self, port: int, epoch: int = 1) -> None:
        self.port = port
        self.epoch = epoch
        self.pushes = b""
        self.answers: Answer | None = None

    def __call__(self, words: Words) -> Answer:
        """Answer a command."""
        greeting = greet(words)
        if greeting is not None:
            return greeting
        if words[0] == b"SUBSCRIBE":
            pushed = self.pushes if words[1] == b"-sdown" else b""
            return b">3\r\n" + bulk("subscribe") + bulk(words[1]) + b":1\r\n" + pushed
        if self.answers is not None:
            return self.answers
        if words[1].upper() == b"MASTER":
            fields = {"name": "mymaster", "ip": HOST, "port": self.port, "flags": "master", "config-epoch": self.epoch}
            return array(*(bulk(word) for field in fields.items() for word in field))
        return array(bulk(HOST), bulk(self.port))


@contextmanager
def playing(*answers: Callable[[Words], Answer]) -> Iterator[list[Played]]:
    """Run a server for each of the answers."""
    servers: list[tuple[Played, socketserver.ThreadingTCPServer]] = []
    for answer in answers:
        played = Played(answer)
        handler = type("Handler", (socketserver.StreamRequestHandler,), {"handle": lambda self, played=played: played.handle(self)})
        server = socketserver.ThreadingTCPServer((HOST, 0), handler)
        server.daemon_threads = True
        played.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append((played, server))
    try:
        yield [played for played, _ in servers]
    finally:
        for played, server in servers:
            played.over.set()
            server.shutdown()
            server.socket.close()


def _words(handler: socketserver.StreamRequestHandler) -> Words:
    head = handler.rfile.readline()
    found = []
    for _ in range(int(head[1:] or 0)):
        length = int(handler.rfile.readline()[1:])
        found.append(handler.rfile.read(length + 2)[:-2])
    return found
