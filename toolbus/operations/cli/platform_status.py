"""``platform status``: what runs, what is made, and who chats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from toolbus.bus.support.display import one_line, visible
from toolbus.operations.cli.common import namespace_of, output_option, with_admin
from toolbus.operations.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import Admin
    from toolbus.platform.states import ToolState

_COLUMNS = ("TOOL", "STATE", "FOR", "HOST", "SOURCE", "PID", "PORT", "INSTANCES", "RESTARTS", "ERROR")


@click.command("status")
@click.option("--tools", "tools_only", is_flag=True, help="The state of each recorded tool, also of those that are stopped.")
@output_option
@click.pass_context
def status_command(ctx: click.Context, tools_only: bool, output: str) -> None:
    """Show which recorded tools run and where, the tasks of the coding agent, and the chats of the service agent.

    As JSON, --tools lists the states of tools; without it, everything is counted.
    """
    if output == "json" and not tools_only:
        print_json(with_admin(ctx, _status))
        return
    states, now = with_admin(ctx, _states)
    if output == "json":
        print_json(list(states.values()))
        return
    shown = [each for each in states.values() if tools_only or each.state != "stopped"]
    empty = f"no tools are recorded{namespace_of(ctx)}" if not states else "all tools are stopped"
    print_table(_COLUMNS, [_row(each, now) for each in shown], empty=empty)
    if not tools_only:
        _summary(with_admin(ctx, _status))


async def _states(admin: Admin) -> tuple[dict[str, ToolState], float]:
    from toolbus.platform.states import states_of
    from toolbus.platform.store import Records

    return await states_of(admin, (await Records(admin).all()).tools), await admin.now()


async def _status(admin: Admin) -> dict[str, Any]:
    from toolbus.platform.states import get_system_status
    from toolbus.platform.store import Records

    return await get_system_status(admin, await Records(admin).all())


def _row(state: ToolState, now: float) -> tuple[object, ...]:
    since = f"{max(0.0, now - state.since):.0f} s" if state.since else ""
    place = (state.host, state.source, state.pid or "", state.port or "")
    return (state.tool_id, state.state, since, *place, state.instances, state.restarts, one_line(state.last_error, 60))


def _summary(status: dict[str, Any]) -> None:
    tools, coding, service = status["tools"], status["coding_agent"], status["service_agent"]
    say(f"tools: {tools['total']} recorded, {tools['active']} active")
    say(f"coding agent: {coding['running_count']} tasks run, {coding['queued_count']} wait")
    for task in coding["recent_tasks"]:
        say(f"  {visible(task['task_id'])}  {task['status']}  {visible(one_line(task['task_spec'], 80))}")
    messenger = "connected" if service["im_connected"] else "not connected"
    say(f"service agent: {service['total_windows']} chats; the messenger is {messenger}")
