"""``pause``, ``resume``, ``purge``: operate a service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from toolbus.operations.cli.common import ask_first, fail, output_option, print_json, print_table, say, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin


@click.command("pause")
@click.argument("service")
@click.pass_context
def pause_command(ctx: click.Context, service: str) -> None:
    """Make a service's workers stop taking requests. Running calls go on; new ones wait in the queue."""

    async def main(admin: Admin) -> None:
        await _must_be_known(admin, service)
        await admin.pause(service)

    with_admin(ctx, main)
    say(f"paused {service}")


@click.command("resume")
@click.argument("service")
@click.pass_context
def resume_command(ctx: click.Context, service: str) -> None:
    """Let a paused service's workers take requests again."""

    async def main(admin: Admin) -> bool:
        lifted = await admin.resume(service)
        if not lifted:
            await _must_be_known(admin, service)
        return lifted

    say(f"resumed {service}" if with_admin(ctx, main) else f"{service} was not paused")


@click.command("purge")
@click.argument("service")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def purge_command(ctx: click.Context, service: str, yes: bool) -> None:
    """Remove the requests that wait for a service. Their callers get a `cancelled` error; running calls go on."""

    async def look(admin: Admin) -> None:
        # A service whose workers are gone may still have a queue.
        if not await admin.queued(service):
            await _must_be_known(admin, service)

    async def main(admin: Admin) -> int:
        return await admin.purge(service)

    with_admin(ctx, look)
    if not yes:
        ask_first(f"Remove every request that waits for {service!r}?")
    say(f"purged {with_admin(ctx, main)} requests of {service}")


async def _must_be_known(admin: Admin, service: str) -> None:
    if service not in {each.publication.service.id for each in await admin.services()}:
        fail(f"there is no service {service!r}; `toolbus services` lists them")


@click.command("workers")
@output_option
def workers_command(output: str) -> None:
    """List the installed tool services. Each is listed with the extras and settings that it needs.

    Serve one with `toolbus worker NAME`. Packages offer services through the entry-point group toolbus.workers.

    \b
    Example:
      toolbus workers
      toolbus worker calculator text
    """
    from toolbus.bus.worker.loading.installed import describe, installed_services

    found = [(service, describe(service)) for service in installed_services()]
    if output == "json":
        print_json(
            [
                {
                    "name": service.name,
                    "target": service.target,
                    "requirement": service.requirement,
                    "summary": described.summary,
                    "settings": described.settings,
                }
                for service, described in found
            ]
        )
        return
    rows = [(service.name, service.requirement, described.summary) for service, described in found]
    print_table(("NAME", "NEEDS", "DESCRIPTION"), rows, empty="no installed package offers services")
    settings = [(service.name, variable, meaning) for service, described in found for variable, meaning in described.settings.items()]
    if settings:
        say()
        print_table(("NAME", "SETTING", "MEANING"), settings, empty="")
