"""``confirm``: list, allow and deny calls that wait for a person."""

from __future__ import annotations

import getpass
import time
from typing import TYPE_CHECKING, Annotated

import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.operations.cli.command import Output, command, digest, group, option
from toolbus.operations.cli.output import fail, moment, print_json, print_json_line, say, show

if TYPE_CHECKING:
    from toolbus import ToolBus

By = Annotated[str | None, option("Name of the person who answers, for the log and the caller (default: the login name).")]
User = Annotated[str | None, option("Only calls of this user.")]


@group("confirm")
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


@command("list", into=confirm_command)
async def list_command(bus: ToolBus, user: User, output: Output) -> None:
    """List the open requests, oldest first."""
    now = time.time()
    show(
        output,
        await bus.confirmations.pending(user=user),
        {
            "ID": "id",
            "TOOL": lambda each: each.tool or each.service,
            "USER": "user",
            "WAITS": lambda each: _ago(now - each.asked_at),
            "LEFT": lambda each: _ago(each.expires_at - now),
            "QUESTION": lambda each: one_line(f"{visible(each.question)} {visible(each.description)}", 60),
        },
        empty="nothing waits for a person",
    )


@command("show", into=confirm_command)
async def show_command(bus: ToolBus, id: str, full: Annotated[bool, option("Show all arguments, also long ones.")], output: Output) -> None:
    """Print one request with its arguments; long values are shortened one by one."""
    found = await bus.confirmations.get(await _whole(bus, id))
    if output == "json":
        print_json(found)
    else:
        say(_text(found, full=full))


@command("allow", into=confirm_command)
async def allow_command(
    bus: ToolBus,
    id: str,
    note: Annotated[str, option("A remark for the asker.", default="")],
    digest: Annotated[
        str, digest("Allow the request only if its digest is this, or begins with this, of 16 digits or more; `show` prints it.")
    ],
    by: By,
) -> None:
    """Allow a call. The first of several answers counts; for the others the exit code is 1."""
    whole, answer = await _whole(bus, id), ConfirmationAnswer(True, note, _name(by))
    if digest:
        from toolbus.bus.values.pins import check_prefix

        check_prefix(digest)
        found = await bus.confirmations.get(whole)
        if not found.digest.startswith(digest):
            fail(f"{whole} has the digest {visible(found.digest)}, not {digest}")
        answer = msgspec.structs.replace(answer, digest=found.digest)
    await bus.confirmations.answer(whole, answer)
    say(f"{whole} allowed")


@command("deny", into=confirm_command)
async def deny_command(
    bus: ToolBus, id: str, reason: Annotated[str, option("The reason, which is sent to the caller.", default="")], by: By
) -> None:
    """Deny a call, which ends as forbidden. The first of several answers counts; for the others the exit code is 1."""
    whole = await _whole(bus, id)
    await bus.confirmations.answer(whole, ConfirmationAnswer(False, reason, _name(by)))
    say(f"{whole} denied")


@command("watch", into=confirm_command)
async def watch_command(bus: ToolBus, user: User, output: Output) -> None:
    """Print the open requests, then each new one as it comes, until Ctrl-C; JSON output has one document per line."""
    async for request in bus.confirmations.watch():
        if user is not None and request.user != user:
            continue
        if output == "json":
            print_json_line(request)
        else:
            say(f"{_text(request)}\n")


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


def _text(request: ConfirmationRequest, *, full: bool = False) -> str:
    """Return the request as text, each field on its own line, which no value can end."""
    until = moment(request.expires_at, "%Y-%m-%d %H:%M:%S UTC")
    fields = {"Service": request.service, "Session": request.session, "Call": request.call, "Digest": request.digest}
    about = [f"  {name}: {visible(value)}" for name, value in fields.items() if value]
    return "\n".join([f"{visible(request.id)}  until {until}", request.text(full=full), *about])


def _ago(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"
