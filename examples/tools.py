"""A railway's desk: the two tools that the other examples call. Serve them with `toolbus dev tools.py`."""

import asyncio

from toolbus import Progress, ToolError, tool

TRAINS = {"R61": "08:25", "R601": "11:43", "R63": "16:03"}
FREE = {"R61": [4, 0, 12], "R601": [9, 21, 11], "R63": [0, 2, 7]}


@tool(effect="read")
async def find_trains(start: str, to: str) -> list[dict[str, str]]:
    """Find tomorrow's trains from one city to another.

    Args:
        start: where the journey begins
        to: where it ends
    """
    return [{"train": train, "departs": departs, "from": start, "to": to} for train, departs in TRAINS.items()]


@tool(effect="read")
async def count_free_seats(trains: list[str]):
    """Count the free seats of trains. It asks one carriage after the other, which takes a while."""
    if unknown := set(trains) - FREE.keys():
        raise ToolError(f"there is no train {', '.join(sorted(unknown))}; there are {', '.join(FREE)}", type="not_found")
    carriages = [(train, carriage) for train in trains for carriage in range(3)]
    seats = dict.fromkeys(trains, 0)
    for asked, (train, carriage) in enumerate(carriages, start=1):
        await asyncio.sleep(0.05)
        seats[train] += FREE[train][carriage]
        yield Progress(asked, len(carriages), f"asked carriage {carriage + 1} of {train}")
        if carriage == 2:
            yield f"{train}: {seats[train]} free seats. "
