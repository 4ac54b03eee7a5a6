"""``protocol``: what programs in other languages load, the checks that they keep the protocol, and its versions (``migrate``)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.command import File, Folder, Output, argument, command, group, option
from toolbus.operations.cli.common import reason, settings_of, with_admin
from toolbus.operations.cli.failing import ask_first, fail
from toolbus.operations.cli.output import Columns, emit, print_line, print_table, show

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.registry.versions import NamespaceVersion
    from toolbus.operations.conformance.checks import Table
    from toolbus.operations.conformance.scene import Scene

    C = TypeVar("C", bound=Scene)


@group("protocol")
def protocol_command() -> None:
    """Write workers and agents in other languages: scripts, numbers, and checks.

    docs/protocol.md says how to use the scripts and numbers, and `toolbus protocol conformance` tries what you wrote.

    \b
    Example:
      toolbus protocol scripts lua/
      toolbus protocol constants --output json
    """


@command("scripts", into=protocol_command)
def scripts_command(folder: Folder) -> None:
    """Write each Lua script into FOLDER, whole, in a folder for each step.

    index.json has the SHA-1 digest of each, by which EVALSHA knows it. vectors.json has inputs and what becomes of them: digests, keys,
    frames, deadlines, verdicts. requirements.json has what is required of workers and of agents, and at which level. schemas/ has a JSON
    Schema of each kind of message.
    """
    from toolbus.bus.broker.server import scripts
    from toolbus.operations.conformance import exported

    try:
        scripts.write_scripts(folder)
        exported.write(folder)
    except OSError as error:
        fail(f"can't write the scripts: {reason(error)}")
    print_line(f"wrote {len(scripts.ALL)} scripts, vectors.json, requirements.json and {len(exported.SCHEMAS)} schemas to {folder}")


@command("constants", into=protocol_command)
def constants_command(output: Output) -> None:
    """Print the numbers of the protocol: sizes, times, and what of them are settings."""
    from toolbus.bus.broker.replies.reader import constants

    found = constants(settings_of())
    columns: Columns = {
        "NAME": "name",
        "VALUE": lambda each: f"{each.value:,g}" if each.value < 1e6 else f"{each.value:,.0f}",
        "UNIT": "unit",
        "MEANING": lambda each: each.meaning.replace("`", ""),
    }
    show(output, found, columns, empty="no constants", document=[each._asdict() for each in found])


_MOST_ROWS = 1_000
_MOST_SHOWN = 500


@command("migrate")
def migrate_command(
    dry_run: Annotated[bool, option("Say what would change, and change nothing.")],
    batch: Annotated[int, option("Documents that are written at once.", type=click.IntRange(1, 1_000), default=100)],
    yes: Annotated[bool, option("Do not ask before documents are moved.")],
    output: Output,
) -> None:
    """Bring a namespace to the version of the protocol that this release writes.

    Run it after an upgrade, when all workers, agents and gateways are of the new release: stored documents get their new form, and
    requests are published in the new version. Workers and agents go on meanwhile. It may be stopped and run again, and does nothing twice.
    It refuses while a worker does not speak the new version; `toolbus doctor` shows who speaks which. It needs the role operator.

    Recorded tools, groups and pins of an older toolbus stand where every worker could write them, and are used once they are moved from
    there: look at them (--dry-run shows them) before you say yes.

    \b
    Examples:
      toolbus operate migrate --dry-run
      toolbus operate migrate
    """
    if dry_run:
        with_admin(lambda admin: _show_changes(admin, output))
        return
    told = 0

    def report(done: int) -> None:
        nonlocal told
        told = done
        print_line(f"{done} documents converted", err=True)

    misplaced = with_admin(lambda admin: admin.misplaced())
    if misplaced and not yes:
        print_line(f"to be moved: {visible(', '.join(misplaced))}", err=True)
        count = "1 document" if len(misplaced) == 1 else f"{len(misplaced)} documents"
        ask_first(f"Move {count}, which every worker could have written, to where they are used?", yes=False)

    async def main(admin: Admin) -> tuple[NamespaceVersion, NamespaceVersion, int]:
        before = await admin.versions.read()
        # What is moved may have an older form, too.
        moved = len(await admin.move(misplaced))
        return before, await admin.versions.migrate(batch, report), moved

    before, after, moved = with_admin(main)
    document = {"namespace": after.namespace, "before": before.written, "version": after.written, "converted": told, "moved": moved}
    text = f"{after} is of version {after.written} now; {told} documents converted{f', {moved} moved' if moved else ''}"
    if (before.written, told, moved) == (after.written, 0, 0):
        text = f"{after} is of version {after.written} already; nothing was to be changed"
    emit(output, document, text)


async def _show_changes(admin: Admin, output: str) -> None:
    from toolbus.bus.broker.registry.versions import spoken
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
    document = {
        "namespace": namespace.namespace,
        "before": namespace.written,
        "version": max(VERSION, namespace.written),
        "changes": [{"key": key, "migration": name, "problem": problem} for key, name, _, problem in rows],
        "more": more,
        "moves": misplaced,
        "behind": [{"service": each.service, "instance": each.instance, "speaks": each.versions or (1, 1)} for each in behind],
    }
    if not emit(output, document):
        return
    print_line(f"{namespace} is of version {namespace.written}, and this release writes version {VERSION}", err=True)
    for worker in behind:
        print_line(f"{worker.service}/{worker.instance} speaks {spoken(worker.versions)} only: upgrade it first", err=True)
    shown = [(key, name, problem or about) for key, name, about, problem in rows]
    shown += [(key, "moved", f"to where it is used, as {one_line(document, _MOST_SHOWN)}") for key, document in misplaced.items()]
    print_table(("KEY", "MIGRATION", "CHANGE"), shown, empty="no stored document has an older form")
    if more:
        print_line(f"and {more} more", err=True)


class Checks(NamedTuple):
    """The checks that are run, of what, and where their outcomes go."""

    level: Annotated[int, option("The highest level to check.", type=click.IntRange(0, 3), default=1)]
    only: Annotated[
        tuple[str, ...], option("Check this requirement only, by its number or name; may be given several times.", metavar="CHECK")
    ]
    expected: Annotated[File | None, option("File with the requirements that are known to be broken, one a line.")]
    junit: Annotated[File | None, option("Write the outcomes to this file in the form of JUnit.")]
    output: Output
    command: Annotated[tuple[str, ...], argument(required=True)]


@group("conformance")
def conformance_command() -> None:
    """Try whether a worker or an agent in another language keeps the protocol.

    docs/protocol.md has a number beside each thing that it requires, such as W24 or A12; docs/reference/conformance.md lists all of
    them with their levels. Each is told as holding, broken, or not checked. Levels: 0 unary calls; 1 streams, cancellation, deadlines;
    2 leases, drain, taking over; 3 once, shared calls, sessions.

    The program is started by its command, which stands behind ` -- `, on two servers that exist for the checks only. Its environment has
    TOOLBUS_URL (redis://HOST:PORT), TOOLBUS_NAMESPACE, TOOLBUS_LEASE and TOOLBUS_GRACE (seconds, maybe with a fraction),
    TOOLBUS_SERVICE, which is `conformance`, and TOOLBUS_SCRIPTS, a folder with the Lua scripts as `toolbus protocol scripts` writes
    them. Of a broken requirement the last frames are shown, and what the program wrote to standard error.

    A line of the file of --expected is a number or name, and may go on with ` # ` and a reason. The exit code is 1 if another
    requirement is broken, or if one of these holds.
    """


protocol_command.add_command(conformance_command)


@command("worker", into=conformance_command)
def worker_command(checks: Checks) -> None:
    """Try the worker that COMMAND starts; `toolbus protocol conformance --help` says with which environment.

    It serves the service `conformance` with conformance-echo and conformance-count, at level 3 also conformance-once. What the others
    are for is not checked without them, nor are sessions if the service has no sticky-sessions.

    A second service, `conformance-beside`, with conformance-beside-count (to, delay), lets it be checked how they share slots. All have
    the effect `read`, but for conformance-once. Without `delay` those that count wait 0.1 s, and conformance-ask not at all.

    \b
      conformance-echo (text)             returns its text
      conformance-count (to, delay)       yields the numbers from 1 to `to`, a space behind each, and waits
                                          `delay` seconds behind each
      conformance-once (to, delay)        counts, too, and has the effect once
      conformance-data (size)             returns the data {"text": "x…"} with `size` letters
      conformance-large (size)            yields a text of `size` letters in pieces of 32,768
      conformance-private (text)          returns its text, and has the tenant `kit` alone
      conformance-block (seconds)         keeps its handler's thread busy, then returns a text
      conformance-retry (to, delay)       counts, but fails behind the first number of the first attempt, and
                                          is tried again once, within a second
      conformance-ask (question, delay)   asks a person, and returns `allowed` `delay` seconds after
                                          the answer
      conformance-cleaned ()              returns how many sessions the service has cleaned up after

    \b
    Example:
      toolbus protocol conformance worker --level 1 -- node examples/node/worker.mjs
      toolbus protocol conformance worker --only W24 -- node examples/node/worker.mjs
      toolbus protocol conformance worker --level 3 --junit found.xml -- toolbus worker toolbus.operations.conformance.checks
    """
    from toolbus.operations.conformance.worker_checks import WORKER
    from toolbus.operations.conformance.worker_scene import WorkerScene

    _check(checks, WORKER, WorkerScene)


@command("agent", into=conformance_command)
def agent_command(checks: Checks) -> None:
    """Try the agent that COMMAND starts; `toolbus protocol conformance --help` says with which environment.

    It reads one JSON object a line, {"call": NAME, "service", "tool", "arguments", "timeout"} or {"cancel": NAME}, and writes
    {"call": NAME, "text": TEXT}, {"call": NAME, "reset": true} and {"call": NAME, "end": {"text", "error"}}. From level 2 on `service`
    may be missing: the agent finds the tool in the registry, and a call may have a `user`. At level 3 a call may have `key` (its
    idempotency key) and `session`, and {"close": SESSION, "user"} closes a session.

    \b
    Example:
      toolbus protocol conformance agent --level 1 -- node examples/node/agent.mjs
      toolbus protocol conformance agent --only publishes -- node examples/node/agent.mjs
      toolbus protocol conformance agent --level 3 -- python -m toolbus.operations.conformance.agent
    """
    from toolbus.operations.conformance.agent_checks import AGENT
    from toolbus.operations.conformance.agent_scene import AgentScene

    _check(checks, AGENT, AgentScene)


def _check(checks: Checks, table: Table[C], kind: type[C]) -> None:
    """Check a program and tell each outcome as it comes; the exit code is 1 if one is not as expected."""
    from toolbus.operations.conformance.report import Report
    from toolbus.operations.conformance.scene import run_checks

    known = {word: each.name for each in table.requirements for word in (each.name, each.id.lower())}
    for name in checks.only:
        if name.lower() not in known:
            raise click.UsageError(
                f"there is no check {name!r}; there are {', '.join(f'{each.id} {each.name}' for each in table.requirements)}"
            )
    report = Report(_read_expected(checks.expected, known), print_line if checks.output == "text" else None)
    chosen = table.chosen(checks.level, checks.only)

    async def run() -> None:
        running = asyncio.create_task(run_checks(kind, chosen, checks.command, report.add, whole=not checks.only))
        # Otherwise the program under test would go on when somebody ends the kit.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        await running

    if checks.junit is not None:
        # Whether it can be written is known before minutes of checks.
        _write(checks.junit, "")
    try:
        asyncio.run(run())
    except asyncio.CancelledError:
        click.get_current_context().exit(128 + signal.SIGTERM)
    if checks.junit is not None:
        _write(checks.junit, report.junit())
    emit(checks.output, report.documents(), report.summary())
    if report.failed:
        click.get_current_context().exit(1)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        fail(f"can't write {path}: {error.strerror}")


def _read_expected(path: Path | None, known: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the requirements of which a file says that they are broken."""
    if path is None:
        return frozenset()
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        fail(f"can't read {path}: {error.strerror}")
    except UnicodeDecodeError:
        fail(f"can't read {path}: it is no text in UTF-8")
    words = [word for line in lines if (word := line.partition("#")[0].strip().lower())]
    if strange := [word for word in words if word not in known]:
        fail(f"{path} names {', '.join(strange)}, and there is no such requirement")
    return frozenset(known[word] for word in words)
