"""The needs of a large deployment, from measured costs.

python -m benchmarks.scale                          the tables, from the costs that were measured last
python -m benchmarks.scale --calls 50000 --tools 2000 --workers 200 --agents 50
python -m benchmarks.scale measure --json FILE      measure the costs anew (three minutes)
python -m benchmarks.scale --costs FILE             the tables, from those
python -m benchmarks.scale check                    compare the model with a few namespaces on a real server (a minute)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.processes import ChildError
from benchmarks.scale import check, measure
from benchmarks.scale.costs import MEASURED, load
from benchmarks.scale.model import Demand
from benchmarks.scale.report import SEED, SKEW, study
from benchmarks.scale.simulate import Server
from benchmarks.servers import ServerError

_MOST = 1e9


def main(words: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(words)
    try:
        return {"tables": _tables, "measure": _measure, "check": _check}[options.what](options)
    except (ValueError, OSError, ServerError, ChildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("tables", "measure", "check"), default="tables", help="(%(default)s)")
    parser.add_argument("--costs", type=Path, default=MEASURED, metavar="FILE", help="measured costs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to this file")
    parser.add_argument("--quick", action="store_true", help="measure less, in a minute; the figures are only roughly right")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the namespaces' names (%(default)s)")
    parser.add_argument("--skew", type=_number(0, 2), default=SKEW, help="how unequal namespaces are: 0 is equal, 1 is Zipf (%(default)s)")
    wanted = parser.add_argument_group("what a deployment does")
    for name, text in {
        "calls": "calls per second",
        "tools": "tools in the registry",
        "workers": "worker processes",
        "agents": "agent processes",
        "tools-each": "tools of a service",
        "replicas": "workers of a service",
        "seconds": "how long a call takes",
        "changes": "changes of the registry per second",
    }.items():
        default = getattr(Demand(), name.replace("-", "_"))
        wanted.add_argument(f"--{name}", type=_number(1e-9, _MOST), default=default, metavar="N", help=f"{text} ({default:g})")
    return parser


def _number(least: float, most: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} is no number") from None
        if not math.isfinite(value) or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to {most:g}")
        return value

    return parse


def _tables(options: argparse.Namespace) -> int:
    given = {name: getattr(options, name) for name in Demand.__struct_fields__ if hasattr(options, name)}
    costs = load(options.costs)
    found = study(costs, Demand(**given), Server(), skew=options.skew, seed=options.seed)
    print(f"measured on {costs.machine}\n")
    for name, text in found.tables().items():
        print(f"{name}\n{text}\n")
    _write(options.json, found.as_dict())
    return 0


def _measure(options: argparse.Namespace) -> int:
    costs = measure.measure(measure.QUICK if options.quick else measure.Size(), lambda step: print(f"measuring {step}", flush=True))
    text = msgspec.json.format(msgspec.json.encode({"costs": costs}), indent=1).decode()
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0


def _check(options: argparse.Namespace) -> int:
    found = check.compare(load(options.costs), calls=2_000 if options.quick else 10_000, in_flight=64)
    print(check.shown(found))
    _write(options.json, {"compared": msgspec.to_builtins(found)})
    return 0


def _write(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
