"""Shared by the adapters: run one call for an observation and a result, and count the turns of a conversation."""

from __future__ import annotations

from collections.abc import Iterator

from toolbus.adapters.home import run_at_home, wait_at_home
from toolbus.adapters.places import Asked, places_of
from toolbus.client.executor.executor import ToolExecutor
from toolbus.client.executor.observers import Observer
from toolbus.client.executor.order import Place
from toolbus.client.executor.parts import Observation
from toolbus.client.executor.toolcalls import ModelCall
from toolbus.envelope import new_id
from toolbus.results import ConfigurationError, ToolResult

MAX_TURNS = 12


async def outcome(
    executor: ToolExecutor,
    name: str,
    arguments: object,
    call: str = "",
    observer: Observer | None = None,
    place: Asked | Place | None = None,
) -> tuple[Observation, ToolResult]:
    """Run a call of a model and return its observation and its result; it may run in any event loop.

    Args:
        call: the model's id of the call; a new one when left out.
        observer: called with each event of the call.
        place: the turn that the call is a part of where the framework tells it, or a place that was taken before.

    Raises:
        ConfigurationError: an option of the executor is wrong, or the bus is not open.
    """
    wanted = ModelCall(call or new_id(), name, arguments)
    return await run_at_home(executor, lambda told: _run(executor, wanted, told, place), observer)


def outcome_now(
    executor: ToolExecutor,
    name: str,
    arguments: object,
    call: str = "",
    observer: Observer | None = None,
    place: Asked | Place | None = None,
) -> tuple[Observation, ToolResult]:
    """Do the same in a thread, which waits.

    Raises:
        ConfigurationError: the same, or this thread runs the event loop of the bus, or is waited for by it.
    """
    wanted = ModelCall(call or new_id(), name, arguments)
    return wait_at_home(executor, lambda told: _run(executor, wanted, told, place), observer)


def turns(most: int) -> Iterator[bool]:
    """Yield for each turn of a conversation whether it is the last one, in which the model may call no tool.

    Raises:
        ConfigurationError: ``most`` is less than 1.
    """
    if most < 1:
        raise ConfigurationError(f"max_turns must be at least 1, not {most}")
    return (turn == most for turn in range(1, most + 1))


async def _run(
    executor: ToolExecutor, wanted: ModelCall, observer: Observer | None, place: Asked | Place | None
) -> tuple[Observation, ToolResult]:
    if isinstance(place, Asked):
        place = places_of(executor).claim(executor, place)
    # Without an observer no person sees a question, so handlers may not ask one.
    async with executor.turn([wanted], streaming=observer is not None, places=() if place is None else (place,)) as turn:
        if observer is not None:
            async for event in turn:
                observer(event)
        (observation,) = await turn.observations()
        (result,) = await turn.results()
    return observation, result
