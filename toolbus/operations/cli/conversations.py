"""``conversations``: list, show and delete the conversations that agents keep."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import ask_first, fail, namespace_of, output_option, print_json, print_table, say, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import ConversationInfo, StoredRecord

_MOST_SHOWN = 200
_user_option = click.option("--user", default="", help="The conversation's user; each user has their own of one id.")


@click.group("conversations", no_args_is_help=True)
def conversations_command() -> None:
    """Look after the conversations that agents keep.

    They are those of `toolbus agent --conversation ID` and `Agent(conversation=…)`.

    A conversation is a list of records: questions, what the model said, and the results of calls. Each is kept before the next step, so
    that any process can go on after the last one. It goes a week after its last use (TOOLBUS_CONVERSATION_TTL).

    \b
    Examples:
      toolbus conversations list
      toolbus conversations show orders --user alice
      toolbus agent --conversation orders        finish what was left
      toolbus conversations rm orders
    """


@conversations_command.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Most conversations.")
@output_option
@click.pass_context
def list_command(ctx: click.Context, limit: int, output: str) -> None:
    """List the conversations, those that were used latest first. HELD tells whether a process goes on with one now."""

    async def main(admin: Admin) -> list[ConversationInfo]:
        return await admin.conversations.newest(limit)

    found = with_admin(ctx, main)
    if output == "json":
        print_json(found)
        return
    rows = [(each.id, each.user, each.records, _when(each.used_at), _when(each.expires_at), "yes" if each.held else "") for each in found]
    print_table(("ID", "USER", "RECORDS", "USED", "EXPIRES", "HELD"), rows, empty="no conversations")


@conversations_command.command("show")
@click.argument("id")
@_user_option
@click.option("--full", is_flag=True, help="Show all of each record, also of long ones.")
@output_option
@click.pass_context
def show_command(ctx: click.Context, /, id: str, user: str, full: bool, output: str) -> None:
    """Print the records of a conversation, the oldest first. A conversation that ends in no answer was left, or goes on."""
    import msgspec

    async def main(admin: Admin) -> list[StoredRecord]:
        return await admin.conversations.read(user, id)

    found = with_admin(ctx, main)
    if not found:
        fail(_none(ctx, id, user))
    if output == "json":
        print_json([{"number": each.number, "at": each.at, "record": msgspec.Raw(each.document)} for each in map(_readable, found)])
        return
    for each in found:
        text = _told(each.document)
        say(f"{each.number:>4}  {_when(each.at)}  {visible(text if full else one_line(text, _MOST_SHOWN))}")


@conversations_command.command("rm")
@click.argument("id")
@_user_option
@click.option("--force", is_flag=True, help="Delete it although a process goes on with it; that process ends with an error.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def rm_command(ctx: click.Context, /, id: str, user: str, force: bool, yes: bool) -> None:
    """Delete a conversation for good. Calls that run for it go on."""
    if not yes:
        ask_first(f"Delete the conversation {id!r}?")

    async def main(admin: Admin) -> bool:
        return await admin.conversations.remove(user, id, force=force)

    if not with_admin(ctx, main):
        fail(_none(ctx, id, user))
    say(f"{visible(id)} deleted")


def _none(ctx: click.Context, id: str, user: str) -> str:
    whose = f" of the user {user!r}" if user else ""
    return f"there is no conversation {id!r}{whose}{namespace_of(ctx)}; `toolbus conversations list` shows them"


def _readable(stored: StoredRecord) -> StoredRecord:
    """Return the record, or a text in place of a document that is no JSON."""
    import msgspec

    try:
        msgspec.json.decode(stored.document)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        unreadable = msgspec.json.encode(stored.document.decode("utf-8", "replace"))
        return msgspec.structs.replace(stored, document=unreadable)
    return stored


def _told(document: bytes) -> str:
    """Return a record in words; one that nothing of toolbus wrote as it stands."""
    import msgspec

    try:
        record = msgspec.json.decode(document, type=dict[str, Any])
        return f"{record['type']:<9} {_WORDS[record['type']](record)}"
    except (msgspec.DecodeError, RecursionError, UnicodeError, LookupError, TypeError, AttributeError):
        return f"unreadable {document.decode('utf-8', 'replace')}"


def _reply(record: dict[str, Any]) -> str:
    calls = ", ".join(f"{call['name']} {call['arguments']}" for call in record.get("calls", ()))
    return " ".join(filter(None, (_text(record["message"].get("content")), f"calls {calls}" if calls else "")))


def _result(record: dict[str, Any]) -> str:
    result = record["result"]
    error = result.get("error") or {}
    return f"{record['id']}: {error.get('message') or _text(result.get('output')) or _text(result.get('data'))}"


def _results(record: dict[str, Any]) -> str:
    return "; ".join(f"{message.get('tool_call_id', '')}: {_text(message.get('content'))}" for message in record["messages"])


_WORDS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "question": lambda record: str(record["text"]),
    "reply": _reply,
    "result": _result,
    "results": _results,
    "summary": lambda record: str(record["text"]),
    "end": lambda record: f"{record['reason']} after {record['turns']} requests to the model",
}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "" if content is None else str(content)


def _when(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
