"""``conformance``: try a worker or an agent in another language."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from toolbus.operations.cli.common import output_option
from toolbus.operations.cli.output import print_json, say

if TYPE_CHECKING:
    from toolbus.operations.conformance.checks import Outcome

_OPTIONS = {"ignore_unknown_options": True}


def _of_level(function: Any) -> Any:
    only = click.option("--only", multiple=True, metavar="CHECK", help="Run this check only; may be given several times.")
    level = click.option("--level", type=click.IntRange(0, 3), default=1, show_default=True, help="The highest level to check.")
    return level(only(output_option(function)))


@click.group("conformance", no_args_is_help=True)
def conformance_command() -> None:
    """Try whether a worker or an agent in another language keeps the protocol.

    The program is started by its command, on a server that exists for the checks only. Its environment has TOOLBUS_URL,
    TOOLBUS_NAMESPACE, TOOLBUS_LEASE and TOOLBUS_GRACE (seconds), TOOLBUS_SERVICE, which is `conformance`, and TOOLBUS_SCRIPTS,
    a folder with the Lua scripts as `toolbus protocol scripts` writes them. Levels: 0 unary calls; 1 streams, cancellation, deadlines;
    2 leases, drain, taking over; 3 once, shared calls. docs/protocol.md describes them.
    """


@conformance_command.command("worker", context_settings=_OPTIONS)
@_of_level
@click.argument("command", nargs=-1, required=True)
def worker_command(command: tuple[str, ...], level: int, only: tuple[str, ...], output: str) -> None:
    """Try the worker that COMMAND starts.

    It serves the service `conformance` with the tools conformance-echo (text), which returns its text, conformance-count
    (to, delay), which yields the numbers from 1 to `to`, one each `delay` seconds, each followed by a space, and at level 3
    conformance-once, which does the same and has the effect once.

    \b
    Example:
      toolbus conformance worker --level 1 -- node examples/node/worker.mjs
      toolbus conformance worker --level 3 -- toolbus worker toolbus.operations.conformance.checks
    """
    from toolbus.operations.conformance.running import try_worker
    from toolbus.operations.conformance.worker_checks import WORKER

    _check_names(only, [check.name for check in WORKER.checks])
    _report(lambda told: try_worker(command, level, only, told), output)


@conformance_command.command("agent", context_settings=_OPTIONS)
@_of_level
@click.argument("command", nargs=-1, required=True)
def agent_command(command: tuple[str, ...], level: int, only: tuple[str, ...], output: str) -> None:
    """Try the agent that COMMAND starts.

    It reads one JSON object a line, {"call": NAME, "service", "tool", "arguments", "timeout"} or {"cancel": NAME}, and writes
    {"call": NAME, "text": TEXT}, {"call": NAME, "reset": true} and {"call": NAME, "end": {"text", "error"}}.

    \b
    Example:
      toolbus conformance agent --level 1 -- node examples/node/agent.mjs
      toolbus conformance agent --level 2 -- python -m toolbus.operations.conformance.agent
    """
    from toolbus.operations.conformance.agent_checks import AGENT
    from toolbus.operations.conformance.running import try_agent

    _check_names(only, [check.name for check in AGENT.checks])
    _report(lambda told: try_agent(command, level, only, told), output)


def _check_names(only: tuple[str, ...], known: list[str]) -> None:
    for name in only:
        if name not in known:
            raise click.UsageError(f"there is no check {name!r}; there are {', '.join(known)}")


def _report(run: Callable[[Callable[[Outcome], None]], Coroutine[Any, Any, list[Outcome]]], output: str) -> None:
    import asyncio

    def told(outcome: Outcome) -> None:
        if output == "text":
            say(f"L{outcome.level} {'ok    ' if outcome.holds else 'BROKEN'} {outcome.name}: {outcome.problem or outcome.meaning}")

    found = asyncio.run(run(told))
    broken = [outcome for outcome in found if not outcome.holds]
    if output == "json":
        print_json(
            [
                {"level": each.level, "name": each.name, "holds": each.holds, "meaning": each.meaning, "problem": each.problem}
                for each in found
            ]
        )
    else:
        say(f"{len(found) - len(broken)} of {len(found)} hold")
    if broken:
        click.get_current_context().exit(1)
