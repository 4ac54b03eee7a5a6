"""Measure what each kind of tool, and each thing around one, adds to a call; workers as users start them."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import Literal

from benchmarks import runner
from benchmarks.peers import HERE, ROOT, PeerSpec
from benchmarks.runner import Measurement, Plan
from benchmarks.servers import Server
from benchmarks.workloads import WORKLOADS

MODULE = "benchmarks.adapters.features"
WITHOUT_UVLOOP = os.pathsep.join((str(HERE / "without_uvloop"), str(ROOT)))


@dataclass(frozen=True)
class Feature:
    """One kind of call.

    Attributes:
        name: row of the table; the adapter looks at it.
        tool: what is called.
        title: for people.
        served: attributes of the adapter that the worker serves.
        options: further words of the worker's command.
        server: which kind of server it needs: "redis", "tls" or "cluster".
        variables: more of the environment of both sides.
    """

    name: str
    tool: str
    title: str
    served: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    server: Literal["redis", "tls", "cluster"] = "redis"
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def spec(self) -> PeerSpec:
        """The feature as a peer of its own."""
        served = [f"{MODULE}:{each}" for each in self.served or (self.tool,)]
        return PeerSpec(
            self.name,
            "features",
            self.server,
            "self",
            self.title,
            shipped=("toolbus", "worker", *served, *self.options),
            variables=(("BENCH_FEATURE", self.name), ("BENCH_TOOL", self.tool), *self.variables),
            offers=("echo",),
        )


BASE = Feature("coroutine", "echo", "a coroutine function")
FEATURES = (
    BASE,
    Feature("plain", "plain", "a plain function, in a thread"),
    Feature("generator", "generator", "an async generator of one text"),
    Feature("plain-generator", "plain_generator", "a generator of one text, in a thread"),
    Feature("once", "once", "effect `once`: a mark before it runs"),
    Feature("retry", "retried", "failed runs would be tried again", ("Retried",)),
    Feature("pydantic", "model", "an argument that is a pydantic model"),
    Feature("two-tier", "two_tier", "an untyped service that descriptors share", ("TwoTier",)),
    Feature("three-services", "echo", "three services in the worker, of which one is called", ("echo", "Second", "Third")),
    Feature("session", "in_session", "sticky sessions, 64 of them", ("Sticky",)),
    Feature("executor", "read", "by an executor, as a model's calls are run; no confirmation"),
    Feature("confirmed", "confirmed", "the same with a confirmation that the caller's process gives at once"),
    Feature("limit", "echo", "a rate limit at the worker", options=("--middleware", f"{MODULE}:limit")),
    Feature("metering", "echo", "metering at the worker", options=("--middleware", f"{MODULE}:meter")),
    Feature("cache-miss", "read", "a cache at the worker that never has the answer", options=("--middleware", f"{MODULE}:cache")),
    Feature("cache-hit", "read", "a cache at the worker that always has the answer", options=("--middleware", f"{MODULE}:cache")),
    Feature("otel", "echo", "an OpenTelemetry SDK on both sides, every span kept"),
    Feature("otel-1%", "echo", "the same, 1 % of the spans kept"),
    Feature("asyncio", "echo", "asyncio's own event loop on both sides, without uvloop", variables=(("PYTHONPATH", WITHOUT_UVLOOP),)),
    Feature("tls", "echo", "the server behind TLS", server="tls"),
    Feature("cluster", "echo", "a cluster of three masters", server="cluster"),
    Feature("processes-2", "echo", "two worker processes", options=("--processes", "2")),
)


def needed(names: tuple[str, ...]) -> set[str]:
    """Return the kinds of servers that features take."""
    return {feature.server for feature in FEATURES if feature.name in names}


def measure(
    names: tuple[str, ...], servers: dict[str, Server], *, rounds: int, seconds: float, callers: int, seed: int
) -> list[Measurement]:
    """Measure features in turns, at one number of callers."""
    chosen = [feature for feature in FEATURES if feature.name in {BASE.name, *names} and feature.server in servers]
    plan = Plan(
        mode="features",
        peers=tuple(feature.spec for feature in chosen),
        workloads=(WORKLOADS["unary"],),
        rounds=rounds,
        seconds=seconds,
        warmup=0.5,
        seed=seed,
        levels=(callers,),
        ways=("shipped",),
    )
    return runner.run(plan, servers)


def table(found: list[Measurement]) -> list[str]:
    """Return the table as Markdown."""
    lines = [
        "| feature | calls/s | of a coroutine's | caller, µs | worker, µs | server, µs | adds, µs | commands | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    base = [one for one in found if one.peer == BASE.name and one.rate]
    for feature in FEATURES:
        mine = [one for one in found if one.peer == feature.name and one.rate]
        if not mine or not base:
            continue
        rate, rates = _median(mine, "rate"), {one.round: one.rate for one in base}
        share = statistics.median([one.rate / rates[one.round] for one in mine if one.round in rates] or [0.0])
        cpu = [_median(mine, name) for name in ("client_cpu", "worker_cpu", "server_cpu")]
        added = sum(cpu) - sum(_median(base, name) for name in ("client_cpu", "worker_cpu", "server_cpu"))
        cells = [f"{rate:,.0f}", f"{share:.2f}", *(f"{each:.1f}" for each in cpu), f"{added:+.1f}", f"{_median(mine, 'commands'):.2f}"]
        lines.append(f"| {feature.name} | {' | '.join(cells)} | {feature.title} |")
    return lines


def _median(ones: list[Measurement], name: str) -> float:
    return statistics.median([getattr(one, name) or 0.0 for one in ones])
