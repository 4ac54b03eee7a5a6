"""``BusState``: what a bus, its views and its executors share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakValueDictionary

from toolbus.bus.client.calls.call import Call, CallTarget
from toolbus.bus.client.calls.dispatcher import Dispatcher
from toolbus.bus.client.confirmations import PendingConfirmations
from toolbus.bus.client.executor.observers import EventBus
from toolbus.bus.client.executor.references import Memories
from toolbus.bus.client.executor.toolcalls import CallOrder
from toolbus.bus.client.tools.view import ToolView

if TYPE_CHECKING:
    from toolbus.bus.broker.agent import AgentSteps


class MakeCall(Protocol):
    """Make a call that has not been published yet, within the bus's middleware if it has any."""

    def __call__(self, target: CallTarget, arguments: Any, options: Mapping[str, Any], *, streaming: bool) -> Call:
        """Return the call.

        Raises:
            ConfigurationError: an option is wrong, or the bus is not open.
        """


class BusState:
    """The dispatcher of a bus, beside the earlier results, observers and confirmations of its executors."""

    def __init__(self, dispatcher: Dispatcher, make_call: MakeCall) -> None:
        self.dispatcher = dispatcher
        self.make_call = make_call
        self.memories = Memories()
        self.events = EventBus()
        self.confirmations = PendingConfirmations(lambda: self.steps.confirmations)
        # Those that an executor uses.
        self._orders: WeakValueDictionary[tuple[str, str], CallOrder] = WeakValueDictionary()

    @property
    def tools(self) -> ToolView:
        """The live tools of the namespace.

        Raises:
            ConfigurationError: the bus is not open.
        """
        return self.dispatcher.opened().tools

    @property
    def steps(self) -> AgentSteps:
        """The steps of the bus's broker.

        Raises:
            ConfigurationError: the bus is not open.
        """
        return self.dispatcher.opened().broker.steps

    def order(self, user: str, session: str) -> CallOrder:
        """Return the order of the calls in a session; without a session, a new one."""
        return self._order(user, session) if session else CallOrder()

    def order_of_user(self, user: str) -> CallOrder:
        """Return the order of a user's calls without a session to services that have one state for all of them."""
        return self._order(user, "")

    def _order(self, user: str, session: str) -> CallOrder:
        found = self._orders.get((user, session))
        if found is None:
            found = self._orders[user, session] = CallOrder()
        return found

    async def end_session(self, user: str, session: str) -> None:
        """End a session: cancel its calls, forget its results, and tell its services."""
        self.dispatcher.check()
        self.memories.forget(user, session)
        await self.dispatcher.end_session(user, session)
