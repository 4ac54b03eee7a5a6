"""``tokens``: make, list and revoke the bearer tokens of gateways."""

from __future__ import annotations

import datetime
import os
import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import msgspec

from toolbus.operations.cli.command import Groups, Names, Output, argument, command, group, option
from toolbus.operations.cli.common import namespace_of, settings_of, with_admin
from toolbus.operations.cli.output import fail, moment, print_json, say, say_content, show

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.values.secrets import TokenRecord

_DAYS = {"h": 1 / 24, "d": 1.0, "w": 7.0}
_LONGEST = 36_500.0
File = Annotated[str | None, option("The file of tokens; without it they are kept on the server.", type=click.Path(dir_okay=False))]


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
def add_command(
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
    file: File,
    output: Output,
) -> None:
    """Make a token and print it, this once. Only its hash is kept.

    \b
    Example:
      toolbus secure tokens add ci --user acme --expires 90d
    """
    from toolbus.bus.values.results import ConfigurationError
    from toolbus.bus.values.secrets import Rate, TokenRecord, new_token

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
            None if expires is None else _end(expires, now),
        )
        # Names have bounds, which are checked when a record is read.
        msgspec.convert(msgspec.to_builtins(record), TokenRecord)
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from None
    except msgspec.ValidationError as error:
        raise click.UsageError(f"this can't be a token's: {error}") from None
    if not name:
        raise click.UsageError("a token needs a name, by which it is listed")
    if file is None:
        with_admin(lambda admin: _add(admin, record))
    else:
        records = _read(Path(file), missing=True)
        if any(each.name == name for each in records):
            fail(_named(name))
        _write(Path(file), [*records, record])
    if output == "json":
        print_json({"token": token, "id": ident, "name": name})
        return
    say(f"the token {name} ({ident}), which is shown this once:", err=True)
    say_content(token)


@command("list", into=tokens_command)
def list_command(file: File, output: Output) -> None:
    """List the tokens: whom each stands for and what it may do, and nothing from which it could be made."""
    found = with_admin(lambda admin: admin.tokens.all()) if file is None else _read(Path(file))
    now = time.time()
    show(
        output,
        found,
        {
            "ID": "id",
            "NAME": "name",
            "USER": "user",
            "GROUPS": lambda each: "all" if each.groups is None else ", ".join(each.groups),
            "TOOLS": lambda each: "all" if each.tools is None else ", ".join(each.tools),
            "MAY": lambda each: ", ".join(each.permissions),
            "RATE": lambda each: "" if each.rate is None else str(each.rate),
            "EXPIRES": lambda each: _expiry(each, now),
        },
        empty=f"no tokens{f' in {file}' if file else namespace_of()}; `toolbus secure tokens add NAME` makes one",
        document=[{name: value for name, value in msgspec.to_builtins(each).items() if name != "hash"} for each in found],
    )


def _expiry(record: TokenRecord, now: float) -> str:
    if record.expires is None:
        return "never"
    return moment(record.expires, "%Y-%m-%d %H:%M", unknown="far off") + (" (over)" if record.has_expired(now) else "")


@command("revoke", into=tokens_command)
def revoke_command(name: str, file: File) -> None:
    """Refuse a token from now on, by its id or its name. Calls that run go on."""
    if file is None:
        revoked = with_admin(lambda admin: _revoke(admin, name))
    else:
        records = _read(Path(file))
        revoked = [each.id for each in records if name in {each.id, each.name}]
        if revoked:
            _write(Path(file), [each for each in records if each.id not in revoked])
    if not revoked:
        fail(f"there is no token {name!r}{'' if file else namespace_of()}; `toolbus secure tokens list` shows them")
    say(f"revoked {name} ({', '.join(revoked)})")


async def _add(admin: Admin, record: TokenRecord) -> None:
    if any(each.name == record.name for each in await admin.tokens.all()):
        fail(_named(record.name))
    await admin.tokens.add(record)


async def _revoke(admin: Admin, name: str) -> list[str]:
    named = [each.id for each in await admin.tokens.all() if each.name == name]
    # An id is enough for a record that can't be read.
    return [ident for ident in dict.fromkeys([*named, name]) if await admin.tokens.revoke(ident)]


def _named(name: str) -> str:
    return f"there is a token {name!r} already; choose another name, or `toolbus secure tokens revoke` it first"


def _read(path: Path, *, missing: bool = False) -> list[TokenRecord]:
    from toolbus.edges.gateway.auth.credentials import read

    if missing and not path.exists():
        return []
    return sorted(read(path).values(), key=lambda each: (each.name, each.id))


def _write(path: Path, records: list[TokenRecord]) -> None:
    """Replace the file in one step, so that no gateway reads half of it."""
    from toolbus.bus.values.secrets import TokenFile

    document = msgspec.json.format(msgspec.json.encode(TokenFile(tuple(records))))
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        if path.exists():
            # The gateway may run as another user.
            Path(temporary).chmod(path.stat().st_mode & 0o777)
        with os.fdopen(handle, "wb") as file:
            file.write(document + b"\n")
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _end(text: str, now: float) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([hdw])", text)
    if found is not None and 0 < (days := int(found[1]) * _DAYS[found[2]]) <= _LONGEST:
        return round(now + days * 86_400)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise click.UsageError(
            f"--expires is a time from now such as 12h, 90d or 4w, or a date like 2030-01-31, not {text[:50]!r}"
        ) from None
    end = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    if end <= now:
        raise click.UsageError(f"--expires {text[:50]} is over already")
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
    from toolbus.bus.broker.access import ROLES, rights

    settings = settings_of()
    found = rights(roles, settings.namespace)
    if output == "acl":
        say(found.rules())
        return
    print_json(
        {
            "roles": {name: ROLES[name].about for name in roles},
            "namespace": settings.namespace,
            "rules": found.rules(),
            "commands": found.commands,
            "keys": {"read_write": found.given, "read": found.reads, "write": found.writes},
            "channels": found.channels,
            "alone": [{"command": command, "keys": patterns} for command, patterns in found.alone],
        }
    )
