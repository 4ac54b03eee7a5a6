"""The services that take from each queue, for descriptors that name a queue and no service."""

from __future__ import annotations

from collections.abc import Mapping

from toolbus.broker.protocols import ServiceRecord

_NONE: Mapping[str, ServiceRecord] = {}


class Queues:
    """The registered services by the queue they take from."""

    def __init__(self, services: Mapping[str, ServiceRecord] = _NONE) -> None:
        self._records: dict[str, dict[str, ServiceRecord]] = {}
        self._queue_of: dict[str, str] = {}
        for service, record in services.items():
            self.put(service, record)

    def put(self, service: str, record: ServiceRecord | None) -> set[str]:
        """Take in a service's change; returns the queues it concerns."""
        changed: set[str] = set()
        before = self._queue_of.pop(service, None)
        if before is not None:
            changed.add(before)
            records = self._records[before]
            del records[service]
            if not records:
                del self._records[before]
        if record is not None:
            queue = self._queue_of[service] = record.publication.service.queue
            self._records.setdefault(queue, {})[service] = record
            changed.add(queue)
        return changed

    def serving(self, queue: str) -> ServiceRecord | None:
        """Return the service that takes from a queue; of several a live one, the first by name."""
        records = self._records.get(queue, _NONE)
        return min(records.values(), key=lambda record: (not record.live, record.publication.service.id), default=None)
