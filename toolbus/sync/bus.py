"""``ToolBus``: the caller's side, for callers without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from anyio.from_thread import start_blocking_portal

from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord
from toolbus.bus.client import bus as aio
from toolbus.bus.client.tools.tool import Tool
from toolbus.bus.middleware.chain import Middleware
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.settings import Settings
from toolbus.sync.confirmations import SharedConfirmations
from toolbus.sync.loop import NOT_OPEN, Loop
from toolbus.sync.views import BoundBus, Tallies


class ToolBus(BoundBus):
    """Finds the tools of a namespace and calls them, from any number of threads.

    ``with``, or ``open()`` and ``close()``. Arguments and errors are those of ``toolbus.ToolBus``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        settings: Settings | None = None,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self._bus = aio.ToolBus(url, namespace=namespace, settings=settings, middleware=middleware)
        self._stack = ExitStack()
        self._opened: Loop | None = None
        self._lock = threading.Lock()
        super().__init__(self._loop_or_fail, self._bus.bind())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        """Start the thread, connect, and load the registry's snapshot; opening an open bus does nothing."""
        with self._lock, ExitStack() as stack:
            if self._opened is not None:
                self._loop_or_fail()
                return
            portal = stack.enter_context(start_blocking_portal("asyncio"))
            loop = Loop(portal)
            portal.call(self._bus.open)
            stack.callback(loop.close)
            stack.callback(lambda: portal.call(self._bus.aclose))
            self._stack = stack.pop_all()
            self._opened = loop

    def close(self) -> None:
        """End every running call as cancelled, disconnect, and stop the thread; closing a closed bus does nothing."""
        with self._lock:
            if self._opened is not None and self._loop_or_fail().is_here:
                raise ConfigurationError("the bus can't be closed in its own thread (by an observer, for example)")
            self._opened = None
            self._stack.close()

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self._bus.settings

    @property
    def agent(self) -> str:
        """This bus's agent id, fresh at each start."""
        return self._loop().run(lambda: self._bus.agent)

    @property
    def services(self) -> Mapping[str, ServiceRecord]:
        """The services in the registry as they are now, by id."""
        return self._loop().run(lambda: dict(self._bus.services))

    @property
    def refused(self) -> list[RefusedTool]:
        """The tools whose descriptors can't be used, with the reason; their siblings can."""
        return self._loop().run(lambda: self._bus.refused)

    @property
    def tallies(self) -> Tallies:
        """The counters that all processes of the namespace share."""
        return Tallies(self._loop, lambda: self._bus.tallies)

    @property
    def shared_confirmations(self) -> SharedConfirmations:
        """The open requests of all processes of the namespace; use ``confirmations`` to answer them."""
        return SharedConfirmations(self._loop, lambda: self._bus.shared_confirmations)

    def near(self, name: str, user: str | None = None) -> list[str]:
        """Return names of tools that look like a wrong one; see ``toolbus.ToolBus.near``."""
        return self._loop().run(lambda: self._bus.near(name, user))

    def wait_for_tool(self, name: str, timeout: float = 10.0) -> Tool:
        """Wait until a tool can be called.

        Raises:
            TimeoutError: it could not within ``timeout`` seconds.
        """
        return self._loop().run(lambda: self._bus.wait_for_tool(name, timeout))

    def end_session(self, user: str, session: str) -> None:
        """End a session of any view; see ``toolbus.ToolBus.end_session``."""
        self._loop().run(lambda: self._bus.end_session(user, session))

    def put(self, key: str, document: bytes, owner: str = "") -> None:
        """Store a document; see ``toolbus.ToolBus.put``."""
        self._loop().run(lambda: self._bus.put(key, document, owner))

    def delete(self, key: str, owner: str = "") -> bool:
        """Delete a document; False when there was none."""
        return self._loop().run(lambda: self._bus.delete(key, owner))

    def statistics(self) -> dict[str, int]:
        """Return counts: calls in flight, tools known, and the broker's own."""
        return self._loop().run(self._bus.statistics)

    def _loop_or_fail(self) -> Loop:
        loop = self._opened
        if loop is None:
            raise ConfigurationError(NOT_OPEN)
        loop.check()
        return loop
