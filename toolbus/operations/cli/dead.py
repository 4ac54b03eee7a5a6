"""``dead``: list, redrive and drop dead letters."""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line
from toolbus.bus.values.results import ToolbusError
from toolbus.operations.cli.common import (
    Failure,
    Seconds,
    ask_first,
    fail,
    json_option,
    output_option,
    print_json,
    print_table,
    say,
    with_admin,
)

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.dead_letters import DeadLetter


@click.group("dead", no_args_is_help=True)
def dead_command() -> None:
    """Handle dead letters. These are requests that could not be answered, with the reason and the last error.

    A request becomes a dead letter when it killed its workers too often, failed at its last retry, failed without a caller to
    tell, or could not be read. It stays for a week unless it is redriven or dropped.
    """


@dead_command.command("list")
@click.argument("service", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Most letters per service.")
@output_option
@click.pass_context
def list_command(ctx: click.Context, service: str | None, limit: int, output: str) -> None:
    """List dead letters, newest first: of one service, or of all."""

    async def main(admin: Admin) -> list[DeadLetter]:
        if service:
            return await admin.dead_letters.newest(await admin.queue(service), limit)
        return await _newest_of_all(admin, limit)

    found = with_admin(ctx, main)
    if service and not found:
        _must_be_known(ctx, service)
    if output == "json":
        print_json([_summary(letter) for letter in found])
        return
    columns = ("ID", "SERVICE", "TOOL", "USER", "WHEN", "ATTEMPTS", "REASON", "LAST ERROR")
    print_table(columns, [_row(letter) for letter in found], empty="no dead letters")


@dead_command.command("show")
@click.argument("service")
@click.argument("letter")
@json_option
@click.pass_context
def show_command(ctx: click.Context, service: str, letter: str) -> None:
    """Print one dead letter as JSON, with the original request."""

    async def main(admin: Admin) -> DeadLetter:
        return await admin.dead_letters.get(await admin.queue(service), letter)

    found = with_admin(ctx, main)
    # An unreadable request is shown as text as far as possible.
    original: Any = found.request if found.request is not None else found.document[:4096].decode("utf-8", "backslashreplace")
    print_json({**_summary(found), "request": original})


@dead_command.command("redrive")
@click.argument("service")
@click.argument("letters", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Redrive every dead letter of the service.")
@click.option("--timeout", type=Seconds(), help="Seconds until the new deadline (default: the request's own timeout).")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def redrive_command(ctx: click.Context, service: str, letters: tuple[str, ...], everything: bool, timeout: float | None, yes: bool) -> None:
    """Run dead letters again, as new calls with a new deadline and without a caller.

    A call that fails again becomes a dead letter again. The worker's log shows the results of the others.
    """

    async def main(admin: Admin) -> int:
        queue = await admin.queue(service)
        limit = await admin.queue_limit(service)

        async def one(letter: str) -> None:
            call = await admin.dead_letters.redrive(queue, letter, limit=limit, timeout=timeout)
            say(f"{letter} runs again as {call}")

        return await _each(admin, queue, letters, everything, one)

    _check_letters(ctx, service, letters, everything)
    _confirm(everything, yes, f"Run every dead letter of {service!r} again?")
    _finish(with_admin(ctx, main))


@dead_command.command("drop")
@click.argument("service")
@click.argument("letters", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Drop every dead letter of the service.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def drop_command(ctx: click.Context, service: str, letters: tuple[str, ...], everything: bool, yes: bool) -> None:
    """Delete dead letters for good."""

    async def main(admin: Admin) -> int:
        queue = await admin.queue(service)

        async def one(letter: str) -> None:
            await admin.dead_letters.drop(queue, letter)
            say(f"{letter} dropped")

        return await _each(admin, queue, letters, everything, one)

    _check_letters(ctx, service, letters, everything)
    _confirm(everything, yes, f"Delete every dead letter of {service!r}?")
    _finish(with_admin(ctx, main))


async def _newest_of_all(admin: Admin, limit: int) -> list[DeadLetter]:
    """Return the newest letters of each queue; report a queue whose key has a wrong type and go on."""
    from toolbus.bus.broker.transport.command import WrongTypeError

    found: list[DeadLetter] = []
    for queue in await admin.dead_letters.queues():
        try:
            found += await admin.dead_letters.newest(queue, limit)
        except WrongTypeError as error:
            Failure(str(error)).show()
    return found


async def _each(admin: Admin, queue: str, letters: tuple[str, ...], everything: bool, one: Callable[[str], Awaitable[None]]) -> int:
    """Apply ``one`` to each letter, report failures and go on; return the number of failures."""
    failed = 0
    for letter in await admin.dead_letters.ids(queue) if everything else letters:
        try:
            await one(letter)
        except ToolbusError as error:
            Failure(str(error)).show()
            failed += 1
    return failed


def _must_be_known(ctx: click.Context, service: str) -> None:
    """Fail when a service without dead letters is not in the registry."""

    async def main(admin: Admin) -> bool:
        return service in {each.publication.service.id for each in await admin.services()}

    if not with_admin(ctx, main):
        fail(f"there are no dead letters of {service!r}, and no service of that name; `toolbus services` lists them")


def _check_letters(ctx: click.Context, service: str, letters: tuple[str, ...], everything: bool) -> None:
    """Check which letters are meant before a question is asked; end the command when all are, and there are none."""
    if bool(letters) == everything:
        raise click.UsageError("give the ids of dead letters, or --all")

    async def main(admin: Admin) -> bool:
        return bool(await admin.dead_letters.ids(await admin.queue(service)))

    if everything and not with_admin(ctx, main):
        _must_be_known(ctx, service)
        say(f"no dead letters of {service}", err=True)
        ctx.exit(0)


def _confirm(everything: bool, yes: bool, question: str) -> None:
    if everything and not yes:
        ask_first(question)


def _finish(failed: int) -> None:
    if failed:
        fail(f"nothing was done to {failed} of the letters")


def _summary(letter: DeadLetter) -> dict[str, Any]:
    request = letter.request
    return {
        "id": letter.id,
        "service": letter.queue if request is None else request.service,
        "tool": "" if request is None else request.tool,
        "user": "" if request is None else request.user,
        "at": _when(letter).isoformat(),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "error": letter.error,
    }


def _row(letter: DeadLetter) -> tuple[object, ...]:
    about = _summary(letter)
    when = _when(letter).strftime("%Y-%m-%d %H:%M:%S")
    return (letter.id, about["service"], about["tool"], about["user"], when, letter.attempts, letter.reason, one_line(letter.error, 60))


def _when(letter: DeadLetter) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(letter.at, datetime.UTC)
