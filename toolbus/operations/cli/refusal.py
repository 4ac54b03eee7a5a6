"""Say at a terminal which role a user lacks, when the server refuses a command."""

from __future__ import annotations

import asyncio

import click

from toolbus.bus.broker.access import is_forbidden, with_roles
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.common import settings_with_server

# Seconds to ask for the roles.
_PATIENCE = 5.0


def explained(ctx: click.Context, error: ToolbusError) -> str:
    """Return the message of an error, with the roles that the user has if the server refused it a right."""
    text = str(error)
    if not is_forbidden(error):
        return text
    try:
        settings = settings_with_server(ctx)
        roles = asyncio.run(_roles(settings))
    except (ToolbusError, TimeoutError):
        # The refusal is what counts.
        return text
    return text if roles is None else with_roles(text, roles, settings.namespace)


async def _roles(settings: Settings) -> list[str] | None:
    async with asyncio.timeout(_PATIENCE), Admin(settings) as admin:
        return await admin.roles()
