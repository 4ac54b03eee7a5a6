"""``Timing``: the times of a pool that no record says, in seconds."""

from __future__ import annotations

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a pool.

    Attributes:
        first_delay: before the start after a first failure; doubled for each further one.
        longest_delay: most between two starts.
        settled: an instance that has run for so long has run well.
        patience: that a call waits for a busy instance until another one is started for it.
        health_within: that a health check may take.
        again_after: between a failed health check and the one that confirms it.
        start_within: that a start may take beside the time to become ready, such as for building an image.
        last_words: that calls of an instance which has ended have for reading what it sent.
        stop_within: that the end of an instance may take beyond the time that its record gives it; longer than a runner needs to kill one.
    """

    first_delay: float = 0.2
    longest_delay: float = 60.0
    settled: float = 10.0
    patience: float = 0.2
    health_within: float = 5.0
    again_after: float = 1.0
    start_within: float = 600.0
    last_words: float = 1.0
    stop_within: float = 40.0
