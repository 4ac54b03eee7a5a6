"""Options of a run, from the command line, as every process of the run gets them."""

from __future__ import annotations

import msgspec

from tests.chaos.schedule import LOSSY, POISON
from toolbus import Settings


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run.

    Attributes:
        seed: decides the calls, the faults, their times and their targets.
        seconds: how long calls are made and faults applied.
        faults: kinds of faults.
        intensity: factor on how often faults happen.
        durable: the server writes its append-only file.
        lease: as in toolbus's settings.
        timeout: seconds each ordinary call may take.
        in_flight: most calls that an agent has at once.
        other: a folder with another version's package ``toolbus``, which every second process imports; empty for none.
        backlog: requests without a caller that are queued before the first call.
        concurrency: handlers that a worker runs at once.
        grace: seconds that a worker gives to what it runs when it is to leave.
        memory: MiB by which the server or a process may grow.
        health_ports: where the worker of each slot answers probes; empty when nobody asks.
    """

    seed: int = 1
    seconds: float = 300.0
    calls: int = 20_000
    agents: int = 5
    workers: int = 10
    faults: tuple[str, ...] = ()
    intensity: float = 1.0
    durable: bool = True
    lease: float = 2.0
    timeout: float = 60.0
    in_flight: int = 24
    max_deliveries: int = 5
    other: str = ""
    backlog: int = 0
    concurrency: int = 32
    grace: float = 5.0
    memory: float = 96.0
    namespace: str = "chaos"
    health_ports: tuple[int, ...] = ()

    @property
    def agent_life(self) -> float:
        """Seconds after which an agent that is not heard of counts as gone."""
        return max(15.0, self.lease * 2 / 3)

    @property
    def lossy(self) -> bool:
        """Return whether the faults may take work away, so that a call may end without having been done."""
        return bool(LOSSY & set(self.faults)) or (not self.durable and "server-kill" in self.faults)

    @property
    def poisoned(self) -> bool:
        """Return whether some of the calls are poison."""
        return POISON in self.faults

    def settings(self, url: str) -> Settings:
        """toolbus's settings for a process of this run."""
        return Settings.load(
            {},
            url=url,
            namespace=self.namespace,
            lease=self.lease,
            max_deliveries=self.max_deliveries,
            grace=self.grace,
            concurrency=self.concurrency,
            max_output=1_048_576,
            timeout=self.timeout,
        )
