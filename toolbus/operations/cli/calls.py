"""``call``: call a tool from the shell; ``confirm``: list, allow and deny calls that wait for a person."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import mimetypes
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from toolbus import Blob, Progress, ToolBus, ToolError, ToolResult
from toolbus.bus.client.confirmations import Confirmation, Grant
from toolbus.bus.schema.documents import RepeatedKeyError, read_document
from toolbus.bus.support.display import one_line, visible
from toolbus.bus.support.waiting import cancelled
from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.envelope import new_run
from toolbus.bus.values.events import Answered, Asked, Event, Finished, Reset, Text
from toolbus.bus.values.results import deadline_exceeded
from toolbus.operations.cli.command import Output, Seconds, User, argument, command, digest, group, option
from toolbus.operations.cli.common import login_name, namespace_of, read_json, read_text, with_bus
from toolbus.operations.cli.failing import fail, fail_if, wrong_if
from toolbus.operations.cli.output import Columns, emit, moment, print_content, print_json, print_json_line, print_line, show

if TYPE_CHECKING:
    from toolbus.bus.client.calls.call import Call
    from toolbus.bus.client.tools.tool import Tool

# Codes that say no more than the message, which names the tool or service.
_PLAIN = ("unknown_tool", "unknown_service", "no_worker")
_NUMBER = re.compile(r"[+-]?(\d+\.?|\d*\.\d+)", re.ASCII)


def _left(timeout: float | None, began: float) -> dict[str, float]:
    """Return the option ``timeout`` of a call for which a command has had so many seconds since it ``began``; none without one.

    Raises:
        ToolError: they are over.
    """
    if timeout is None:
        return {}
    # Whoever gave it has gone by then: what begins later, begins for nobody.
    left = timeout - (time.monotonic() - began)
    if left <= 0:
        raise ToolError(deadline_exceeded(f"the server could not be used for {timeout:g} s, so the call was not made"))
    # In tenths of a second, since messages show it.
    return {"timeout": min(timeout, math.ceil(10 * left) / 10)}


@command("call")
def call_command(
    tool: str,
    pairs: Annotated[tuple[str, ...], argument(metavar="[KEY=VALUE]...")],
    document: Annotated[str | None, option("All arguments as one JSON object; - reads standard input.", "--json")],
    user: User,
    session: Annotated[str, option("The agent's session.", default="")],
    stream: Annotated[bool | None, option("Print text as it is produced; on by default on a terminal.", "--stream/--no-stream")],
    timeout: Annotated[float | None, option("Seconds until the call ends in any case (default: the tool's, else 60).", type=Seconds())],
    wait: Annotated[float | None, option("Seconds to wait for a worker to appear.", type=Seconds())],
    yes: Annotated[bool, option("Confirm a call that needs confirmation; otherwise you and others are asked.")],
    confirm_timeout: Annotated[float, option("Seconds to wait for the confirmation.", type=Seconds(), default=300.0)],
    save: Annotated[str | None, option("Write the images and files of the result into this folder.", type=click.Path(file_okay=False))],
    output: Output,
) -> None:
    """Call a tool. The exit code is 0 when it succeeded and 1 when it failed.

    How KEY=VALUE is read depends on the tool's schema: text stays text, numbers, lists and objects are
    read as JSON. KEY:=VALUE is always JSON, and KEY=@FILE is the text of a file.

    A tool that declares `confirm` waits until the call is allowed: at this terminal, or anywhere by `toolbus confirm allow`.

    \b
    Examples:
      toolbus call calculator expression='2**64'
      toolbus call text_stats text=@README.md --output json
      toolbus call tell-pun topic=cats --user alice
      toolbus call draw_chart --json - --save charts < chart.json
    """
    options: dict[str, Any] = {"user": user, "session": session}
    # Before the bus is opened: reading blocks, and a blocked event loop can't be interrupted.
    words = _words(pairs, document)
    streaming = output == "text" and (sys.stdout.isatty() if stream is None else stream)
    # The time of a call begins when there is something to connect with.
    import toolbus.bus.broker.agent  # noqa: F401

    began = time.monotonic()

    async def main(bus: ToolBus) -> ToolResult:
        options.update(_left(timeout, began))
        known = bus.tools.get(tool)
        if wait is not None and (known is None or not known.available):
            with contextlib.suppress(TimeoutError):
                known = await bus.wait_for_tool(tool, wait)
        arguments = words(known)
        asking = functools.partial(Confirmation, call="", arguments=arguments, user=user, session=session, limit=bus.settings.max_request)
        grant = None if known is None or yes else Grant(known)
        if grant is not None and grant.tool.available and grant.tool.descriptor.confirm:
            grant.confirmation = await _allowed(bus, grant.tool, arguments, asking, confirm_timeout)
            arguments = grant.confirmation.arguments
        made = bus.stream(tool, arguments, **options)
        made.grant = grant
        async with made as call, handler_questions(bus, tool, known, asking) as on_event:
            return await _print(call, on_event, quiet=not streaming)

    try:
        result = with_bus(main, timeout=timeout)
    except ToolError as failed:
        result = ToolResult.fail(failed.error)
    if output == "json":
        print_json(result)
    elif not streaming and (result.success or result.output):
        print_content(result.observation if result.success else result.output or "")
    if save is not None:
        save_blobs(result.content, tool, save)
    elif output == "text" and result.content:
        # Bytes are no text for a terminal; what is said here must not be taken for output.
        blobs = ", ".join(f"[{visible(blob.media_type)}, {len(blob.data):,} bytes]" for blob in result.content)
        them = "it" if len(result.content) == 1 else "them"
        print_line(f"{blobs}; --save DIR writes {them} to files, --output json shows {them} in base64", err=True)
    if result.error is not None:
        error = result.error
        where = namespace_of() if error.type == "not_found" and error.origin == "bus" else ""
        code = f" ({visible(error.code)})" if error.code and error.message and error.code not in _PLAIN else ""
        later = f"; try again after {error.retry_after:g} s" if error.retry_after else ""
        down = "; `toolbus see services` shows services that are down, whose tools are not known" if error.code == "unknown_tool" else ""
        fail(f"{error.type}{code}: {error.message or error.code}{later}{where}{down}")


async def _allowed(
    bus: ToolBus, tool: Tool, arguments: dict[str, Any], asking: Callable[..., Confirmation], seconds: float
) -> Confirmation:
    """Wait until a person here or elsewhere confirms the call; return the confirmation.

    Raises:
        ToolError: the call was not confirmed, or the arguments are invalid.
    """
    confirmation = asking(new_run(), tool=tool, arguments=tool.prepare(arguments), timeout=seconds)
    here = sys.stdin.isatty()

    def show(text: str) -> None:
        hint = f"or elsewhere, within {seconds:g} s: toolbus confirm allow {confirmation.id}"
        print_line(f"{text}\n[y/N] {hint}" if here else f"{text}\nit waits {hint.partition(', ')[2]}", err=True)

    if not here:
        show(str(confirmation))
    refused = await bus.confirmations.settled(confirmation, terminal_prompt(show) if here else None, shared=True)
    if refused is not None:
        raise ToolError(refused)
    return confirmation


async def _print(call: Call, on_question: Callable[[Event], Awaitable[bool]], *, quiet: bool) -> ToolResult:
    """Print the events of a call; ``quiet`` leaves out all but the questions to a person."""
    printed = False
    async for event in call.events():
        if await on_question(event) or quiet:
            continue
        if isinstance(event, Text):
            print_content(event.text, nl=False)
            sys.stdout.flush()
            printed = not event.text.endswith("\n")
        elif isinstance(event, Progress) and sys.stderr.isatty():
            total = f"/{event.total:g}" if event.total else ""
            print_line(f"[{event.done:g}{total}] {event.message}", fg="bright_black", err=True)
        elif isinstance(event, Reset):
            print_line(f"\n-- attempt {event.attempt} starts from the beginning --", fg="yellow", err=True)
        elif isinstance(event, Finished):
            if printed:
                print_line()
            elif event.result.success and not event.result.output:
                print_content(event.result.observation)
    return await call.result()


def _words(pairs: tuple[str, ...], document: str | None) -> Callable[[Tool | None], dict[str, Any]]:
    """Read the arguments as they stand on the command line, and the files that they name; return what makes them fit a tool's schema.

    Raises:
        UsageError: one can't be read, or is given twice; or, from what is returned, a value has a key twice in one object.
    """
    text = read_text("-") if document == "-" else document
    given = {} if text is None else read_json(text, dict[str, Any], "--json")
    known: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        name = key.removesuffix(":")
        wrong_if(not separator or not name, f"{pair!r} is not KEY=VALUE")
        wrong_if(name in known or name in texts, f"{name!r} is given twice; a list is written {name}:='[…, …]'")
        if key.endswith(":"):
            known[name] = read_json(value, object, f"the value of {name!r}")
        elif value.startswith("@"):
            known[name] = read_text(value[1:])
        else:
            texts[name] = value

    def arguments(tool: Tool | None) -> dict[str, Any]:
        properties = tool.parameters.get("properties", {}) if tool is not None else {}
        return {**given, **known, **{name: _value(name, value, properties.get(name, {})) for name, value in texts.items()}}

    return arguments


def _value(name: str, value: str, schema: Any) -> Any:
    """Return a value as its schema wants it: text wherever text is allowed, else JSON if it is valid JSON."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    options = schema.get("anyOf", []) if isinstance(schema, dict) else []
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds) or any(o.get("type") == "string" for o in options):
        return value
    try:
        return read_document(value, object)
    except RepeatedKeyError as error:
        raise click.UsageError(f"the value of {name!r} can't be read as JSON: {error}") from None
    except ValueError:
        # JSON has no numbers like .5 or 5. and people write them.
        return float(value) if kinds == "number" and _NUMBER.fullmatch(value) else value


# -- images and files of results -----------------------------------------------------------------------

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_MOST_NAME = 100
# Files of one tool in one folder.
_MOST_FILES = 100_000
# Those that the operating system may not know, or knows by an unusual name.
_SUFFIXES = {"image/jpeg": ".jpg", "image/webp": ".webp", "text/plain": ".txt", "text/markdown": ".md", "application/jsonl": ".jsonl"}


def save_blobs(blobs: Sequence[Blob], tool: str, folder: str) -> None:
    """Write each blob to a new file that is named after the tool, and tell its path; no file is overwritten.

    The files of a result have successive numbers in its order, after those that are there.
    """
    if not blobs:
        print_line("the result has no images or files to save", err=True)
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        # The name comes from a worker and must not lead elsewhere.
        name = _UNSAFE.sub("-", tool)[:_MOST_NAME].strip("-") or "result"
        numbered = re.compile(re.escape(name) + r"-([0-9]{1,6})\.[^.]+")
        number = max((int(found[1]) for each in Path(folder).iterdir() if (found := numbered.fullmatch(each.name))), default=0)
        for blob in blobs:
            path, number = _written(blob, name, Path(folder), number + 1)
            print_line(f"{visible(str(path))} ({visible(blob.media_type)}, {len(blob.data):,} bytes)", err=True)
    except OSError as error:
        fail(f"can't save to {visible(folder)}: {error.strerror or error}")


def _written(blob: Blob, name: str, folder: Path, first: int) -> tuple[Path, int]:
    """Write a blob to a new file with this number or the next that is free; return its path and number.

    Raises:
        OSError: the file can't be written.
    """
    kind = blob.media_type.partition(";")[0].strip().lower()
    suffix = _SUFFIXES.get(kind) or mimetypes.guess_extension(kind) or ".bin"
    for number in range(first, _MOST_FILES):
        path = folder / f"{name}-{number}{suffix}"
        try:
            with path.open("xb") as file:
                file.write(blob.data)
        except FileExistsError:
            # Another process writes there, too.
            continue
        return path, number
    raise OSError(f"it has {_MOST_FILES:,} files of {name} already")


# -- questions to the person at the terminal ------------------------------------------------------------


def terminal_prompt(show: Callable[[str], None]) -> Callable[[object], Awaitable[bool]]:
    """Return what asks one question at a time at the terminal: whether the answer is yes. Without a terminal it is no.

    Args:
        show: prints the text of a question, which is ``str()`` of it.
    """
    turn = asyncio.Lock()

    async def ask(question: object) -> bool:
        if not sys.stdin.isatty():
            return False
        async with turn:
            show(str(question))
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[str] = loop.create_future()

            def read() -> None:
                if not answer.done():
                    answer.set_result(sys.stdin.readline())

            # Not in a thread, because a thread that waits for a line can't be cancelled.
            loop.add_reader(sys.stdin, read)
            try:
                return (await answer).strip().lower() in {"y", "yes"}
            finally:
                loop.remove_reader(sys.stdin)

    return ask


@contextlib.asynccontextmanager
async def handler_questions(
    bus: ToolBus, name: str, tool: Tool | None, asking: Callable[..., Confirmation]
) -> AsyncIterator[Callable[[Event], Awaitable[bool]]]:
    """Yield what takes in an event of one call, and returns whether it was about a question of the handler.

    Questions are printed, and put to the person at the terminal, if there is one; others may answer first.

    Args:
        bus: of the call.
        name: the tool as it was called.
        tool: the tool as it is known; None is asked about elsewhere only.
        asking: makes a confirmation of an id, the tool, a question and seconds.
    """
    prompt = terminal_prompt(lambda text: print_line(f"{text}\n[y/N]", err=True))
    task: asyncio.Task[None] | None = None

    async def ask(event: Asked) -> None:
        await bus.confirmations.relay(asking(event.id, tool=tool, question=event.question, timeout=event.timeout), prompt)

    async def end() -> None:
        """Ask no more: it was answered, or the call has ended."""
        nonlocal task
        if task is not None:
            await cancelled(task)
            task = None

    async def on_event(event: Event) -> bool:
        nonlocal task
        if not isinstance(event, (Asked, Answered)):
            return False
        await end()
        if isinstance(event, Asked):
            asks = f"{name} asks: {visible(event.question)}"
            print_line(f"{asks}\nit waits {math.ceil(event.timeout)} s: toolbus confirm allow {event.id}", err=True)
            if tool is not None and sys.stdin.isatty():
                task = asyncio.create_task(ask(event))
        return True

    try:
        yield on_event
    finally:
        await end()


# -- confirmations -------------------------------------------------------------------------------------

By = Annotated[str | None, option("Name of the person who answers, for the log and the caller (default: the login name).")]
OfUser = Annotated[str | None, option("Only calls of this user.")]


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
async def confirm_list(bus: ToolBus, user: OfUser, output: Output) -> None:
    """List the open requests, oldest first."""
    now = time.time()
    columns: Columns = {
        "ID": "id",
        "TOOL": lambda each: each.tool or each.service,
        "USER": "user",
        "WAITS": lambda each: _ago(now - each.asked_at),
        "LEFT": lambda each: _ago(each.expires_at - now),
        "QUESTION": lambda each: one_line(f"{visible(each.question)} {visible(each.description)}", 60),
    }
    show(output, await bus.confirmations.pending(user=user), columns, empty="nothing waits for a person")


@command("show", into=confirm_command)
async def confirm_show(bus: ToolBus, id: str, full: Annotated[bool, option("Show all arguments, also long ones.")], output: Output) -> None:
    """Print one request with its arguments; long values are shortened one by one."""
    found = await bus.confirmations.get(await _whole(bus, id))
    if emit(output, found):
        print_line(_text(found, full=full))


@command("allow", into=confirm_command)
async def confirm_allow(
    bus: ToolBus,
    id: str,
    note: Annotated[str, option("A remark for the asker.", default="")],
    digest: Annotated[
        str, digest("Allow the request only if its digest is this, or begins with this, of 16 digits or more; `show` prints it.")
    ],
    by: By,
) -> None:
    """Allow a call. The first of several answers counts; for the others the exit code is 1."""
    whole, answer = await _whole(bus, id), ConfirmationAnswer(True, note, login_name() if by is None else by)
    if digest:
        from toolbus.bus.values.pins import check_prefix

        check_prefix(digest)
        found = await bus.confirmations.get(whole)
        fail_if(not found.digest.startswith(digest), f"{whole} has the digest {visible(found.digest)}, not {digest}")
        answer = msgspec.structs.replace(answer, digest=found.digest)
    await bus.confirmations.answer(whole, answer)
    print_line(f"{whole} allowed")


@command("deny", into=confirm_command)
async def confirm_deny(
    bus: ToolBus, id: str, reason: Annotated[str, option("The reason, which is sent to the caller.", default="")], by: By
) -> None:
    """Deny a call, which ends as forbidden. The first of several answers counts; for the others the exit code is 1."""
    whole = await _whole(bus, id)
    await bus.confirmations.answer(whole, ConfirmationAnswer(False, reason, login_name() if by is None else by))
    print_line(f"{whole} denied")


@command("watch", into=confirm_command)
async def confirm_watch(bus: ToolBus, user: OfUser, output: Output) -> None:
    """Print the open requests, then each new one as it comes, until Ctrl-C; JSON output has one document per line."""
    async for request in bus.confirmations.watch():
        if user is not None and request.user != user:
            continue
        if output == "json":
            print_json_line(request)
        else:
            print_line(f"{_text(request)}\n")


async def _whole(bus: ToolBus, start: str) -> str:
    """Return the full id when exactly one request starts with ``start``; else ``start``, for the server to refuse."""
    found = [request.id for request in await bus.confirmations.pending() if start and request.id.startswith(start)]
    fail_if(len(found) > 1, f"{len(found)} requests start with {start!r}: {', '.join(found[:5])}")
    return found[0] if found else start


def _text(request: ConfirmationRequest, *, full: bool = False) -> str:
    """Return the request as text, each field on its own line, which no value can end."""
    until = moment(request.expires_at, "%Y-%m-%d %H:%M:%S UTC")
    fields = {"Service": request.service, "Session": request.session, "Call": request.call, "Digest": request.digest}
    about = [f"  {name}: {visible(value)}" for name, value in fields.items() if value]
    return "\n".join([f"{visible(request.id)}  until {until}", request.text(full=full), *about])


def _ago(seconds: float) -> str:
    whole = max(0, round(seconds))
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"
