"""Read where recorded tools run."""

from __future__ import annotations

import msgspec

from toolbus import telemetry
from toolbus.broker.protocols import Routes
from toolbus.platform.records import ToolRoute

_routes = msgspec.json.Decoder(ToolRoute)


async def tool_routes(routes: Routes) -> list[ToolRoute]:
    """Return where each recorded tool runs, at every live host, by tool and host; ``bus.routes`` and ``admin.routes`` have them.

    What can't be read is left out, and told.

    Raises:
        BrokerError: the server could not be asked.
    """
    found: list[ToolRoute] = []
    for host, documents in (await routes.all()).items():
        for tool, document in documents.items():
            try:
                found.append(msgspec.structs.replace(_routes.decode(document), tool_id=tool, host=host))
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                telemetry.log.warning("value.unreadable", key=f"routes:{host} {tool}", error=str(error), advice="delete it")
    return sorted(found, key=lambda route: (route.tool_id, route.host))
