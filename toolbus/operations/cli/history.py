"""``operate history``: keep the calls that end."""

from __future__ import annotations

import asyncio
from typing import Annotated

import click

from toolbus.bus.worker.process.lifeline import ended_by
from toolbus.operations.cli.command import HealthHost, HealthPort, ProcessOptions, Span, argument, command, option
from toolbus.operations.cli.common import serving_settings
from toolbus.operations.cli.worker import announced

STORE = "TOOLBUS_HISTORY_STORE"
"""The variable that names the place of the history, for who keeps it and who looks into it."""


@command("history")
def history_command(
    store: Annotated[str, argument(metavar="PLACE", envvar=STORE)],
    keep: Annotated[float, option("How long they are kept: a time such as 12h, 30d or 8w.", type=Span(), default=30 * 86_400.0)],
    size: Annotated[
        int, option("MiB that they may take; the oldest ones go first.", type=click.IntRange(1, 1_048_576), default=4_096, metavar="MIB")
    ],
    arguments: Annotated[bool, option("Keep arguments, too, where workers record them (TOOLBUS_RECENT=arguments).")],
    health_host: HealthHost,
    health_port: HealthPort,
) -> None:
    """Keep the calls that end, for `toolbus see calls --since`.

    PLACE is a file that ends in .db, .sqlite or .sqlite3 (a table of SQLite) or in .jsonl (JSON lines), `-` for JSON lines on standard
    output, or otlp for log records at the collector of OTEL_EXPORTER_OTLP_ENDPOINT. The last two keep nothing here.

    Workers tell of attempts where TOOLBUS_HISTORY is set: how many of them the server holds until they are kept, such as 10000. What is
    missing is counted, in the history and in the log (history.missing). With --health-port, /ready and toolbus_up say when nothing can be
    kept.

    \b
    Examples:
      toolbus operate history calls.db --keep 90d
      toolbus operate history - | vector --config calls.yaml
    """
    from toolbus.operations.history import Keeper, ProbedHistory, open_store

    settings = serving_settings("history")
    opened = open_store(store, size * 1_048_576)

    async def main() -> None:
        keeper = Keeper(settings, opened, kept=keep, arguments=arguments)
        async with announced(lambda: ProbedHistory(keeper), ProcessOptions(health_host, health_port)) as (serving, stopping):

            def stop() -> None:
                stopping()
                keeper.stop()

            with ended_by(stop, stop):
                await keeper.run(serving)

    try:
        asyncio.run(main())
    finally:
        opened.close()
