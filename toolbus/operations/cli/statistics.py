"""``stats``: ask workers for their statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import Seconds, fail, namespace_of, output_option, with_admin
from toolbus.operations.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.statistics.asking import Statistics

_TOOL_COLUMNS = ("SERVICE", "TOOL", "CALLS", "FAILED", "CANCELLED", "RETAKEN", "REFUSED", "RUNNING", "P50", "P99", "LAST ERROR")
_WORKER_COLUMNS = ("WORKER", "HOST", "PID", "UP", "SLOTS", "CALLS", "FAILED", "CANCELLED", "RETAKEN", "VERSION", "SERVICES")


@click.command("stats")
@click.argument("service", required=False)
@click.option("--instance", is_flag=True, help="A row for each worker process instead of each tool.")
@click.option("--patience", type=Seconds(60), default=1.0, show_default=True, help="Seconds that workers have to answer.")
@output_option
@click.pass_context
def stats_command(ctx: click.Context, service: str | None, instance: bool, patience: float, output: str) -> None:
    """Ask the workers for their statistics. They count since they started: calls, failures, latencies.

    Those of SERVICE answer, or all. Whoever does not answer in time is named.

    \b
    Example:
      toolbus stats
      toolbus stats calculator --instance
    """

    async def main(admin: Admin) -> Statistics:
        if service and service not in {each.publication.service.id for each in await admin.services()}:
            fail(f"there is no service {service!r}; `toolbus services` lists them")
        return await admin.statistics(service or "", patience=patience)

    found = with_admin(ctx, main)
    if output == "json":
        print_json(_document(found, service))
    elif instance:
        print_table(_WORKER_COLUMNS, _worker_rows(found), empty=f"no workers{namespace_of(ctx)}")
    else:
        print_table(_TOOL_COLUMNS, _tool_rows(found, service), empty=f"no calls since the workers started{namespace_of(ctx)}")
    if found.silent and output != "json":
        total = len(found.answers) + len(found.silent)
        names = one_line(", ".join(map(visible, found.silent)), 300)
        say(f"{len(found.silent)} of {total} workers did not answer within {patience:g} s: {names}", fg="yellow", err=True)


def _document(found: Statistics, service: str | None) -> dict[str, Any]:
    import msgspec

    from toolbus.bus.broker.statistics.answers import BOUNDS

    answers = msgspec.to_builtins(list(found.answers.values()))
    for answer in answers:
        if service:
            answer["tools"] = [tool for tool in answer.get("tools", ()) if tool["service"] == service]
    silent = [{"instance": name, "services": services} for name, services in found.silent.items()]
    return {"bounds_ms": BOUNDS, "instances": answers, "silent": silent}


def _tool_rows(found: Statistics, service: str | None) -> list[tuple[object, ...]]:
    from toolbus.bus.watch.assembly import Activity, ToolViews
    from toolbus.bus.watch.tables import TABLES, milliseconds

    activity = Activity(0.0)
    activity.take_in(found.answers)
    last_error = next(column for column in TABLES["tools"].columns if column.title == "LAST ERROR")
    return [
        (
            view.service,
            view.name or "(any)",
            view.started,
            view.failures,
            view.cancelled,
            view.retaken,
            view.refused,
            view.running,
            milliseconds(view.p50_ms),
            milliseconds(view.p99_ms),
            last_error.text(view),
        )
        for view in ToolViews().make((), activity)
        if not service or view.service == service
    ]


def _worker_rows(found: Statistics) -> list[tuple[object, ...]]:
    from toolbus.bus.watch.assembly import Activity, instance_views
    from toolbus.bus.watch.tables import one_line, seconds

    activity = Activity(0.0)
    activity.take_in(found.answers)
    return [
        (
            view.id,
            view.host if view.answered else "(no answer)",
            view.pid or "",
            seconds(view.uptime) if view.answered else "",
            f"{view.running}/{view.slots}" if view.answered else "",
            view.calls,
            view.failures,
            view.cancelled,
            view.retaken,
            view.version,
            one_line(" ".join(view.services), 60),
        )
        for view in instance_views(found, activity)
    ]
