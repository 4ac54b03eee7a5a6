"""``platform cancel``: end a task of the coding agent, whoever submitted it."""

from __future__ import annotations

import click

from toolbus.bus.support.display import visible
from toolbus.operations.cli.common import fail, namespace_of, with_admin
from toolbus.operations.cli.output import say


@click.command("cancel")
@click.argument("task")
@click.pass_context
def cancel_command(ctx: click.Context, task: str) -> None:
    """End TASK, a task of the coding agent: one that waits at once, one that runs within a moment.

    Users end their own tasks with the tool cancel_task; this command is for operators.

    \b
    Example:
      toolbus platform cancel create_1a2b3c4d
    """
    status = with_admin(ctx, lambda admin: admin.creations.cancel(task))
    if status is None:
        fail(f"there is no task {task!r}{namespace_of(ctx)}; `toolbus platform status` shows the latest")
    words = {"running": "is told to end", "cancelled": "is cancelled"}
    say(f"{visible(task)} {words.get(status, f'has ended before: it is {status}')}")
