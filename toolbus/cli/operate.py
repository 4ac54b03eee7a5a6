"""``pause``, ``resume``, ``purge``: what an operator does to a service."""

from __future__ import annotations

import click

from toolbus.cli.common import fail, run, settings_of


@click.command("pause")
@click.argument("service")
@click.pass_context
def pause_command(ctx: click.Context, service: str) -> None:
    """Make a service's workers stop taking requests. What runs goes on, what comes waits in the queue."""
    from toolbus.broker.admin import Admin

    settings = settings_of(ctx)

    async def main() -> None:
        async with Admin(settings) as admin:
            if service not in {each.publication.service.id for each in await admin.services()}:
                fail(f"there is no service {service!r}; `toolbus services` lists them")
            await admin.pause(service)

    run(main())
    click.echo(f"paused {service}")


@click.command("resume")
@click.argument("service")
@click.pass_context
def resume_command(ctx: click.Context, service: str) -> None:
    """Let a paused service's workers take requests again."""
    from toolbus.broker.admin import Admin

    settings = settings_of(ctx)

    async def main() -> None:
        async with Admin(settings) as admin:
            await admin.resume(service)

    run(main())
    click.echo(f"resumed {service}")


@click.command("purge")
@click.argument("service")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def purge_command(ctx: click.Context, service: str, yes: bool) -> None:
    """Remove the requests that wait for a service. Their callers get a `cancelled` error; what runs goes on."""
    from toolbus.broker.admin import Admin

    settings = settings_of(ctx)
    if not yes:
        click.confirm(f"Remove every request that waits for {service!r}?", abort=True)

    async def main() -> int:
        async with Admin(settings) as admin:
            return await admin.purge(service)

    click.echo(f"purged {run(main())} requests of {service}")
