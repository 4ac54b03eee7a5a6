"""A recorded tool that was approved once is seen by agents that see approved tools alone."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from tests.contract import Place
from tests.host.fakes import FakeRunner
from tests.host.hosting import recorded, revised, staged
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.platform.records import RecordedTool

pytestmark = pytest.mark.anyio

SCHEMA = {"properties": {"path": {"type": "string", "default": "a"}}, "required": ["path"]}


def full() -> RecordedTool:
    """A record with everything that its descriptor has."""
    made = recorded("stitch", effect="read", timeout=7.0)
    fields = {"name": "Stitcher", "category": "images", "group_ids": ("g", "a"), "backend_runtime": "local"}
    meta = msgspec.structs.replace(made.meta, **fields, input_schema=SCHEMA, output_schema={"type": "object"})
    return msgspec.structs.replace(made, meta=meta)


def is_seen(bus: ToolBus, record: RecordedTool) -> bool:
    """Return whether a bus sees this form of a tool."""
    found = bus.tools.get(record.tool_id)
    return found is not None and found.descriptor.extensions["revision"] == record.revision


@pytest.mark.parametrize("record", [recorded("plain"), recorded("blank", description=" "), full()], ids=lambda record: record.tool_id)
async def test_an_approved_record_needs_no_other_approval(place: Place, record: RecordedTool) -> None:
    """It is pinned as the host publishes it, and so is each revision that is approved; another change is withheld."""
    tool = record.tool_id
    async with staged(place) as on, on.host(FakeRunner()), place.bus(require_approval=True) as strict:
        for each in (record, revised(record)):
            await on.records.put(each, pending=True)
            await on.records.approve(tool, by="alice", reason="read it")
            await eventually(partial(is_seen, strict, each), timeout=20.0)
            [pin] = [found for found in await on.admin.pins.all() if found.name == tool]
            assert (pin.state, pin.by, pin.reason) == ("approved", "alice", "read it")
        await on.records.put(revised(revised(record)))
        await eventually(lambda: strict.tools.get(tool) is None, timeout=20.0)
