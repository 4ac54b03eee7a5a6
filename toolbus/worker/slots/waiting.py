"""Deliveries that a worker holds and does not run yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from toolbus.broker.protocols import Delivery


class Waiting:
    """What waits here: failed runs until they are tried again, and suspects until nothing else runs.

    None of it takes a slot; all of it is renewed with what runs.
    """

    def __init__(self) -> None:
        self._retries: dict[str, Delivery] = {}
        self._due: deque[Delivery] = deque()
        self._suspects: deque[Delivery] = deque()

    def __len__(self) -> int:
        return len(self._retries) + len(self._due) + len(self._suspects)

    @property
    def due(self) -> Sequence[Delivery]:
        """What waits for nothing but a slot."""
        return self._due

    @property
    def suspects(self) -> Sequence[Delivery]:
        """Requests that may have killed their workers."""
        return self._suspects

    def add_retry(self, delivery: Delivery) -> None:
        """Hold a failed delivery until ``is_due`` says that its time has come."""
        self._retries[delivery.run] = delivery

    def is_due(self, run: str) -> Delivery | None:
        """The failed delivery of a run, which waits no longer; None when it was taken away meanwhile."""
        return self._retries.pop(run, None)

    def add_due(self, delivery: Delivery) -> None:
        """Hold a delivery that waits for nothing but a slot."""
        self._due.append(delivery)

    def next_due(self) -> Delivery | None:
        """The next delivery that waits for a slot."""
        return self._due.popleft() if self._due else None

    def add_suspect(self, delivery: Delivery) -> None:
        """Hold a delivery until nothing else runs."""
        self._suspects.append(delivery)

    def next_suspect(self) -> Delivery:
        """The next delivery that must run alone; raises IndexError when there is none."""
        return self._suspects.popleft()

    def find(self, *, call: str = "", replies: str = "") -> list[Delivery]:
        """What waits for one call, or for one caller."""
        waiting = [*self._retries.values(), *self._due, *self._suspects]
        return [each for each in waiting if each.request.id == call or (replies and each.replies == replies)]

    def remove(self, delivery: Delivery) -> None:
        """Take a delivery away; nothing happens when it does not wait here."""
        self._retries.pop(delivery.run, None)
        for queue in (self._due, self._suspects):
            if delivery in queue:
                queue.remove(delivery)

    def clear(self) -> list[Delivery]:
        """Take everything away."""
        everything = [*self._retries.values(), *self._due, *self._suspects]
        self._retries.clear()
        self._due.clear()
        self._suspects.clear()
        return everything
