"""``stats``: ask workers for their statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import Seconds, fail, namespace_of, output_option, print_json, print_table, say, with_admin

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.broker.protocols import CreationOverview, Usage
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


@click.command("usage")
@click.option("--days", type=click.IntRange(1, 40), default=1, show_default=True, help="How many days (UTC); today is the first.")
@click.option("--user", "users", multiple=True, help="Only this user (may be repeated).")
@click.option("--tool", "tools", multiple=True, help="Only this tool (may be repeated).")
@click.option("--models", is_flag=True, help="Tokens and prices of coding agents' tasks, by tool and task, instead.")
@output_option
@click.pass_context
def usage_command(ctx: click.Context, days: int, users: tuple[str, ...], tools: tuple[str, ...], models: bool, output: str) -> None:
    """Show the usage of tools by user. It counts calls, errors, milliseconds, and bytes of the answers.

    Workers count it when they run with the middleware toolbus.bus.middleware.Metering. With --models it shows what coding agents spent on
    models; tasks are kept for 7 days.

    \b
    Examples:
      toolbus usage --days 7 --user alice
      toolbus usage --days 7 --models
    """
    if models:
        _show_models(ctx, days, users, tools, output)
        return

    async def main(admin: Admin) -> list[Usage]:
        return await admin.tallies.usage(days)

    found = [each for each in with_admin(ctx, main) if (not users or each.user in users) and (not tools or each.tool in tools)]
    if output == "json":
        print_json(msgspec.to_builtins(found))
        return
    rows = [(each.user, each.tool, each.calls, each.errors, each.ms, each.bytes) for each in found]
    print_table(
        ("USER", "TOOL", "CALLS", "ERRORS", "MS", "BYTES"),
        rows,
        empty=f"nothing was counted{namespace_of(ctx)}; workers count with the middleware Metering()",
    )


def _show_models(ctx: click.Context, days: int, users: tuple[str, ...], tools: tuple[str, ...], output: str) -> None:
    """Print what tasks of coding agents cost."""
    from toolbus.bus.broker.protocols.documents import MOST_ENDED
    from toolbus.platform.states import costs_of

    async def main(admin: Admin) -> CreationOverview:
        return await admin.creations.overview(MOST_ENDED)

    found = costs_of(with_admin(ctx, main), days)
    chosen = [each for each in found if (not users or each.user in users) and (not tools or each.tool in tools)]
    if output == "json":
        print_json(msgspec.to_builtins(chosen))
        return
    rows = [
        (each.tool, each.task, each.user, each.status, each.prompt_tokens, each.completion_tokens, f"{each.price:.4f}") for each in chosen
    ]
    if len(rows) > 1:
        total = [sum(getattr(each, name) for each in chosen) for name in ("prompt_tokens", "completion_tokens", "price")]
        rows.append(("all", "", "", "", total[0], total[1], f"{total[2]:.4f}"))
    print_table(
        ("TOOL", "TASK", "USER", "STATUS", "PROMPT", "COMPLETION", "PRICE"),
        rows,
        empty=f"no coding agent had a task{namespace_of(ctx)} in these days (UTC); --days 7 looks further back",
    )
