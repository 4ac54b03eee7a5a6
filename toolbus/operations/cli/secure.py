"""``secure``: which form of a tool may be used and which recorded tools run, tokens of gateways, and rights on the server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.bus.support.files import replace
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.values.secrets import Rate, TokenFile, TokenRecord, new_token
from toolbus.operations.cli.command import JSON, File, Groups, Names, Output, argument, command, date_of, digest, group, option, seconds_of
from toolbus.operations.cli.common import login_name, namespace_of, settings_of, with_admin
from toolbus.operations.cli.failing import ask_first, fail, fail_if, wrong_if
from toolbus.operations.cli.output import Columns, complain, emit, moment, print_content, print_json, print_line, show, titled, warn

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.registry.pins import PinnedTool
    from toolbus.platform.records import RecordedTool
    from toolbus.platform.review import Review

_MOST_VALUE = 300
_MOST_FILES = 100

Reason = Annotated[str, option("Why, for those who list the decisions.", default="")]
Digest = Annotated[
    str, digest("Approve only the form with this digest, or its first 16 digits or more, which `toolbus secure pins show` tells.")
]


@group("pins")
def pins_command() -> None:
    """Decide which form of a tool may be used.

    A tool that was approved is withheld from every agent when its description, its parameters or what it may do change, until it is
    approved again. A tool that was rejected is withheld in every form. With TOOLBUS_REQUIRE_APPROVAL=1 agents see approved tools alone.

    \b
    Examples:
      toolbus secure pins list
      toolbus secure pins show search
      toolbus secure approve search
      toolbus secure pins reject search --reason "asks for passwords"
    """


@command("list", into=pins_command)
async def list_command(
    admin: Admin,
    states: Annotated[tuple[str, ...], option("Only tools in this state, such as changed or unpinned (may be repeated).", "--state")],
    output: Output,
) -> None:
    """List the tools with the decision about each: approved, changed, rejected, unpinned, unreadable or gone.

    Recorded tools, and new revisions of them, that wait for approval are pending.
    """
    found = [msgspec.to_builtins(each) for each in await admin.pins.all() if not states or each.state in states]
    found += await _waiting(admin) if not states or "pending" in states else []
    columns: Columns = {
        "TOOL": "name",
        **titled("service", "state"),
        "DIGEST": lambda each: each.get("digest", "")[:16],
        "ABOUT": lambda each: ", ".join(each.get("changes", ())) or one_line(each.get("reason", ""), 60),
        "BY": "by",
        "AT": lambda each: moment(each["at"], "%Y-%m-%d %H:%M") if each.get("at") else "",
    }
    show(output, found, columns, empty=f"no tools and no decisions{namespace_of()}")


@command("show", JSON, into=pins_command)
async def show_command(admin: Admin, name: str) -> None:
    """Show a tool as it is now, with the decision about it and what has changed, as JSON; and what waits for approval."""
    from toolbus.bus.values.descriptors import tool_document

    waiting = await _review_of(admin, name)
    found = next((each for each in await admin.pins.all() if each.name == name), None)
    fail_if(found is None and waiting is None, _nothing(name))
    tool = (await admin.pins.offered()).get(name)
    more = {"unpinned": await _unpinned(admin, name), "pending": waiting}
    print_json({"pin": found, "tool": None if tool is None else tool_document(tool), **{key: each for key, each in more.items() if each}})


@command("approve", into=pins_command)
def approve_tools_command(
    names: tuple[str, ...],
    everything: Annotated[bool, option("Approve every tool that is offered now and was not rejected.", "--all")],
    yes: Annotated[bool, option("With --all: do not ask.")],
    digest: Digest,
    reason: Reason,
    output: Output,
) -> None:
    """Approve tools as they are now. Agents see it at once."""
    wrong_if(everything == bool(names), "name the tools, or give --all")
    wrong_if(digest and len(names) != 1, "--digest is of one tool")
    if everything:
        listed = with_admin(lambda admin: admin.pins.all())
        names = tuple(each.name for each in listed if each.digest and each.state not in {"approved", "rejected"})
        if names:
            ask_first(f"Approve {len(names)} tools: {one_line(visible(', '.join(names)), 500)}?", yes=yes)
    _approve(names, digest, reason, output)


@command("reject", into=pins_command)
async def reject_command(admin: Admin, name: str, reason: Reason) -> None:
    """Withhold a tool from every agent, in every form, until it is approved. Calls that run go on.

    Of a recorded tool that waits for approval, what waits is removed; what is served stays.
    """
    from toolbus.platform.store import Records

    if await Records(admin).remove(f"pending/{name}"):
        print_line(f"rejected what waited for approval as {visible(name)}; what is served stays")
        return
    await admin.pins.reject(name, by=login_name(), reason=reason)
    print_line(f"rejected {name}")


@command("rm", into=pins_command)
async def rm_command(admin: Admin, name: str) -> None:
    """Forget the decision about a tool, which is unpinned then."""
    fail_if(not await admin.pins.remove(name), _nothing(name))
    print_line(f"{name} is unpinned")


@command("approve")
def approve_command(
    name: str,
    yes: Annotated[bool, option("Do not ask before a recorded tool is approved.")],
    digest: Digest,
    reason: Reason,
    output: Output,
) -> None:
    """Approve a tool as it is now, so that agents may use this form of it.

    A recorded tool that waits for approval is shown first: what it changes, and the files of its code where they are on this
    machine. With --digest exactly that form is approved, and nothing is asked.

    \b
    Examples:
      toolbus secure pins show search
      toolbus secure approve search --digest 3f2a915c07d8e64b
    """
    review = with_admin(lambda admin: _review_of(admin, name))
    if review is not None:
        _approve_recorded(review, digest=digest, yes=yes, reason=reason, output=output)
    else:
        _approve((name,), digest, reason, output)


def _approve(names: tuple[str, ...], digest: str, reason: str, output: str) -> None:
    by = login_name()

    async def main(admin: Admin) -> tuple[list[PinnedTool], dict[str, str]]:
        approved = [await admin.pins.approve(name, by=by, reason=reason, digest=digest) for name in names]
        return approved, {name: warning for name in names if (warning := await _unpinned(admin, name))}

    found, warnings = with_admin(main)
    if not emit(output, found, *(f"approved {visible(each.name)} of {visible(each.service)} ({each.digest[:16]})" for each in found)):
        return
    for name, warning in warnings.items():
        warn(f"{visible(name)}: {visible(warning)}")
    if not found:
        print_line("every tool is approved or rejected", err=True)


def _nothing(name: str) -> str:
    return f"there is no tool {name!r} and no decision about it{namespace_of()}; `toolbus secure pins list` shows them"


# -- recorded tools that wait for approval -----------------------------------------------------------


async def _review_of(admin: Admin, name: str) -> Review | None:
    """Return the tool of this name that waits for approval, with the files of its code that are here; None when none waits."""
    from toolbus.platform.review import reviewed, with_files
    from toolbus.platform.store import Records

    found = await Records(admin).all()
    # Records that can't be read are no reason to treat it as a tool of a worker.
    wrong = next((each.reason for each in found.refused if each.key == f"pending/{name}"), "")
    fail_if(wrong, f"it waits for approval and can't be used: {visible(wrong)}; `toolbus secure pins reject` removes it")
    waiting = found.pending.get(name)
    return None if waiting is None else with_files(reviewed(waiting, found.tools.get(name)), waiting)


async def _waiting(admin: Admin) -> list[dict[str, Any]]:
    """Return the tools that wait for approval, as entries of ``pins list``."""
    from toolbus.platform.review import reviewed
    from toolbus.platform.store import Records

    found = await Records(admin).all()
    return [
        {
            "name": each.tool_id,
            "state": "pending",
            "service": each.tool_id,
            "digest": each.digest,
            "changes": ["new tool"] if each.is_new else [change.field for change in each.changes],
            "by": each.made_by,
        }
        for each in (reviewed(tool, found.tools.get(name)) for name, tool in found.pending.items())
    ]


async def _unpinned(admin: Admin, name: str) -> str:
    """Return a warning when the code of a recorded tool that is served is not part of what was approved; else an empty text."""
    from toolbus.platform.review import unpinned_code
    from toolbus.platform.store import Records

    tool = (await Records(admin).all()).tools.get(name)
    return "" if tool is None else unpinned_code(tool)


def _approve_recorded(review: Review, *, digest: str, yes: bool, reason: str, output: str) -> None:
    """Approve a tool by its digest, or after a person has seen it and says so."""
    if not digest:
        if output == "json" and not yes:
            print_json(review)
            fail(f"not approved; `toolbus secure approve {visible(review.tool_id)} --digest {review.digest}` approves this form")
        if output != "json":
            _print(review)
        ask_first(f"Approve {visible(review.tool_id)} ({review.digest[:16]})?", yes=yes)

    async def main(admin: Admin) -> RecordedTool:
        from toolbus.operations.cli.platform import sync_after
        from toolbus.platform.store import Records

        approved = await Records(admin).approve(review.tool_id, digest=digest or review.digest, by=login_name(), reason=reason)
        await sync_after(admin)
        return approved

    tool = with_admin(main)
    if not emit(output, {"tool_id": tool.tool_id, "state": "approved", "revision": tool.revision, "digest": review.digest}):
        return
    print_line(f"approved {visible(tool.tool_id)}, revision {tool.revision} ({review.digest[:16]}); hosts serve it from now on")
    print_line("its descriptor is pinned: a record that changes it without approval is withheld until it is approved")
    if digest and review.unpinned:
        # Nothing was shown before.
        warn(visible(review.unpinned))


def _print(review: Review) -> None:
    """Print a review for a person."""
    kind = "a new tool" if review.is_new else f"revision {review.revision} of a tool that is served"
    by = f", made by {visible(review.made_by)}" if review.made_by else ""
    print_line(f"{visible(review.tool_id)} waits for approval: {kind}{by}")
    print_line(f"digest {review.digest}")
    for change in review.changes:
        before = "" if change.before is None else f"{_value(change.before)} → "
        print_line(f"  {visible(change.field)}: {before}{'(gone)' if change.after is None else _value(change.after)}")
    if review.rights:
        print_line(visible(review.rights))
    if review.files:
        print_line(f"files of its code ({len(review.files)}):")
        for file in review.files[:_MOST_FILES]:
            print_line(f"  {visible(file.path)} ({file.bytes:,} bytes)")
        if len(review.files) > _MOST_FILES:
            print_line(f"  and {len(review.files) - _MOST_FILES} more")
    if review.unpinned:
        warn(visible(review.unpinned))
    if review.note:
        complain(visible(review.note))


def _value(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return visible(one_line(text, _MOST_VALUE))


# -- tokens, and rights on the server ------------------------------------------------------------------

_LONGEST = 36_500 * 86_400
InFile = Annotated[File | None, option("The file of tokens; without it they are kept on the server.")]


@group("tokens")
def tokens_command() -> None:
    """Look after the bearer tokens of gateways.

    Tokens are kept as hashes, on the server (every gateway of the namespace that is started with --shared-tokens accepts them) or in a
    file (toolbus serve --tokens FILE). A revoked token is refused everywhere within seconds.

    \b
    Examples:
      toolbus secure tokens add ci --user acme --group search --rate 100/minute --expires 90d
      toolbus secure tokens add ops --permission call --permission observe --permission operate
      toolbus secure tokens list
      toolbus secure tokens revoke ci
    """


@command("add", into=tokens_command)
def tokens_add(
    name: str,
    user: Annotated[str, option("The user, and so the tenant, of its calls.", default="")],
    groups: Groups,
    tools: Names,
    permissions: Annotated[
        tuple[Literal["call", "observe", "operate"], ...],
        option("A permission (may be repeated); call when none is given.", "--permission"),
    ],
    rate: Annotated[str | None, option("Most requests, such as 100/minute.")],
    expires: Annotated[str | None, option("When it ends: a time from now such as 12h, 90d or 4w, or a date; never when left out.")],
    file: InFile,
    output: Output,
) -> None:
    """Make a token and print it, this once. Only its hash is kept.

    \b
    Example:
      toolbus secure tokens add ci --user acme --expires 90d
    """
    token, ident, hashed = new_token()
    now = time.time()
    try:
        record = TokenRecord(
            ident,
            hashed,
            name,
            user,
            groups or None,
            tools or None,
            tuple(dict.fromkeys(permissions)) or ("call",),
            Rate.parse(rate) if rate else None,
            round(now, 3),
            None if expires is None else _expires(expires, now),
        )
        # Names have bounds, which are checked when a record is read.
        msgspec.convert(msgspec.to_builtins(record), TokenRecord)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except msgspec.ValidationError as error:
        raise click.UsageError(f"this can't be a token's: {error}") from None
    wrong_if(not name, "a token needs a name, by which it is listed")
    records = _tokens(file, missing=True)
    if any(each.name == name for each in records):
        fail(f"there is a token {name!r} already; choose another name, or `toolbus secure tokens revoke` it first")
    if file is None:
        with_admin(lambda admin: admin.tokens.add(record))
    else:
        _write_tokens(file, [*records, record])
    if output == "json":
        print_json({"token": token, "id": ident, "name": name})
        return
    print_line(f"the token {name} ({ident}), which is shown this once:", err=True)
    print_content(token)


@command("list", into=tokens_command)
def tokens_list(file: InFile, output: Output) -> None:
    """List the tokens: whom each stands for and what it may do, and nothing from which it could be made."""
    found = _tokens(file)
    now = time.time()
    columns: Columns = {
        **titled("id", "name", "user"),
        "GROUPS": lambda each: "all" if each.groups is None else ", ".join(each.groups),
        "TOOLS": lambda each: "all" if each.tools is None else ", ".join(each.tools),
        "MAY": lambda each: ", ".join(each.permissions),
        "RATE": lambda each: "" if each.rate is None else str(each.rate),
        "EXPIRES": lambda each: _expiry(each, now),
    }
    nothing = f"no tokens{f' in {file}' if file else namespace_of()}; `toolbus secure tokens add NAME` makes one"
    document = [{name: value for name, value in msgspec.to_builtins(each).items() if name != "hash"} for each in found]
    show(output, found, columns, empty=nothing, document=document)


def _expiry(record: TokenRecord, now: float) -> str:
    if record.expires is None:
        return "never"
    return moment(record.expires, "%Y-%m-%d %H:%M", unknown="far off") + (" (over)" if record.has_expired(now) else "")


@command("revoke", into=tokens_command)
def tokens_revoke(name: str, file: InFile) -> None:
    """Refuse a token from now on, by its id or its name. Calls that run go on."""
    if file is None:
        revoked = with_admin(lambda admin: _revoke(admin, name))
    else:
        records = _tokens(file)
        revoked = [each.id for each in records if name in {each.id, each.name}]
        if revoked:
            _write_tokens(file, [each for each in records if each.id not in revoked])
    fail_if(not revoked, f"there is no token {name!r}{'' if file else namespace_of()}; `toolbus secure tokens list` shows them")
    print_line(f"revoked {name} ({', '.join(revoked)})")


async def _revoke(admin: Admin, name: str) -> list[str]:
    named = [each.id for each in await admin.tokens.all() if each.name == name]
    # An id is enough for a record that can't be read.
    return [ident for ident in dict.fromkeys([*named, name]) if await admin.tokens.revoke(ident)]


def _tokens(file: Path | None, *, missing: bool = False) -> list[TokenRecord]:
    """Return the tokens of a file, or of the server; none of a file that is ``missing`` and may be."""
    if file is None:
        return with_admin(lambda admin: admin.tokens.all())
    from toolbus.edges.gateway.auth.credentials import read

    if missing and not file.exists():
        return []
    return sorted(read(file).values(), key=lambda each: (each.name, each.id))


def _write_tokens(path: Path, records: list[TokenRecord]) -> None:
    """Replace the file in one step, so that no gateway reads half of it."""
    document = msgspec.json.format(msgspec.json.encode(TokenFile(tuple(records))))
    path = path.resolve()
    # The gateway may run as another user.
    replace(path, document + b"\n", path.stat().st_mode & 0o777 if path.exists() else 0o600)


def _expires(text: str, now: float) -> float:
    seconds = seconds_of(text)
    if seconds is not None and 0 < seconds <= _LONGEST:
        return round(now + seconds)
    end = date_of(text, "--expires is a time from now such as 12h, 90d or 4w")
    wrong_if(end <= now, f"--expires {text[:50]} is over already")
    return end


_ROLES = ("agent", "worker", "nested", "platform", "approver", "messenger", "gateway", "operator", "monitor", "scaler")


@command("acl", no_args_is_help=True)
def acl_command(
    roles: Annotated[tuple[str, ...], argument(required=True, type=click.Choice(_ROLES), metavar="ROLE...")],
    output: Annotated[Literal["acl", "json"], option("Rules of the server, or JSON.", default="acl")],
) -> None:
    """Print the least rights on the server that a user with a ROLE needs, for ACL SETUSER or an ACL file.

    \b
    agent      calls tools, answers confirmations, keeps conversations
    worker     serves tools
    nested     calls other tools from handlers; give it to a worker's user, beside worker
    platform   hosts, coding agent, service agent
    approver   records tools and decides about them; beside gateway for its page, beside platform for --auto-approve
    messenger  the connector of `toolbus platform im`
    gateway    serves tools over HTTP and MCP, keeps groups, reads tokens, watches
    operator   looks after everything with this command
    monitor    watches, and changes nothing
    scaler     KEDA's scaler of workers: counts requests, and is no process of toolbus

    The rules are of one namespace, and keep the user's passwords. See docs/how-to/roles.md.

    \b
    Examples:
      redis-cli ACL SETUSER alice on '>secret' $(toolbus secure acl agent)
      toolbus secure acl worker nested --namespace prod
      echo "user worker on #$HASH $(toolbus secure acl worker)" >> users.acl
    """
    from toolbus.bus.broker.server.access import ROLES, rights

    settings = settings_of()
    found = rights(roles, settings.namespace)
    document = {
        "roles": {name: ROLES[name].about for name in roles},
        "namespace": settings.namespace,
        "rules": found.rules(),
        "commands": found.commands,
        "keys": {"read_write": found.given, "read": found.reads, "write": found.writes},
        "channels": found.channels,
        "alone": [{"command": command, "keys": patterns} for command, patterns in found.alone],
    }
    emit(output, document, found.rules())
