"""A proxy between a program under test and its server, which cuts connections and refuses commands when a check asks for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Literal, NamedTuple

from toolbus.bus.support.waiting import cancelled

Words = list[bytes]
Fault = Literal["cut before", "cut after", "cut within", "refuse", "instead", "late"]
"""A fault of one command. Its connection is cut before it reaches the server, after it was carried out and before its answer is passed on,
or in the middle of the answer; or it is not carried out, and answered with an error or with what the kit says; or it is answered late."""

_PART = 1 << 16
# Bytes of an answer that brings nothing, such as that of a read which ends by time.
_EMPTY = 8


def _end_of(data: bytes | bytearray, at: int) -> int:
    """Return where the value of RESP ends that begins at a place; -1 while a part of it is missing."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return -1
    kind, size = bytes(data[at : at + 1]), bytes(data[at + 1 : line])
    at = line + 2
    if kind in {b"$", b"=", b"!"}:
        end = at if size == b"-1" else at + int(size) + 2
        return end if end <= len(data) else -1
    count = int(size) if kind in {b"*", b"~", b">"} else 2 * int(size) if kind in {b"%", b"|"} else 0
    for _ in range(count + (kind == b"|")):
        at = _end_of(data, at)
        if at < 0:
            return -1
    return at


def words_of(command: bytes) -> Words:
    """Return the words of a command, which is an array of strings."""
    words: Words = []
    at = command.index(b"\r\n") + 2
    while at < len(command):
        begin, at = command.index(b"\r\n", at) + 2, _end_of(command, at)
        words.append(command[begin : at - 2])
    return words


class _Planned(NamedTuple):
    matches: Callable[[Words], bool]
    fault: Fault
    error: bytes
    after: float


class _Withheld:
    """An answer that waits for its time, and with it all later ones of its connection."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.due = False


class Proxy:
    """Passes commands and answers between a program and the server at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._planned: list[_Planned] = []
        self._watched: list[tuple[Callable[[Words], bool], list[Words]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening: socket.socket | None = None
        self.port = 0
        self.done = 0
        """The number of faults that have come about."""
        self.played: dict[bytes, bytes] = {}
        """Answers of commands that are not carried out, by the command's name, for as long as they stand here."""
        self.withheld = 0
        """The number of answers that wait for their time."""
        self.held: list[_Connection] = []
        """Connections whose commands do not reach the server until they are let go."""
        self._holds: Callable[[Words], bool] | None = None

    async def start(self) -> None:
        """Listen at a free port of this machine."""
        # A server of asyncio leaves open what it has accepted just before it is closed.
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.port = self._listening.getsockname()[1]
        asyncio.get_running_loop().add_reader(self._listening, self._accept, self._listening)

    async def close(self) -> None:
        """Cut all connections, and listen no more."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            self._listening.close()
        # A task that is cancelled before it begins closes nothing.
        await asyncio.sleep(0)
        self.cut()
        await cancelled(*self._tasks)

    def plan(self, matches: Callable[[Words], bool], fault: Fault, error: str = "", *, after: float = 0.0) -> None:
        """Let a fault come about once, with the next command for which ``matches`` is true.

        Answers that are errors or bring nothing wait for the next one, unless the command is not to be carried out at all. An error, or an
        answer that is late, is passed on ``after`` so many seconds.
        """
        self._planned.append(_Planned(matches, fault, error.encode(), after))

    def watch(self, matches: Callable[[Words], bool]) -> list[Words]:
        """Return a list to which each command is added, as it comes, for which ``matches`` is true."""
        found: list[Words] = []
        self._watched.append((matches, found))
        return found

    def hold(self, matches: Callable[[Words], bool]) -> None:
        """Keep commands for which ``matches`` is true from the server, and the later ones of their connections, until ``let_go``."""
        self._holds = matches

    def let_go(self) -> None:
        """Pass on what was held."""
        self._holds = None
        held, self.held = self.held, []
        for connection in held:
            connection.go_on()

    def is_held(self, words: Words) -> bool:
        """Return whether a command is to be held."""
        return self._holds is not None and self._holds(words)

    async def is_done(self) -> bool:
        """Return whether a fault has come about."""
        return bool(self.done)

    async def withholds(self) -> bool:
        """Return whether an answer waits for its time."""
        return bool(self.withheld)

    def forget(self) -> None:
        """Let no planned fault come about."""
        self._planned.clear()
        self.done = 0

    def connections(self) -> set[asyncio.StreamWriter]:
        """Return what leads to the program over the connections that it has now."""
        return {writer for writer in self._writers if not writer.is_closing()}

    def cut(self) -> None:
        """Cut all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    def _accept(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = listening.accept()
            # asyncio sets it for sockets of its own servers: an answer that waits for the program's next word would be late.
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = asyncio.create_task(self._pass(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, accepted: socket.socket) -> None:
        """Pass one connection's commands and answers until one side ends it."""
        program, to_program = await asyncio.open_connection(sock=accepted)
        to_server: asyncio.StreamWriter | None = None
        self._writers.add(to_program)
        try:
            server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
            connection = _Connection(self, to_program, to_server)
            async with asyncio.TaskGroup() as group:
                group.create_task(each_value(program, connection.command))
                group.create_task(each_value(server, connection.answer))
        except* (OSError, EOFError):
            pass
        finally:
            self._writers.discard(to_program)
            for writer in (to_program, to_server):
                if writer is not None:
                    # What was written arrives before the end.
                    writer.close()

    def fault_of(self, words: Words) -> _Planned | None:
        """Return the fault that is planned for a command, which those see who watch for it."""
        for matches, found in self._watched:
            if matches(words):
                found.append(words)
        return next((each for each in self._planned if each.matches(words)), None)

    def came_about(self, planned: _Planned) -> bool:
        """Note that a fault comes about; False when another connection was earlier."""
        if planned not in self._planned:
            return False
        self._planned.remove(planned)
        self.done += 1
        return True


async def each_value(reader: asyncio.StreamReader, take: Callable[[bytes], None]) -> None:
    """Hand on each whole value that comes.

    Raises:
        EOFError: nothing more comes.
    """
    data = bytearray()
    while part := await reader.read(_PART):
        data += part
        while data and (end := _end_of(data, 0)) > 0:
            take(bytes(data[:end]))
            del data[:end]
    raise EOFError


class _Connection:
    """The commands of one connection that are not answered yet, each with the fault that is planned for it or its answer."""

    def __init__(self, proxy: Proxy, to_program: asyncio.StreamWriter, to_server: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._to_program = to_program
        self._to_server = to_server
        self._open: deque[_Planned | _Withheld | None] = deque()
        self._kept: deque[bytes] = deque()
        self._held: list[bytes] = []

    def command(self, command: bytes) -> None:
        """Pass a command on, unless it is not to be carried out.

        Raises:
            EOFError: the connection is cut.
        """
        words = words_of(command)
        if self._held or self._proxy.is_held(words):
            if not self._held:
                self._proxy.held.append(self)
            self._held.append(command)
            return
        if (played := self._proxy.played.get(words[0].upper())) is not None:
            self._open.append(own := _Withheld(played))
            self._withhold(own, 0.0)
            return
        planned = self._proxy.fault_of(words)
        if planned is not None and planned.fault in {"cut before", "refuse", "instead"} and self._proxy.came_about(planned):
            if planned.fault == "cut before":
                raise EOFError
            own = _Withheld(planned.error if planned.fault == "instead" else b"-%s\r\n" % planned.error)
            self._open.append(own)
            self._withhold(own, planned.after)
            return
        # Messages answer a subscription, and not what stands in its place.
        if planned is not None or words[0].upper() not in {b"SUBSCRIBE", b"UNSUBSCRIBE"}:
            self._open.append(planned)
        self._to_server.write(command)

    def go_on(self) -> None:
        """Pass the commands on that were held."""
        held, self._held = self._held, []
        for command in held:
            self.command(command)

    def answer(self, answer: bytes) -> None:
        """Pass an answer on, or a message that answers nothing.

        Raises:
            EOFError: the connection is cut.
        """
        if self._to_program.is_closing():
            raise EOFError
        if answer[:1] == b">" or not self._open:
            self._to_program.write(answer)
            return
        if isinstance(self._open[0], _Withheld):
            self._kept.append(answer)
            return
        planned = self._open.popleft()
        if isinstance(planned, _Planned) and answer[:1] != b"-" and len(answer) > _EMPTY and self._proxy.came_about(planned):
            if planned.fault == "late":
                own = _Withheld(answer)
                self._open.appendleft(own)
                self._withhold(own, planned.after)
                return
            if planned.fault == "cut within":
                self._to_program.write(answer[: len(answer) // 2])
            raise EOFError
        self._to_program.write(answer)
        self._pass_on()

    def _withhold(self, own: _Withheld, after: float) -> None:
        self._proxy.withheld += 1
        asyncio.get_running_loop().call_later(after, self._release, own)

    def _release(self, own: _Withheld) -> None:
        self._proxy.withheld -= 1
        own.due = True
        if not self._to_program.is_closing():
            self._pass_on()

    def _pass_on(self) -> None:
        """Pass on what waits no longer, and then what the server answered behind it."""
        while self._open and isinstance(own := self._open[0], _Withheld):
            if not own.due:
                return
            self._open.popleft()
            self._to_program.write(own.answer)
        if self._kept:
            self.answer(self._kept.popleft())
