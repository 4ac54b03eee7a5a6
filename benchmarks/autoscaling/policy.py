"""``Policy``: the figures by which a group of workers is scaled, as the chart gives them to KEDA."""

from __future__ import annotations

from typing import NamedTuple

CONCURRENCY = 100
"""Calls that one worker of the chart runs at once."""


class Policy(NamedTuple):
    """The figures of the chart's ``autoscaling``, with its defaults; the page about autoscaling says where each comes from.

    Attributes:
        min_replicas, max_replicas: fewest and most workers; 0 scales to zero.
        stream_length: requests, queued and running, for each worker.
        polling_interval: seconds between two looks at the stream, which matter while there is no worker.
        cooldown_period: seconds without a request after which the last worker goes.
        scale_down_stabilization: seconds for which fewer workers must do before any goes.
        scale_down_percent: most of the workers that go within a minute.
    """

    min_replicas: int = 1
    max_replicas: int = 10
    stream_length: int = 70
    polling_interval: int = 5
    cooldown_period: int = 120
    scale_down_stabilization: int = 60
    scale_down_percent: int = 50

    def for_slots(self, slots: int) -> Policy:
        """Return the same policy for workers with another number of slots, each of which is to be used as much."""
        return self._replace(stream_length=max(1, round(self.stream_length * slots / CONCURRENCY)))
