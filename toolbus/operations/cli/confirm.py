"""``confirm``: list, allow and deny calls that wait for a person."""

from __future__ import annotations

import datetime
import getpass
import time
from typing import TYPE_CHECKING

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.operations.cli.common import digest_option, fail, output_option, print_json, print_table, say, with_bus

if TYPE_CHECKING:
    from toolbus import ToolBus

_by_option = click.option("--by", help="Name of the person who answers, for the log and the caller (default: the login name).")


@click.group("confirm", no_args_is_help=True)
def confirm_command() -> None:
    """Show and answer confirmation requests. They come from all processes of the namespace.

    A tool that declares `confirm` waits before it runs, and a running tool may ask by itself. An ID may be shortened as long as
    it still names one request.

    \b
    Examples:
      toolbus confirm list
      toolbus confirm allow 5f3a --note "as discussed"
      toolbus confirm deny 5f3a --reason "not on a Friday"
    """


@confirm_command.command("list")
@click.option("--user", help="Only calls of this user.")
@output_option
@click.pass_context
def list_command(ctx: click.Context, user: str | None, output: str) -> None:
    """List the open requests, oldest first."""

    async def main(bus: ToolBus) -> list[ConfirmationRequest]:
        return await bus.confirmations.pending(user=user)

    found = with_bus(ctx, main)
    if output == "json":
        print_json(found)
        return
    columns = ("ID", "TOOL", "USER", "WAITS", "LEFT", "QUESTION")
    print_table(columns, [_row(request) for request in found], empty="nothing waits for a person")


@confirm_command.command("show")
@click.argument("id")
@click.option("--full", is_flag=True, help="Show all arguments, also long ones.")
@output_option
@click.pass_context
def show_command(ctx: click.Context, /, id: str, full: bool, output: str) -> None:
    """Print one request with its arguments; long values are shortened one by one."""

    async def main(bus: ToolBus) -> ConfirmationRequest:
        return await bus.confirmations.get(await _whole(bus, id))

    found = with_bus(ctx, main)
    if output == "json":
        print_json(found)
    else:
        say(_text(found, full=full))


@confirm_command.command("allow")
@click.argument("id")
@click.option("--note", default="", help="A remark for the asker.")
@digest_option("Allow the request only if its digest is this, or begins with this, of 16 digits or more; `show` prints it.")
@_by_option
@click.pass_context
def allow_command(ctx: click.Context, /, id: str, note: str, digest: str, by: str | None) -> None:
    """Allow a call. The first of several answers counts; for the others the exit code is 1."""
    _answer(ctx, id, ConfirmationAnswer(True, note, _name(by)), digest)


@confirm_command.command("deny")
@click.argument("id")
@click.option("--reason", default="", help="The reason, which is sent to the caller.")
@_by_option
@click.pass_context
def deny_command(ctx: click.Context, /, id: str, reason: str, by: str | None) -> None:
    """Deny a call, which ends as forbidden. The first of several answers counts; for the others the exit code is 1."""
    _answer(ctx, id, ConfirmationAnswer(False, reason, _name(by)))


@confirm_command.command("watch")
@click.option("--user", help="Only calls of this user.")
@output_option
@click.pass_context
def watch_command(ctx: click.Context, user: str | None, output: str) -> None:
    """Print the open requests, then each new one as it comes, until Ctrl-C; JSON output has one document per line."""
    import msgspec

    async def main(bus: ToolBus) -> None:
        async for request in bus.confirmations.watch():
            if user is None or request.user == user:
                say(visible(msgspec.json.encode(request).decode()) if output == "json" else f"{_text(request)}\n")

    with_bus(ctx, main)


def _answer(ctx: click.Context, start: str, answer: ConfirmationAnswer, digest: str = "") -> None:
    async def main(bus: ToolBus) -> str:
        import msgspec

        whole, given = await _whole(bus, start), answer
        if digest:
            from toolbus.bus.values.pins import check_prefix

            check_prefix(digest)
            found = await bus.confirmations.get(whole)
            if not found.digest.startswith(digest):
                fail(f"{whole} has the digest {visible(found.digest)}, not {digest}")
            given = msgspec.structs.replace(answer, digest=found.digest)
        await bus.confirmations.answer(whole, given)
        return whole

    say(f"{with_bus(ctx, main)} {'allowed' if answer.allowed else 'denied'}")


async def _whole(bus: ToolBus, start: str) -> str:
    """Return the full id when exactly one request starts with ``start``; else ``start``, for the server to refuse."""
    found = [request.id for request in await bus.confirmations.pending() if start and request.id.startswith(start)]
    if len(found) > 1:
        fail(f"{len(found)} requests start with {start!r}: {', '.join(found[:5])}")
    return found[0] if found else start


def _name(by: str | None) -> str:
    if by is not None:
        return by
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # The system has no name for the current user.
        return ""


def _row(request: ConfirmationRequest) -> tuple[object, ...]:
    now = time.time()
    question = one_line(f"{visible(request.question)} {visible(request.description)}", 60)
    return (
        request.id,
        request.tool or request.service,
        request.user,
        _ago(now - request.asked_at),
        _ago(request.expires_at - now),
        question,
    )


def _text(request: ConfirmationRequest, *, full: bool = False) -> str:
    """Return the request as text, each field on its own line, which no value can end."""
    until = datetime.datetime.fromtimestamp(request.expires_at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    fields = {"Service": request.service, "Session": request.session, "Call": request.call, "Digest": request.digest}
    about = [f"  {name}: {visible(value)}" for name, value in fields.items() if value]
    return "\n".join([f"{visible(request.id)}  until {until}", request.text(full=full), *about])


def _ago(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"
