"""Scale real worker processes by the formulas of KEDA and of Kubernetes' autoscaler, and report what callers see and what it costs.

A server, `toolbus worker` processes and one caller run on this machine. The pool follows the length of the request stream: KEDA looks at it
every five seconds while there is no worker, HPA decides every 15 seconds from the first one on. Parts of a run:

  model   all loads on a clock of its own, without a process: what policies differ in, whatever the machine does
  zero    a call at an empty pool, by the real clock: seconds until the look, until the worker serves, until the answer
  steps, spike, day, bursts
          loads of 4 to 8 minutes, by a clock of the controllers' that is --pace times the real one. Calls, starts and drains of
          workers take real time, so a start counts --pace times as long as in truth: backlogs are worse than they would be
  half    a busy pool of which half drains, by the real clock: p99 before and after

A call is lost when it does not end with its tool's result. The exit code is 1 when any was. Without a part all but bursts are
run, which takes less than three minutes.

Examples:
  python -m benchmarks.autoscaling
  python -m benchmarks.autoscaling zero half --json result.json
  python -m benchmarks.autoscaling model --vary scale_down_stabilization=0,60,300
  python -m benchmarks.autoscaling spike --vary stream_length=50,70,90 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.autoscaling.loads import SHAPES
from benchmarks.autoscaling.model import ModelPlan, modelled
from benchmarks.autoscaling.policy import Policy
from benchmarks.autoscaling.pool import Pool
from benchmarks.autoscaling.report import Run, machine, tables
from benchmarks.autoscaling.trial import Plan, from_zero, halved, place, scaled
from toolbus.bus.broker.transport.embedded import EmbeddedServer

PARTS = ("model", "zero", *SHAPES, "half")
USUAL = tuple(part for part in PARTS if part != "bursts")


def varied(text: str) -> list[Policy]:
    """Return the policies of ``name=value,value``.

    Raises:
        argparse.ArgumentTypeError: no such figure, or no number.
    """
    name, _, values = text.partition("=")
    if name not in Policy._fields:
        raise argparse.ArgumentTypeError(f"{name!r} is no figure of a policy; there are {', '.join(Policy._fields)}")
    if not all(value.isdigit() for value in values.split(",")):
        raise argparse.ArgumentTypeError(f"{values!r} are no whole numbers with commas between them, such as {name}=0,60,300")
    policies = [Policy()._replace(**{name: int(value)}) for value in values.split(",")]
    for policy in policies:
        if not (policy.max_replicas >= max(1, policy.min_replicas) and policy.polling_interval and policy.stream_length):
            raise argparse.ArgumentTypeError(f"{text} asks for a pool that can't be")
    return policies


async def measure(parts: Sequence[str], plan: Plan, policies: Sequence[Policy], tries: int, seconds: float) -> Run:
    """Run the parts, the loads with each policy, and return what was measured."""
    run = Run(plan, Policy(), machine(), os.getloadavg()[0])
    if "model" in parts:
        run.model = [modelled(name, ModelPlan(seed=plan.seed), policy) for name in SHAPES for policy in policies]
    if set(parts) != {"model"}:
        await _with_processes(run, parts, plan, policies, tries, seconds)
    run.load_after = os.getloadavg()[0]
    return run


async def _with_processes(run: Run, parts: Sequence[str], plan: Plan, policies: Sequence[Policy], tries: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="toolbus-autoscaling-") as folder, EmbeddedServer() as server:
        async with place(server.url, Pool(server.url, plan.slots, Path(folder))) as at:
            if "zero" in parts:
                run.first = await from_zero(at, plan, policies[0], tries)
            for name in SHAPES:
                if name in parts:
                    run.loads += [await scaled(at, name, plan, policy) for policy in policies]
            if "half" in parts:
                run.half = await halved(at, plan, policies[0], seconds)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscaling", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("parts", nargs="*", metavar="PART", help=f"what to run, of {', '.join(PARTS)} (all but bursts)")
    made.add_argument("--vary", type=varied, default=[Policy()], metavar="NAME=N,N", help="run the loads with each value of a figure")
    made.add_argument("--pace", type=float, default=10.0, help="seconds of the controllers' clock in a real one (%(default)s)")
    made.add_argument("--workers", type=int, default=6, help="workers that the greatest rate asks for (%(default)s)")
    made.add_argument("--seconds", type=float, default=0.25, help="seconds that a call takes (%(default)s)")
    made.add_argument("--tries", type=int, default=3, help="first calls at an empty pool (%(default)s)")
    made.add_argument("--half-seconds", type=float, default=8.0, help="seconds before and after the cut (%(default)s)")
    made.add_argument("--seed", type=int, default=1, help="of the random numbers (%(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the report there, too")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and print the report; return the exit code."""
    made = parser()
    given = made.parse_args(words)
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        made.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if not (0 < given.pace <= 100 and 0 < given.seconds <= 30 and 1 <= given.workers <= 10 and 0 < given.half_seconds <= 600):
        made.error("--pace goes up to 100, --seconds to 30, --workers to 10 and --half-seconds to 600, and none of them is 0")
    plan = Plan(seconds=given.seconds, workers=given.workers, pace=given.pace, seed=given.seed)
    run = asyncio.run(measure(given.parts or USUAL, plan, given.vary, max(1, min(given.tries, 100)), given.half_seconds))
    print(tables(run))
    if given.json is not None:
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n")
    return 1 if run.lost else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
