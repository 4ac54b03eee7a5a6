"""Start one instance of a tool, from the first of its sources that can be started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple

from toolbus import telemetry
from toolbus.backends.runner import CannotStart, Instance, Line, Runner
from toolbus.display import one_line
from toolbus.host.pool.member import Timing
from toolbus.host.pool.starts import Starts
from toolbus.platform.records import RecordedTool, SourceType, ToolSource
from toolbus.safe_text import described

_MOST_REASON = 500


class Starter(NamedTuple):
    """Starts instances of a tool.

    Attributes:
        record: the tool.
        runners: the kinds of sources that this host can run.
        timing: how long a start may take.
        line: hears the program's output, and what becomes of it.
    """

    record: RecordedTool
    runners: Mapping[SourceType, Runner]
    timing: Timing
    line: Line

    async def start(self, starts: Starts) -> Instance | None:
        """Return an instance that is ready; None when no source can be started, which ``starts`` knows then."""
        flaws: list[str] = []
        permanent = True
        for index in starts.order():
            source = self.record.sources[index]
            place = f"source {index} ({source.type})"
            self.line(f"toolbus: starting {place}")
            begun = await self._begin(source)
            if not isinstance(begun, CannotStart):
                starts.started(index, one_line("; ".join(flaws), _MOST_REASON))
                self.line(f"toolbus: {place} is ready")
                return begun
            flaw, permanent = str(begun), permanent and begun.permanent
            flaws.append(flaw if len(self.record.sources) == 1 else f"{place}: {flaw}")
            self.line(f"toolbus: {place} could not be started: {flaw}")
            telemetry.log.warning("instance.not_started", tool=self.record.tool_id, source=index, kind=source.type, error=flaw)
        starts.not_started(one_line("; ".join(flaws), _MOST_REASON) or "no source of it may run at this host", permanent=permanent)
        return None

    async def _begin(self, source: ToolSource) -> Instance | CannotStart:
        """Return an instance of a source, or why there is none."""
        runner = self.runners.get(source.type)
        if runner is None:
            return CannotStart(f"this host can't run sources of the type {source.type!r}", permanent=True)
        within = source.ready_within + self.timing.start_within
        try:
            async with asyncio.timeout(within):
                return await runner.start(self.record, source, self.line)
        except TimeoutError:
            return CannotStart(f"it did not start within {within:g} s")
        except CannotStart as error:
            return CannotStart(one_line(str(error), _MOST_REASON), permanent=error.permanent)
        except Exception as error:  # noqa: BLE001 - one kind's bug must not end the supervision of the tool
            telemetry.log.exception("instance.start_bug", tool=self.record.tool_id, kind=source.type)
            return CannotStart(one_line(described(error), _MOST_REASON))
