"""What is measured: every workload is one entry of one table.

An adapter offers up to four operations, and a workload is made of one of them:

- ``echo(text)``: the worker returns its argument;
- ``nap(seconds)``: the worker sleeps, as a tool does that waits for a network;
- ``chunks(count, size)``: the worker streams text, yielding to its event loop between chunks;
- ``trickle(count, size, seconds)``: the worker streams text that says when it left, one chunk each so many seconds.

This module is imported by the harness and by every adapter, hence in every peer's
environment: the standard library is all it may use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operation = Literal["echo", "nap", "chunks", "trickle"]


@dataclass(frozen=True)
class Workload:
    """One way to load a peer.

    Attributes:
        name: what ``--workload`` takes.
        title: its heading in the report.
        operation: what a peer must offer to take part.
        quick: numbers of concurrent callers in ``--quick``; none means it is not part of it.
        full: the same for ``--full``.
        size: bytes of an echo's argument, or of one chunk.
        count: chunks of one stream.
        seconds: length of a nap, or from one chunk of a trickle to the next.
        parallel: operations that one turn awaits together.
        workers: worker processes.
    """

    name: str
    title: str
    operation: Operation
    quick: tuple[int, ...] = ()
    full: tuple[int, ...] = ()
    size: int = 200
    count: int = 100
    seconds: float = 0.1
    parallel: int = 1
    workers: int = 1

    @property
    def units(self) -> int:
        """Units of work per time taken: calls of a turn, chunks of a stream, or the one chunk of a trickle."""
        return self.count if self.operation == "chunks" else self.parallel

    @property
    def unit(self) -> str:
        """What is counted per second."""
        return "chunks" if self.operation in {"chunks", "trickle"} else "calls"

    @property
    def timed(self) -> str:
        """What p50 to p99 are the times of."""
        if self.operation == "trickle":
            return "a chunk on its way from the tool to the caller"
        if self.operation == "chunks":
            return "a whole stream"
        return "a call" if self.parallel == 1 else f"a whole turn of {self.parallel} parallel calls"

    def levels(self, mode: str) -> tuple[int, ...]:
        """Numbers of concurrent callers in a mode."""
        return self.quick if mode == "quick" else self.full


_ALL = (
    Workload("unary", "Echo of 200 bytes", "echo", quick=(1, 64, 256), full=(1, 64, 256, 1024)),
    Workload("stream", "Streams of 100 × 50 bytes", "chunks", full=(1, 16, 64), size=50),
    Workload("trickle", "Streams of one chunk of 50 bytes per 20 ms", "trickle", full=(1, 200), size=50, count=50, seconds=0.02),
    Workload("nap", "Tools that wait 100 ms", "nap", full=(10, 100, 1000)),
    Workload("fanout", "Turns of 8 parallel calls", "echo", full=(1, 16), parallel=8),
    Workload("payload-1k", "Echo of 1 KB", "echo", full=(1, 64), size=1024),
    Workload("payload-64k", "Echo of 64 KB", "echo", full=(1, 16), size=60_000),
    Workload("payload-1m", "1 MB as 16 chunks of 64 KB", "chunks", full=(1, 4), size=62_500, count=16),
    Workload("workers-2", "Echo of 200 bytes, 2 worker processes", "echo", full=(256,), workers=2),
    Workload("workers-4", "Echo of 200 bytes, 4 worker processes", "echo", full=(256,), workers=4),
)

WORKLOADS: dict[str, Workload] = {workload.name: workload for workload in _ALL}
