"""The workloads: each is one entry of a table.

An adapter offers up to four operations, and a workload uses one of them:

- ``echo(text)``: the worker returns its argument;
- ``nap(seconds)``: the worker sleeps, like a tool that waits for a network;
- ``chunks(count, size)``: the worker streams text, yielding to its event loop between chunks;
- ``trickle(count, size, seconds)``: the worker streams text with the time of sending, one chunk every ``seconds``.

The harness and every adapter import this module, hence every peer's environment: it may use
the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operation = Literal["echo", "nap", "chunks", "trickle"]


@dataclass(frozen=True)
class Workload:
    """One way to load a peer.

    Attributes:
        name: value of ``--workload``.
        title: heading in the report.
        operation: operation that a peer must offer to take part.
        quick: numbers of concurrent callers in ``--quick``; empty when the workload is not part of it.
        full: the same for ``--full``.
        size: bytes of an echo's argument, or of one chunk.
        count: chunks of one stream.
        seconds: length of a nap, or time from one chunk of a trickle to the next.
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
        """Units of work per measured time: calls of a turn, chunks of a stream, or the one chunk of a trickle."""
        return self.count if self.operation == "chunks" else self.parallel

    @property
    def unit(self) -> str:
        """The unit that is counted per second."""
        return "chunks" if self.operation in {"chunks", "trickle"} else "calls"

    @property
    def timed(self) -> str:
        """The operation whose times are p50 to p99."""
        if self.operation == "trickle":
            return "a chunk on its way from the tool to the caller"
        if self.operation == "chunks":
            return "a whole stream"
        return "a call" if self.parallel == 1 else f"a whole turn of {self.parallel} parallel calls"

    def levels(self, mode: str) -> tuple[int, ...]:
        """Return the numbers of concurrent callers in a mode."""
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
