"""``HostRunners``: the kinds of sources of one host, each made when it is first used; code that nobody approved is not started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from toolbus import telemetry
from toolbus.backends.runner import CannotStart, Instance, Line, Runner
from toolbus.platform.digests import digest_of_folder
from toolbus.platform.lockfiles import check_locked
from toolbus.platform.records import RecordedTool, SourceType, ToolSource
from toolbus.results import ConfigurationError, ToolbusError
from toolbus.safe_text import described

Make = Callable[[SourceType], Awaitable[Runner]]
"""Makes the runner of a kind of source."""

_SHOWN = 12
_CLEANED_WITHIN = 15.0


class _OfKind:
    """A ``Runner`` that makes the proper one for its first start."""

    def __init__(self, kind: SourceType, make: Make, folders: Sequence[Path]) -> None:
        self._kind = kind
        self._make = make
        self._folders = folders
        self._made: Runner | None = None
        self._one = asyncio.Lock()

    async def start(self, tool: RecordedTool, source: ToolSource, line: Line) -> Instance:
        """Start an instance, unless its code is not what was approved."""
        source = found_in(source, self._folders)
        await check_code(tool, source)
        try:
            runner = await self.runner()
        except (ToolbusError, ImportError) as error:
            raise CannotStart(f"sources of the type {self._kind!r} can't be used here: {error}") from None
        return await runner.start(tool, source, line)

    async def runner(self) -> Runner:
        """Return the proper one."""
        async with self._one:
            if self._made is None:
                self._made = await self._make(self._kind)
            return self._made

    async def clean(self) -> list[str]:
        """End what dead hosts of this machine left."""
        return await (await self.runner()).clean()

    async def aclose(self) -> None:
        """Close what was made."""
        if self._made is not None:
            await self._made.aclose()


class HostRunners:
    """The runners of a host.

    Args:
        make: makes one.
        folders: where the relative folders of sources are looked for, the first one first.

    Attributes:
        by_kind: the runner of each kind of source.
    """

    def __init__(self, make: Make, folders: Sequence[Path] = ()) -> None:
        self._kinds = {kind: _OfKind(kind, make, folders) for kind in get_args(SourceType)}
        self.by_kind: Mapping[SourceType, Runner] = dict(self._kinds)

    async def clean(self) -> None:
        """End what dead hosts of this machine left; what can't be is told, and kept from nothing else."""
        for kind, runner in self._kinds.items():
            try:
                async with asyncio.timeout(_CLEANED_WITHIN):
                    lines = await runner.clean()
                for line in lines:
                    telemetry.log.warning("host.cleaned", kind=kind, left=line)
            except Exception as error:  # noqa: BLE001 - a machine without docker serves its other tools
                telemetry.log.info("host.not_cleaned", kind=kind, error=described(error))

    async def aclose(self) -> None:
        """Close all that were used."""
        for kind, runner in self._kinds.items():
            try:
                await runner.aclose()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                telemetry.log.warning("host.not_closed", kind=kind, error=described(error))


def found_in(source: ToolSource, folders: Sequence[Path]) -> ToolSource:
    """Return a source with the whole path of its folder, if that is relative and in one of these folders."""
    given = Path(source.host_dir)
    if not source.host_dir or given.is_absolute() or source.host_dir.startswith("~"):
        return source
    found = next((folder / given for folder in folders if (folder / given).is_dir()), None)
    return source if found is None else msgspec.structs.replace(source, host_dir=str(found.absolute()))


async def check_code(tool: RecordedTool, source: ToolSource) -> None:
    """Compare the code of a source with what was approved.

    Raises:
        CannotStart: it is another one, can't be read, or depends on code that can change.
    """
    if not tool.code or not source.host_dir:
        return
    try:
        found = await asyncio.to_thread(digest_of_folder, source.host_dir)
    except ConfigurationError as error:
        raise CannotStart(str(error), permanent=True) from None
    if found != tool.code:
        raise CannotStart(
            f"the code in {source.host_dir} is not what was approved (digest {found[:_SHOWN]}…, approved {tool.code[:_SHOWN]}…);"
            f" put the approved code back, or record and approve this one",
            permanent=True,
        )
    if source.type == "local":
        try:
            await asyncio.to_thread(check_locked, source.host_dir)
        except ConfigurationError as error:
            raise CannotStart(str(error)) from None
