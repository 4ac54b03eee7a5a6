"""Tell what tasks of coding agents cost, by the tools that they made."""

from __future__ import annotations

import time

import msgspec

from toolbus.broker.protocols import Creation, CreationOverview

_DAY = 86_400
_MILLIONTHS = 1e6


class Cost(msgspec.Struct, frozen=True):
    """The tokens and the price of one task.

    Attributes:
        tool: that it made or repairs; empty when there is none.
        user: who asked for it; ``repair`` for a repair.
        price: by the models' prices of the deployment.
    """

    tool: str
    task: str
    user: str
    status: str
    prompt_tokens: int
    completion_tokens: int
    price: float


def costs_of(tasks: CreationOverview, days: int) -> list[Cost]:
    """Return the costs of the tasks of the last days (UTC, today is the first), by tool and age."""
    first = (time.time() // _DAY - days + 1) * _DAY
    chosen = [each for each in (*tasks.running, *tasks.queued, *tasks.recent) if max(each.ended, each.started, each.created) >= first]
    return [_cost(each) for each in sorted(chosen, key=lambda each: (tool_of(each), each.created, each.id))]


def tool_of(task: Creation) -> str:
    """Return the tool that a task made or repairs; empty when there is none."""
    if task.about or task.status != "done":
        return task.about
    try:
        found = msgspec.json.decode(task.result, type=dict[str, object])
    except msgspec.DecodeError:
        return ""
    tool = found.get("tool_id", "")
    return tool if isinstance(tool, str) else ""


def _cost(task: Creation) -> Cost:
    spent = task.spent
    price = spent.price / _MILLIONTHS
    return Cost(tool_of(task), task.id, task.by, task.status, spent.prompt_tokens, spent.completion_tokens, price)
