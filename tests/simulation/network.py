"""The network of the simulation: connections that carry bytes with delays, in pieces, and end in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.server import Session
    from tests.simulation.world import Process, World


class Network:
    """The connections between processes and the server.

    Attributes:
        delays: the longest delays of a piece, in seconds, the greatest of which counts: the usual one, and those of faults that last.
        splits: the shares of writes that arrive in pieces, the greatest of which counts.
        downs: what keeps connections from being accepted now.
        connections: those that are open.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.delays = [0.001]
        self.splits = [0.05]
        self.downs: list[str] = []
        self.connections: list[Connection] = []
        self._made = 0

    def connect(self, process: Process, receive: Callable[[bytes], None], lost: Callable[[Exception | None], None]) -> Connection:
        """Begin a connection of a process; it may be used after its ``opening``."""
        self._made += 1
        connection = Connection(self._world, self, self._made, process, receive, lost)
        if not connection.refused:
            self.connections.append(connection)
        return connection


class Direction:
    """One direction of a connection: bytes arrive in order, each piece after a delay of its own.

    Attributes:
        silent: it carries nothing more.
        slow: seconds by which each piece is later than the network's delays say.
    """

    def __init__(self, world: World, network: Network, random: Random, deliver: Callable[[bytes], None], context: Any) -> None:
        self._world = world
        self._network = network
        self._random = random
        self._deliver = deliver
        self._context = context
        self._last = 0.0
        self.silent = False
        self.slow = 0.0

    def send(self, data: bytes) -> None:
        """Carry bytes."""
        if self.silent:
            return
        while data:
            size = len(data)
            if size > 1 and self._random.random() < max(self._network.splits):
                size = self._random.randrange(1, size)
            self.later(self._arrive, data[:size])
            data = data[size:]

    def later(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a function at the other end, behind what was sent."""
        self._last = max(self._last, self._world.loop.now + self.slow + self._random.random() * max(self._network.delays))
        self._world.loop.call_at(self._last, callback, *args, context=self._context)

    def _arrive(self, data: bytes) -> None:
        if not self.silent:
            self._deliver(data)


class Connection:
    """One connection of a process to the server.

    Attributes:
        opening: seconds until it is open.
        refused: whether nobody accepts it.
        session: at the server; None without one.
    """

    def __init__(
        self,
        world: World,
        network: Network,
        number: int,
        process: Process,
        receive: Callable[[bytes], None],
        lost: Callable[[Exception | None], None],
    ) -> None:
        random = Random(f"{world.seed} {number}")
        self._network = network
        self.number = number
        self.process = process
        self._receive = receive
        self._lost = lost
        self.opening = random.random() * max(network.delays) * 2
        self.refused = bool(network.downs)
        self.closed = False
        self.session: Session | None = None
        self.to_server = Direction(world, network, random, self._at_server, world.context)
        self.to_client = Direction(world, network, random, self._at_client, process.context)
        if not self.refused:
            self.session = world.server.open(process, self.to_client.send, lambda: self.cut(None))

    def send(self, data: bytes) -> None:
        """Send bytes of the client."""
        if not self.closed:
            self.to_server.send(data)

    def close(self) -> None:
        """End it at the client; what was sent still arrives."""
        if not self.closed:
            self.closed = True
            self.to_server.later(self._end_session)

    def cut(self, error: Exception | None) -> None:
        """End it at both sides; what is under way is lost."""
        self._end_session()
        self.to_server.silent = self.to_client.silent = True
        if not self.closed:
            self.closed = True
            self.to_client.later(self._lost, error)

    def fall_silent(self) -> None:
        """Carry nothing more, and say nothing of it."""
        self.to_server.silent = self.to_client.silent = True

    def _at_server(self, data: bytes) -> None:
        if self.session is not None:
            self.session.receive(data)

    def _at_client(self, data: bytes) -> None:
        if not self.closed:
            self._receive(data)

    def _end_session(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            session.close()
            self._network.connections.remove(self)


class Transport(asyncio.Transport):
    """A connection as the event loop gives it to a protocol."""

    def __init__(self, world: World, process: Process, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self._world = world
        self._protocol: Any = protocol
        self._context = process.context
        self._closing = False
        self._paused = False
        self._kept: list[bytes] = []
        self._ended: list[Exception | None] = []
        self.connection = world.network.connect(process, self._receive, self._lost)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol  # type: ignore[no-any-return]

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Give what comes to another protocol."""
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the default: there is no socket."""
        return default

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self._closing

    def is_reading(self) -> bool:
        """Return whether it reads."""
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        """Keep what comes."""
        self._paused = True

    def resume_reading(self) -> None:
        """Give what came to the protocol, soon."""
        self._paused = False
        if self._kept or self._ended:
            self._world.loop.call_soon(self._give, context=self._context)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        if not self._closing:
            self.connection.send(bytes(data))

    def get_write_buffer_size(self) -> int:
        """Return 0: the network takes everything."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Accept it."""

    def can_write_eof(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """End it when what was written has left."""
        self.abort()

    def abort(self) -> None:
        """End it."""
        if not self._closing:
            self._closing = True
            self.connection.close()
            self._world.loop.call_soon(self._protocol_lost, None, context=self._context)

    # -- inside -----------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        self._kept.append(data)
        self._give()

    def _lost(self, error: Exception | None) -> None:
        self._ended.append(error)
        self._give()

    def _give(self) -> None:
        while self._kept and not self._paused and not self._closing:
            self._protocol.data_received(self._kept.pop(0))
        if self._ended and not self._paused and not self._closing:
            [error] = self._ended
            if error is None:
                self._protocol.eof_received()
            self._closing = True
            self._protocol_lost(error)

    def _protocol_lost(self, error: Exception | None) -> None:
        self._protocol.connection_lost(error)
