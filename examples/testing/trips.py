"""A tool that calls other tools, to be tested."""

from toolbus import Progress, ToolError, invocation, tool


@tool(effect="read")
async def plan_trip(start: str, to: str):
    """Find the train of a trip with the most free seats."""
    found = await invocation().call("find_trains", {"start": start, "to": to})
    if not found.data:
        raise ToolError(f"no train goes from {start} to {to}", type="not_found")
    yield Progress(1, 2, f"{len(found.data)} trains")
    yield f"{invocation().user} takes the {found.data[0]['departs']} to {to}"
