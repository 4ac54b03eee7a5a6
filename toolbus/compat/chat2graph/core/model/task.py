"""``ToolCallContext``: what a running tool knows of the job that it runs for."""

from __future__ import annotations

from dataclasses import dataclass

from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.provide import provide


@dataclass(frozen=True)
class ToolCallContext:
    """The job and the operator that a tool runs for; a worker fills in parameters of this type."""

    job_id: str
    operator_id: str


class _Current(ToolCallContext):
    """The context of whichever call runs: its session, or else its id, is the job; the tool's name is the operator."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> object:
        if name == "job_id":
            return invocation().session or invocation().id
        return invocation().tool if name == "operator_id" else super().__getattribute__(name)


provide(ToolCallContext, _Current())
