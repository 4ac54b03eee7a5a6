"""Records over an operator's connection and over a bus: they are read as they were stored, and changes at once are safe."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tests.records.made import recorded
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.values.results import ConfigurationError, DescriptorError
from toolbus.bus.values.settings import Settings
from toolbus.platform.documents import digest_of
from toolbus.platform.records import BackendRuntime, RecordedTool
from toolbus.platform.store import Conflict, LiveRecords, Records

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["admin", "bus"])
async def records(request: pytest.FixtureRequest, server: str, namespace: str) -> AsyncIterator[Records]:
    """Records over either."""
    settings = Settings(url=server, namespace=namespace)
    async with Admin(settings) if request.param == "admin" else ToolBus(settings=settings) as opened:
        yield Records(opened)


async def until(records: Records, condition: Any) -> None:
    """Wait until what was changed is read, which over a bus takes a moment."""
    async with asyncio.timeout(30):
        while not condition(await records.all()):  # noqa: ASYNC110 - Records tells of no changes
            await asyncio.sleep(0.01)


async def test_what_is_stored_is_read(records: Records) -> None:
    """Tools, pending ones, groups and runtimes, each by its id."""
    tool, group = recorded(), ToolGroup("media", "Media", tool_ids=("a", "b"), usage_order=("b",))
    for each in (tool, group, BackendRuntime(backend_runtime="gpu", name="GPUs")):
        await records.put(each)
    await records.put(recorded("newer"), pending=True)
    await until(records, lambda found: len(found.runtimes) == len(found.pending) == len(found.groups) == 1)
    found = await records.all()
    assert found.tools == {"image_stitcher": tool}
    assert list(found.pending) == ["newer"]
    assert found.groups == {"media": group}
    assert found.runtimes["gpu"].name == "GPUs"
    assert await records.get("image_stitcher") == tool
    assert await records.get("newer") is None
    assert await records.remove("recorded/image_stitcher")
    await until(records, lambda found: not found.tools)
    assert not await records.remove("recorded/image_stitcher")


async def test_a_wrong_record_is_not_stored(records: Records) -> None:
    """The error names the entry and the field."""
    with pytest.raises(DescriptorError, match=r"recorded/a b: .*\$\.meta\.tool_id"):
        await records.put(recorded("a b"))
    assert not (await records.all()).tools


async def test_a_pending_tool_takes_the_place_of_the_approved_one(records: Records) -> None:
    """At once, by the digest that was shown; the approved one stays until then."""
    old, new = recorded(), recorded(description="Puts images in a row.", revision=2)
    await records.put(old)
    await records.put(new, pending=True)
    await until(records, lambda found: found.pending and found.tools)
    with pytest.raises(ConfigurationError, match="look at it again"):
        await records.approve("image_stitcher", digest="0" * 16)
    for change in (records.approve, records.reject):
        with pytest.raises(ConfigurationError, match="15 digits of a digest are too few"):
            await change("image_stitcher", digest=digest_of(new)[:15])
    assert await records.get("image_stitcher") == old
    assert await records.approve("image_stitcher", digest=digest_of(new)[:16]) == new
    await until(records, lambda found: not found.pending)
    assert (await records.all()).tools == {"image_stitcher": new}
    with pytest.raises(ConfigurationError, match="no tool 'image_stitcher' waits"):
        await records.approve("image_stitcher")


async def test_a_rejected_tool_is_gone(records: Records) -> None:
    """The approved one stays."""
    await records.put(recorded())
    await records.put(recorded(revision=2), pending=True)
    await until(records, lambda found: found.pending and found.tools)
    await records.reject("image_stitcher")
    await until(records, lambda found: not found.pending)
    assert (await records.get("image_stitcher")) == recorded()


async def test_changes_at_once_lose_nothing(records: Records) -> None:
    """Each is made on the newest form."""
    await records.put(recorded())
    await until(records, lambda found: found.tools)

    def with_slug(slug: str) -> Any:
        def changed(tool: RecordedTool) -> RecordedTool:
            return msgspec.structs.replace(tool, meta=msgspec.structs.replace(tool.meta, tool_slug_ids=(*tool.meta.tool_slug_ids, slug)))

        return changed

    await asyncio.gather(*(records.revise("image_stitcher", with_slug(f"s{n}")) for n in range(4)))
    await until(records, lambda found: len(found.tools["image_stitcher"].meta.tool_slug_ids) == 4)


@pytest.mark.usefixtures("slow")
async def test_an_approval_is_of_what_is_there(server: str, namespace: str) -> None:
    """A revision that was put meanwhile, which the approver's bus has not heard of, is not deleted unseen."""
    settings = Settings(url=server, namespace=namespace)
    async with Admin(settings) as admin, ToolBus(settings=settings) as bus:
        await Records(admin).put(recorded(revision=2), pending=True)
        await until(Records(bus), lambda found: found.pending)
        digest = digest_of(recorded(revision=2))
        await Records(admin).put(recorded(revision=3), pending=True)
        with pytest.raises(ConfigurationError, match="look at it again"):
            await Records(bus).approve("image_stitcher", digest=digest)
        assert (await Records(admin).all()).pending["image_stitcher"].revision == 3


async def test_what_people_wrote_by_hand_is_refused_alone(server: str, namespace: str) -> None:
    """With its key and the reason; the others are read, and agents are not told that something is wrong with their tools."""
    settings = Settings(url=server, namespace=namespace)
    async with Admin(settings) as admin, ToolBus(settings=settings) as bus:
        await Records(admin).put(recorded())
        await admin.put("recorded/broken", b"{")
        await admin.put("recorded/other", msgspec.json.encode(recorded("third")))
        await admin.put("pending/typed", b'{"meta": {"tool_id": "typed"}, "sources": [{"type": "lokal"}]}')
        live = LiveRecords(bus)
        await until(Records(bus), lambda found: len(found.refused) == 3)
        found = live.snapshot()
        assert list(found.tools) == ["image_stitcher"]
        reasons = {each.key: each.reason for each in found.refused}
        assert "$.meta.tool_id" in reasons["recorded/other"]
        assert "$.sources[0].type" in reasons["pending/typed"]
        assert reasons["recorded/broken"].startswith("recorded/broken: ")
        assert bus.refused == []
        assert live.snapshot() is found


@pytest.mark.parametrize("pending", [True, False])
@pytest.mark.parametrize("others_pending", [True, False])
async def test_a_record_that_came_meanwhile_is_not_replaced(records: Records, *, pending: bool, others_pending: bool) -> None:
    """One that is stored after what was seen stays, whether it waits or is approved, and also where nobody has heard of it yet."""
    seen, other = await records.all(), recorded(made_by="create_other")
    await records.put(other, pending=others_pending)
    with pytest.raises(Conflict, match="somebody else"):
        await records.put_after(recorded(made_by="create_own"), seen, pending=pending)
    await until(records, lambda found: found.pending or found.tools)
    found = await records.all()
    assert (found.pending if others_pending else found.tools) == {"image_stitcher": other}
    assert not (found.tools if others_pending else found.pending)
    own = recorded(made_by="create_own")
    await records.put_after(own, found, pending=pending)
    await until(records, lambda found: (found.pending if pending else found.tools).get("image_stitcher") == own)
