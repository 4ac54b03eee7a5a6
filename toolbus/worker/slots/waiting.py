"""Deliveries that a worker holds and does not run yet."""

from __future__ import annotations

from collections import deque

from toolbus.broker.protocols import Delivery


class Waiting:
    """Deliveries that wait in a worker. None takes a slot; all of their leases are renewed.

    Attributes:
        due: failed requests that wait for nothing but a slot.
        suspects: requests that may have killed their workers; each waits until nothing else runs.
        lined: calls by run that wait for others of their session. Nothing waits for them, so they make no worker a busy one.
        ready: those of them whose turn has come, which wait for nothing but a slot.
    """

    def __init__(self) -> None:
        self.due: deque[Delivery] = deque()
        self.suspects: deque[Delivery] = deque()
        self.lined: dict[str, Delivery] = {}
        self.ready: deque[Delivery] = deque()
        self._retries: dict[str, Delivery] = {}

    def __len__(self) -> int:
        return len(self._retries) + len(self.due) + len(self.suspects) + len(self.ready)

    def is_retried(self, run: str) -> bool:
        """Return whether the failed delivery of a run waits for its next attempt."""
        return run in self._retries

    def add_retry(self, delivery: Delivery) -> None:
        """Hold a failed delivery until ``pop_retry`` asks for it."""
        self._retries[delivery.run] = delivery

    def pop_retry(self, run: str) -> Delivery | None:
        """Return the failed delivery of a run, which waits no longer; None when it was taken away meanwhile."""
        return self._retries.pop(run, None)

    def find(self, *, call: str = "", replies: str = "") -> list[Delivery]:
        """Return what waits for one call, or for one caller."""
        return [each for each in self._everything() if each.request.id == call or (replies and each.replies == replies)]

    def remove(self, delivery: Delivery) -> None:
        """Take a delivery away; nothing happens when it does not wait here."""
        self._retries.pop(delivery.run, None)
        self.lined.pop(delivery.run, None)
        for queue in (self.due, self.suspects, self.ready):
            if delivery in queue:
                queue.remove(delivery)

    def clear_service(self, service: str) -> list[Delivery]:
        """Take what waits for one service away, and return it."""
        found = [each for each in self._everything() if each.request.service == service]
        for delivery in found:
            self.remove(delivery)
        return found

    def clear(self) -> list[Delivery]:
        """Take everything away, and return it."""
        everything = self._everything()
        for held in (self._retries, self.due, self.suspects, self.lined, self.ready):
            held.clear()
        return everything

    def _everything(self) -> list[Delivery]:
        return [*self._retries.values(), *self.due, *self.suspects, *self.lined.values(), *self.ready]
