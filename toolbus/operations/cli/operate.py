"""``operate``: pause, resume and purge services; look after dead letters, conversations, and the documents of the registry."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from toolbus.bus.broker.protocols import RefusedTool, ServiceRecord, StoredRecord
from toolbus.bus.schema.documents import read_document
from toolbus.bus.support.display import one_line, visible
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.naming import key_flaw
from toolbus.bus.values.results import BrokerUnavailable, DescriptorError, ToolbusError
from toolbus.operations.cli.command import JSON, Output, Seconds, Yes, argument, command, group, option
from toolbus.operations.cli.common import must_be_known, namespace_of, read_bytes, read_json, settings_of, with_admin
from toolbus.operations.cli.failing import Failure, ask_first, fail, fail_if, wrong_if
from toolbus.operations.cli.output import Columns, complain, emit, moment, print_json, print_line, show, stored_of, titled

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.lease.dead_letters import DeadLetter

    Services = dict[str, ServiceRecord | RefusedTool]
    Items = dict[str, bytes | RefusedTool]


@command("pause")
async def pause_command(admin: Admin, service: str) -> None:
    """Make a service's workers stop taking requests. Running calls go on; new ones wait in the queue."""
    await must_be_known(admin, service)
    await admin.pause(service)
    print_line(f"paused {service}")


@command("resume")
async def resume_command(admin: Admin, service: str) -> None:
    """Let a paused service's workers take requests again."""
    lifted = await admin.resume(service)
    if not lifted:
        await must_be_known(admin, service)
    print_line(f"resumed {service}" if lifted else f"{service} was not paused")


@command("purge")
def purge_command(service: str, yes: Yes) -> None:
    """Remove the requests that wait for a service. Their callers get a `cancelled` error; running calls go on."""

    async def look(admin: Admin) -> None:
        # A service whose workers are gone may still have a queue.
        if not await admin.queued(service):
            await must_be_known(admin, service)

    with_admin(look)
    ask_first(f"Remove every request that waits for {service!r}?", yes=yes)
    print_line(f"purged {with_admin(lambda admin: admin.purge(service))} requests of {service}")


# -- dead letters ------------------------------------------------------------------------------------

_NO_LETTERS = "there are no dead letters of {!r}, and no service of that name"


@group("dead")
def dead_command() -> None:
    """Handle dead letters. These are requests that could not be answered, with the reason and the last error.

    A request becomes a dead letter when it killed its workers too often, failed at its last retry, failed without a caller to
    tell, or could not be read. It stays for a week unless it is redriven or dropped.
    """


@command("list", into=dead_command)
async def dead_list(
    admin: Admin,
    service: str | None,
    limit: Annotated[int, option("Most letters per service.", type=click.IntRange(1, 10_000), default=50)],
    output: Output,
) -> None:
    """List dead letters, newest first: of one service, or of all."""
    if service:
        found = await admin.dead_letters.newest(await admin.queue(service), limit)
        if not found:
            await must_be_known(admin, service, _NO_LETTERS)
    else:
        found = await _newest_of_all(admin, limit)
    columns: Columns = {
        **titled("id", "service", "tool", "user"),
        "WHEN": lambda each: each["at"][:19].replace("T", " "),
        **titled("attempts", "reason"),
        "LAST ERROR": lambda each: one_line(each["error"], 60),
    }
    show(output, map(_summary, found), columns, empty=f"no dead letters{namespace_of()}")


@command("show", JSON, into=dead_command)
async def dead_show(admin: Admin, service: str, letter: str) -> None:
    """Print one dead letter as JSON, with the original request."""
    found = await admin.dead_letters.get(await admin.queue(service), letter)
    # An unreadable request is shown as text as far as possible.
    original: Any = found.request if found.request is not None else found.document[:4096].decode("utf-8", "backslashreplace")
    print_json({**_summary(found), "request": original})


@command("redrive", into=dead_command)
def dead_redrive(
    service: str,
    letters: tuple[str, ...],
    everything: Annotated[bool, option("Redrive every dead letter of the service.", "--all")],
    timeout: Annotated[float | None, option("Seconds until the new deadline (default: the request's own timeout).", type=Seconds())],
    yes: Yes,
) -> None:
    """Run dead letters again, as new calls with a new deadline and without a caller.

    A call that fails again becomes a dead letter again. The worker's log shows the results of the others.
    """

    async def redrive(admin: Admin, queue: str, letter: str) -> None:
        call = await admin.dead_letters.redrive(queue, letter, limit=await admin.queue_limit(service), timeout=timeout)
        print_line(f"{letter} runs again as {call}")

    _of_each(service, letters, everything, yes, f"Run every dead letter of {service!r} again?", redrive)


@command("drop", into=dead_command)
def dead_drop(
    service: str, letters: tuple[str, ...], everything: Annotated[bool, option("Drop every dead letter of the service.", "--all")], yes: Yes
) -> None:
    """Delete dead letters for good."""

    async def drop(admin: Admin, queue: str, letter: str) -> None:
        await admin.dead_letters.drop(queue, letter)
        print_line(f"{letter} dropped")

    _of_each(service, letters, everything, yes, f"Delete every dead letter of {service!r}?", drop)


def _of_each(
    service: str, letters: tuple[str, ...], everything: bool, yes: bool, question: str, one: Callable[[Admin, str, str], Awaitable[None]]
) -> None:
    """Apply ``one`` to each letter, report failures and go on; ask before all of a service are meant, which must be known."""
    wrong_if(bool(letters) == everything, "give the ids of dead letters, or --all")

    async def found(admin: Admin) -> bool:
        if await admin.dead_letters.ids(await admin.queue(service)):
            return True
        await must_be_known(admin, service, _NO_LETTERS)
        return False

    if everything:
        if not with_admin(found):
            print_line(f"no dead letters of {service}", err=True)
            return
        ask_first(question, yes=yes)

    async def main(admin: Admin) -> int:
        queue, failed = await admin.queue(service), 0
        for letter in await admin.dead_letters.ids(queue) if everything else letters:
            try:
                await one(admin, queue, letter)
            except ToolbusError as error:
                Failure(str(error)).show()
                failed += 1
        return failed

    if failed := with_admin(main):
        fail(f"nothing was done to {failed} of the letters")


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


def _summary(letter: DeadLetter) -> dict[str, Any]:
    request = letter.request
    return {
        "id": letter.id,
        "service": letter.queue if request is None else request.service,
        "tool": "" if request is None else request.tool,
        "user": "" if request is None else request.user,
        "at": datetime.datetime.fromtimestamp(letter.at, datetime.UTC).isoformat(),
        "attempts": letter.attempts,
        "reason": letter.reason,
        "error": letter.error,
    }


# -- conversations -----------------------------------------------------------------------------------

_MOST_SHOWN = 200
Owner = Annotated[str, option("The conversation's user; each user has their own of one id.", default="")]


@group("conversations")
def conversations_command() -> None:
    """Look after the conversations that agents keep.

    They are those of `toolbus agent --conversation ID` and `Agent(conversation=…)`.

    A conversation is a list of records: questions, what the model said, and the results of calls. Each is kept before the next step, so
    that any process can go on after the last one. It goes a week after its last use (TOOLBUS_CONVERSATION_TTL).

    \b
    Examples:
      toolbus operate conversations list
      toolbus operate conversations show orders --user alice
      toolbus agent --conversation orders        finish what was left
      toolbus operate conversations rm orders
    """


@command("list", into=conversations_command)
async def conversations_list(
    admin: Admin, limit: Annotated[int, option("Most conversations.", type=click.IntRange(1, 10_000), default=50)], output: Output
) -> None:
    """List the conversations, those that were used latest first. HELD tells whether a process goes on with one now."""
    columns: Columns = {
        **titled("id", "user", "records"),
        "USED": lambda each: moment(each.used_at),
        "EXPIRES": lambda each: moment(each.expires_at),
        "HELD": lambda each: "yes" if each.held else "",
    }
    show(output, await admin.conversations.newest(limit), columns, empty="no conversations")


@command("show", into=conversations_command)
async def conversations_show(
    admin: Admin, id: str, user: Owner, full: Annotated[bool, option("Show all of each record, also of long ones.")], output: Output
) -> None:
    """Print the records of a conversation, the oldest first. A conversation that ends in no answer was left, or goes on."""
    found = await admin.conversations.read(user, id)
    fail_if(not found, _none(id, user))
    texts = ((each, _in_words(each.document)) for each in found)
    emit(
        output,
        [{"number": each.number, "at": each.at, "record": _raw(each)} for each in found],
        *(f"{each.number:>4}  {moment(each.at)}  {visible(text if full else one_line(text, _MOST_SHOWN))}" for each, text in texts),
    )


@command("rm", into=conversations_command)
def conversations_rm(
    id: str,
    user: Owner,
    force: Annotated[bool, option("Delete it although a process goes on with it; that process ends with an error.")],
    yes: Yes,
) -> None:
    """Delete a conversation for good. Calls that run for it go on."""
    ask_first(f"Delete the conversation {id!r}?", yes=yes)
    fail_if(not with_admin(lambda admin: admin.conversations.remove(user, id, force=force)), _none(id, user))
    print_line(f"{visible(id)} deleted")


def _none(id: str, user: str) -> str:
    whose = f" of the user {user!r}" if user else ""
    return f"there is no conversation {id!r}{whose}{namespace_of()}; `toolbus operate conversations list` shows them"


def _raw(stored: StoredRecord) -> msgspec.Raw:
    """Return the record, or a text in place of a document that is no JSON."""
    try:
        msgspec.json.decode(stored.document)
    except DECODE_ERRORS:
        return msgspec.Raw(msgspec.json.encode(stored.document.decode("utf-8", "replace")))
    return msgspec.Raw(stored.document)


def _in_words(document: bytes) -> str:
    """Return a record in words; one that nothing of toolbus wrote as it stands."""
    try:
        record = msgspec.json.decode(document, type=dict[str, Any])
        return f"{record['type']:<9} {_WORDS[record['type']](record)}"
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return f"unreadable {document.decode('utf-8', 'replace')}"


def _reply(record: dict[str, Any]) -> str:
    calls = ", ".join(f"{call['name']} {call['arguments']}" for call in record.get("calls", ()))
    return " ".join(filter(None, (_text(record["message"].get("content")), f"calls {calls}" if calls else "")))


def _result(record: dict[str, Any]) -> str:
    result = record["result"]
    error = result.get("error") or {}
    return f"{record['id']}: {error.get('message') or _text(result.get('output')) or _text(result.get('data'))}"


_WORDS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "question": lambda record: str(record["text"]),
    "reply": _reply,
    "result": _result,
    "results": lambda record: "; ".join(f"{each.get('tool_call_id', '')}: {_text(each.get('content'))}" for each in record["messages"]),
    "summary": lambda record: str(record["text"]),
    "end": lambda record: f"{record['reason']} after {record['turns']} requests to the model",
}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "" if content is None else str(content)


# -- documents of the registry ---------------------------------------------------------------------------


@group("items")
def items_command() -> None:
    """Look after static descriptors: tools and services that are declared by documents, beside those that workers publish.

    Groups, recorded tools, presets and pins are such documents, too, each under its key. `get --all` keeps all of them in a file.

    \b
    Examples:
      toolbus operate items list tool/
      toolbus operate items get tool/tell-haiku
      toolbus operate items get --all > items.json
    """


@command("put", into=items_command)
def items_put(
    key: str | None,
    file: Annotated[str | None, argument(type=click.Path(allow_dash=True))],
    everything: Annotated[
        bool, option("Store all documents of a file from `toolbus operate items get --all`: toolbus operate items put --all FILE.", "--all")
    ],
) -> None:
    """Store a static descriptor. KEY is tool/NAME or tool-service/ID; FILE may be standard input.

    KEY may also be recorded/ID or pending/ID (a tool that hosts run, and one that waits for approval), group/ID or
    backend-runtime/ID. An invalid document is refused, and the error names the field. Running agents see the change at once.

    \b
    Example:
      echo '{"type": "tool-service", "name": "tell-haiku", "description": "Tell a haiku",
             "service": "joke-service", "style": "limerick"}' | toolbus operate items put tool/tell-haiku
      toolbus operate items put --all items.json
    """
    if everything:
        wrong_if(file is not None, "--all takes one file, and no KEY: the file has the keys")
        _put_all(key or "-")
        return
    if key is None:
        raise click.UsageError("give a KEY, or --all")
    document = _read(key, file or "-")

    async def main(admin: Admin) -> list[str]:
        notes = _consequences(key, document, *await admin.snapshot())
        await admin.put(key, document)
        return notes

    notes = with_admin(main)
    print_line(f"stored {key}")
    for note in notes:
        print_line(note, err=True)


@command("get", JSON, into=items_command)
def items_get(
    key: str | None, everything: Annotated[bool, option("Print all documents, by key, for `toolbus operate items put --all`.", "--all")]
) -> None:
    """Print a static descriptor as JSON.

    With --all, every document by its key: also groups, recorded tools, presets and pins.

    \b
    Examples:
      toolbus operate items get tool/tell-haiku
      toolbus operate items get --all > items.json
    """
    wrong_if(everything == (key is not None), "give a KEY, or --all")
    if key is None:
        _print_all()
        return
    document = with_admin(lambda admin: admin.item(key))
    if document is None:
        where = "`toolbus operate items list` shows them, `toolbus see describe` shows self-published ones"
        fail(f"there is no static descriptor {key!r}; {where}")
    if flaw := key_flaw(key):
        fail(f"{key!r} can't be used: {flaw}")
    try:
        print_json(msgspec.Raw(document))
    except DECODE_ERRORS:
        print_line(document.decode("utf-8", "backslashreplace"))
        fail(f"{key!r} holds no JSON; `toolbus operate items put` replaces it, `toolbus operate items rm` deletes it")


@command("list", into=items_command)
async def items_list(admin: Admin, prefix: Annotated[str, argument(default="")], output: Output) -> None:
    """List static descriptors whose key starts with PREFIX.

    \b
    Example:
      toolbus operate items list tool/
    """
    # An empty document stands for a pin that is not in its table.
    found = [{"key": key, "bytes": len(document)} for key, document in (await admin.items(prefix)).items() if document]
    show(output, found, {"KEY": "key", "BYTES": "bytes"}, empty="no static descriptors")


@command("rm", into=items_command)
async def items_rm(
    admin: Admin, key: str, force: Annotated[bool, option("Free a self-published name, so that another owner may take it.")]
) -> None:
    """Delete a static descriptor. With --force, free the name of a self-published one.

    KEY may be any key that `toolbus doctor` names: also one that no document can have, or of a document in a wrong place.

    \b
    Examples:
      toolbus operate items rm tool/tell-haiku
      toolbus operate items rm --force tool-service/joke-service
    """
    removed = await admin.delete(key)
    misplaced = await admin.delete_misplaced(key)
    removed = removed or (force and not misplaced and await admin.transfer(key))
    if misplaced:
        print_line(f"removed {key}, which was misplaced: it stood where any worker may write")
        if not removed:
            return
    fail_if(not removed, f"there is no static descriptor {key!r}" + ("" if force else "; --force frees the name of a self-published one"))
    print_line(f"removed {key}")


def _consequences(key: str, document: bytes, services: Services, items: Items) -> list[str]:
    """Return what a person should know of a document that is about to be stored; fail when agents could not use it."""
    from toolbus.bus.client.tools.catalogue import catalogue_of, unusable

    before, after = catalogue_of((services, items)), catalogue_of((services, {**items, key: document}))
    known = {(tool.name, tool.service) for tool in unusable(before)}
    kind, _, name = key.partition("/")
    notes: list[str] = []
    for tool in unusable(after):
        fail_if(kind == "tool" and tool.name == name, f"not stored: {visible(tool.reason)}")
        if (tool.name, tool.service) not in known:
            notes.append(f"{visible(tool.name)} of {visible(tool.service)} can't be used any more: {visible(tool.reason)}")
    if kind == "tool" and name in after.tools and after.tools[name].service_descriptor is None:
        notes.append(f"no service {after.tools[name].service!r} is known yet; {name} can be called when a worker serves it")
    return notes


def _read(key: str, file: str) -> bytes:
    """Return the document of a key as it is stored; fail when it can't be used."""
    from toolbus.bus.schema.mend import mended_document
    from toolbus.platform.documents import PREFIXES, is_platform_key

    kind, _, name = key.partition("/")
    if not is_platform_key(key) and (kind not in {"tool", "tool-service"} or not name):
        raise click.UsageError(f"{key!r} is none of tool/NAME, tool-service/ID, {', '.join(f'{each}ID' for each in PREFIXES)}")
    value: object
    try:
        value = read_json(read_bytes(file), Any, "the record" if is_platform_key(key) else "the descriptor")
    except click.UsageError as error:
        fail(error.message)
    if kind == "tool" and isinstance(value, dict):
        value, changes = mended_document(value)
        for change in changes:
            print_line(f"parameters corrected: {change}", err=True)
    return _checked(key, value)


# -- all documents, as one JSON object by key ----------------------------------------------------------

_MOST_READ = 64 * 1024 * 1024
_MOST_REASON = 300


def _print_all() -> None:
    """Print every document that can be used; say which are left out, and fail then."""
    _, items = with_admin(lambda admin: admin.snapshot())
    found: dict[str, msgspec.Raw] = {}
    unusable: dict[str, str] = {}
    for key, document in sorted(items.items()):
        if isinstance(document, RefusedTool):
            unusable[key] = document.reason
        elif not document:
            # An empty document stands for a pin that is not in its table.
            unusable[key] = f"it is misplaced; `toolbus operate items rm {key}` removes it, `toolbus operate migrate` moves it"
        else:
            try:
                read_document(document, object)
                found[key] = msgspec.Raw(document)
            except ValueError:
                unusable[key] = "it holds no JSON; `toolbus operate items put` replaces it, `toolbus operate items rm` deletes it"
    print_json(found)
    for key, why in unusable.items():
        complain(f"left out: {visible(key)}: {one_line(visible(why), _MOST_REASON)}")
    fail_if(unusable, f"{len(unusable)} of {len(unusable) + len(found)} documents are left out")


def _put_all(place: str) -> None:
    """Store the documents of a file that ``get --all`` wrote; say what each is, leave out those that are wrong, and fail then."""
    try:
        given = read_json(read_bytes(place, _MOST_READ), dict[str, Any], "the documents")
    except click.UsageError as error:
        fail(error.message)
    wrong: dict[str, str] = {}
    documents: dict[str, bytes] = {}
    for key, value in given.items():
        try:
            documents[key] = _checked(key, value)
        except ToolbusError as error:
            wrong[key] = str(error)

    owner = settings_of().owner or "operator"

    async def main(admin: Admin) -> Counter[str]:
        counts: Counter[str] = Counter()
        there = await admin.items()
        for key, document in documents.items():
            if _same(there.get(key), document):
                counts["unchanged"] += 1
                continue
            try:
                # A preset is its publisher's, as that of `toolbus toolkit load`.
                await admin.put(key, document, owner if key.startswith("toolkit/") else "")
            except BrokerUnavailable:
                raise
            except ToolbusError as error:
                wrong[key] = str(error)
            else:
                counts["changed" if key in there else "new"] += 1
        return counts

    counts = with_admin(main) if documents else Counter()
    print_line(stored_of(counts))
    for key, why in wrong.items():
        complain(f"not stored: {visible(key)}: {one_line(visible(why), _MOST_REASON)}")
    fail_if(wrong, f"{len(wrong)} of {len(given)} documents were left out; mend them and put them again")


def _checked(key: str, value: object) -> bytes:
    """Return the document of an entry as it is stored; raises ToolbusError when it can't be used."""
    from toolbus.bus.values import pins
    from toolbus.bus.values.descriptors import parse_service, parse_tool
    from toolbus.platform.documents import encode, is_platform_key, read_written

    if key_flaw(key):
        raise DescriptorError("no document can have this key")
    kind, _, name = key.partition("/")
    if is_platform_key(key):
        return encode(read_written(key, value))
    document = msgspec.json.encode(value)
    if kind == "pin":
        pins.read(document)
        return document
    if kind == "toolkit":
        from toolbus.toolkit.presets import read_preset

        named = read_preset(document, key).name
    elif not isinstance(value, dict):
        raise DescriptorError("it is no JSON object")
    else:
        named = parse_tool(value, None).name if kind == "tool" else parse_service({"id": name, **value}).id
    if named != name:
        raise DescriptorError(f"it is of {named!r}, and its key is of {name!r}")
    return document


def _same(stored: bytes | None, document: bytes) -> bool:
    try:
        return stored is not None and bool(read_document(stored, object) == read_document(document, object))
    except ValueError:
        return False
