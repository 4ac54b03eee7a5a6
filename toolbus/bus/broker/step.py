"""``WorkerStep``: the base of the steps of the protocol that one worker takes part in."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolbus.bus.broker.lease.clock import ServerClock
from toolbus.bus.broker.protocols import WorkerListener
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.take.requests import RequestStream
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.support.safe_text import type_name
from toolbus.bus.values.settings import Settings


class WorkerStep(msgspec.Struct, eq=False):
    """A step of one worker. Each says itself what it needs beyond what all of them are given.

    Attributes:
        link: the connection that writes.
        instance: the worker's id, which is also its consumer name.
        streams: the request streams by service, read afresh each time.
        listener: hears what concerns the worker's calls.
    """

    link: Link
    keys: Keys
    clock: ServerClock
    instance: str
    streams: Mapping[str, RequestStream]
    listener: WorkerListener
    settings: Settings

    def __repr__(self) -> str:
        # Steps have one another, and what users' calls say; whatever shows the locals of a frame would print it all.
        return f"<{type_name(self)} of {self.instance}>"
