"""``workers``: list the tool services that are installed."""

from __future__ import annotations

import click

from toolbus.operations.cli.common import output_option
from toolbus.operations.cli.output import print_json, print_table, say


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
