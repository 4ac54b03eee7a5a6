"""``protocol``: the parts of the protocol that programs in other languages load."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import ask_first, fail, output_option, print_json, print_table, reason, say, settings_of, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.versions import NamespaceVersion
    from toolbus.operations.conformance.checks import Outcome


@click.group("protocol", no_args_is_help=True)
def protocol_command() -> None:
    """Write the scripts and numbers that a worker or an agent in another language needs.

    docs/protocol.md says how to use them, and `toolbus conformance` tries what you wrote.

    \b
    Example:
      toolbus protocol scripts lua/
      toolbus protocol constants --output json
    """


@protocol_command.command("scripts")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def scripts_command(folder: Path) -> None:
    """Write each Lua script into FOLDER, whole, in a folder for each step, and index.json with their SHA-1 digests."""
    from toolbus.bus.broker import scripts

    try:
        scripts.write_scripts(folder)
    except OSError as error:
        fail(f"can't write the scripts: {reason(error)}")
    say(f"wrote {len(scripts.ALL)} scripts to {folder}")


@protocol_command.command("constants")
@output_option
@click.pass_context
def constants_command(ctx: click.Context, output: str) -> None:
    """Print the numbers of the protocol: sizes, times, and what of them are settings."""
    from toolbus.bus.broker.replies import constants

    found = constants(settings_of(ctx))
    if output == "json":
        print_json([constant._asdict() for constant in found])
    else:
        rows = [
            (each.name, f"{each.value:,g}" if each.value < 1e6 else f"{each.value:,.0f}", each.unit, _plain(each.meaning)) for each in found
        ]
        print_table(("NAME", "VALUE", "UNIT", "MEANING"), rows, empty="no constants")


def _plain(text: str) -> str:
    return re.sub("`", "", text)


_MOST_ROWS = 1_000
_MOST_SHOWN = 500


@click.command("migrate")
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--batch", type=click.IntRange(1, 1_000), default=100, show_default=True, help="Documents that are written at once.")
@click.option("--yes", is_flag=True, help="Do not ask before documents are moved.")
@output_option
@click.pass_context
def migrate_command(ctx: click.Context, dry_run: bool, batch: int, yes: bool, output: str) -> None:
    """Bring a namespace to the version of the protocol that this release writes.

    Run it after an upgrade, when all workers, agents and gateways are of the new release: stored documents get their new form, and
    requests are published in the new version. Workers and agents go on meanwhile. It may be stopped and run again, and does nothing twice.
    It refuses while a worker does not speak the new version; `toolbus doctor` shows who speaks which. It needs the role operator.

    Recorded tools, groups and pins of an older toolbus stand where every worker could write them, and are used once they are moved from
    there: look at them (--dry-run shows them) before you say yes.

    \b
    Examples:
      toolbus migrate --dry-run
      toolbus migrate
    """
    if dry_run:
        with_admin(ctx, lambda admin: _show(admin, output))
        return
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        told = done
        say(f"{done} documents converted", err=True)

    misplaced = with_admin(ctx, lambda admin: admin.misplaced())
    if misplaced and not yes:
        say(f"to be moved: {visible(', '.join(misplaced))}", err=True)
        count = "1 document" if len(misplaced) == 1 else f"{len(misplaced)} documents"
        ask_first(f"Move {count}, which every worker could have written, to where they are used?")

    async def main(admin: Admin) -> tuple[NamespaceVersion, NamespaceVersion, int]:
        before = await admin.versions.read()
        # What is moved may have an older form, too.
        moved = len(await admin.move(misplaced))
        return before, await admin.versions.migrate(batch, tell), moved

    before, after, moved = with_admin(ctx, main)
    if output == "json":
        print_json({"namespace": after.namespace, "before": before.written, "version": after.written, "converted": told, "moved": moved})
    elif (before.written, told, moved) == (after.written, 0, 0):
        say(f"{after} is of version {after.written} already; nothing was to be changed")
    else:
        say(f"{after} is of version {after.written} now; {told} documents converted{f', {moved} moved' if moved else ''}")


async def _show(admin: Admin, output: str) -> None:
    from toolbus.bus.broker.versions import spoken
    from toolbus.bus.values.envelope import VERSION

    namespace, behind = await asyncio.gather(admin.versions.read(), admin.versions.behind())
    namespace.check()
    # Documents may be large, and many.
    rows, more = list[tuple[str, str, str, str]](), 0
    async for each in admin.versions.changes():
        if len(rows) < _MOST_ROWS:
            rows.append((each.key, each.migration.name, each.migration.about, each.problem))
        else:
            more += 1
    misplaced = {key: document.decode("utf-8", "replace") for key, document in (await admin.misplaced()).items()}
    if output == "json":
        print_json(
            {
                "namespace": namespace.namespace,
                "before": namespace.written,
                "version": max(VERSION, namespace.written),
                "changes": [{"key": key, "migration": name, "problem": problem} for key, name, _, problem in rows],
                "more": more,
                "moves": misplaced,
                "behind": [{"service": each.service, "instance": each.instance, "speaks": each.versions or (1, 1)} for each in behind],
            }
        )
        return
    say(f"{namespace} is of version {namespace.written}, and this release writes version {VERSION}", err=True)
    for worker in behind:
        say(f"{worker.service}/{worker.instance} speaks {spoken(worker.versions)} only: upgrade it first", err=True)
    shown = [(key, name, problem or about) for key, name, about, problem in rows]
    shown += [(key, "moved", f"to where it is used, as {one_line(document, _MOST_SHOWN)}") for key, document in misplaced.items()]
    print_table(("KEY", "MIGRATION", "CHANGE"), shown, empty="no stored document has an older form")
    if more:
        say(f"and {more} more", err=True)


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
