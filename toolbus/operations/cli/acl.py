"""``acl``: the rights on the server that each role needs."""

from __future__ import annotations

import click

from toolbus.operations.cli.common import settings_of
from toolbus.operations.cli.output import print_json, say

_ROLES = ("agent", "worker", "nested", "platform", "approver", "messenger", "gateway", "operator", "monitor", "scaler")


@click.command("acl", no_args_is_help=True)
@click.argument("roles", nargs=-1, required=True, type=click.Choice(_ROLES), metavar="ROLE...")
@click.option("--output", type=click.Choice(("acl", "json")), default="acl", show_default=True, help="Rules of the server, or JSON.")
@click.pass_context
def acl_command(ctx: click.Context, roles: tuple[str, ...], output: str) -> None:
    """Print the least rights on the server that a user with a ROLE needs, for ACL SETUSER or an ACL file.

    \b
    agent      calls tools, answers confirmations, keeps conversations
    worker     serves tools
    nested     calls other tools from handlers; give it to a worker's user, beside worker
    platform   hosts, coding agent, service agent
    approver   records tools and decides about them; beside gateway for its page, beside platform for --auto-approve
    messenger  the connector of `toolbus im`
    gateway    serves tools over HTTP and MCP, keeps groups, reads tokens, watches
    operator   looks after everything with this command
    monitor    watches, and changes nothing
    scaler     KEDA's scaler of workers: counts requests, and is no process of toolbus

    The rules are of one namespace, and keep the user's passwords. See docs/how-to/roles.md.

    \b
    Examples:
      redis-cli ACL SETUSER alice on '>secret' $(toolbus acl agent)
      toolbus acl worker nested --namespace prod
      echo "user worker on #$HASH $(toolbus acl worker)" >> users.acl
    """
    from toolbus.bus.broker.access import ROLES, rights

    settings = settings_of(ctx)
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
