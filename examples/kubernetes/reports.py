"""A service of your own: few calls, each of which takes long, so that no pod needs to run while there is nothing to do."""

import asyncio

from toolbus import Progress, ToolService, tool


class Reports(ToolService):
    """Writes reports; it stays callable while no worker runs, since one is started for it."""

    id = "reports"
    scale_to_zero = True

    @tool(effect="idempotent", timeout=600)
    async def write_report(self, topic: str, chapters: int = 5):
        """Write a report.

        Args:
            topic: what it is about
            chapters: how long it is to be
        """
        for done in range(1, chapters + 1):
            await asyncio.sleep(1)
            yield Progress(done, chapters, f"chapter {done}")
            yield f"{done}. About {topic}\n"
