"""Documents that hosts run, and decisions about tools: who may write them, and what is believed of them."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from tests.broker.users import Users
from tests.records.made import recorded
from tests.servers import eventually
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.values.results import BrokerError
from toolbus.platform.documents import digest_of, encode
from toolbus.platform.store import LiveRecords, Records

pytestmark = pytest.mark.anyio

_FORGED = encode(recorded("forged"))
_LOGGED = """
local before = redis.call('HGET', KEYS[2], 'token') or ''
redis.call('XADD', KEYS[1], '*', 'op', 'item', 'key', ARGV[1], 'doc', ARGV[2], 'token', 'forged', 'prev', before)
return redis.call('HSET', KEYS[2], 'token', 'forged')
"""


@tool(service="known", effect="read")
async def known() -> str:
    """Be known."""
    return "here"


def _client(settings: Settings) -> Any:
    return redis.Redis.from_url(settings.url)


async def test_what_a_worker_forges_is_recorded_nowhere(users: Users, namespace: str) -> None:
    """Neither a record among the static documents nor a change in the log makes hosts see a tool."""
    keys = Keys(namespace)
    worker = _client(users.settings("worker"))
    async with ToolBus(settings=users.settings("platform")) as host, Admin(users.settings("operator")) as admin:
        live = LiveRecords(host)
        worker.hset(keys.items, "recorded/forged", _FORGED)
        worker.eval(_LOGGED, 2, keys.log, keys.meta, "recorded/forged", _FORGED)
        # A later change is heard after the forged ones.
        await Records(admin).put(ToolGroup("later"))
        await eventually(lambda: "later" in live.snapshot().groups)
        assert live.snapshot().tools == {}
    async with ToolBus(settings=users.settings("platform")) as later:
        assert LiveRecords(later).snapshot().tools == {}
        [told] = later.tools.catalogue.refused()
        assert told.name == "recorded/forged"
        assert "`toolbus operate migrate` moves it" in told.reason


async def test_a_forged_change_takes_no_decision_back(users: Users, namespace: str) -> None:
    """A log entry that says that a pin is gone does not let a rejected tool be used."""
    keys = Keys(namespace)
    agent = users.settings("agent")
    async with Worker(known, settings=users.settings("worker")), Admin(users.settings("operator")) as admin, ToolBus(settings=agent) as bus:
        await bus.wait_for_tool("known")
        await admin.pins.reject("known")
        await eventually(lambda: bus.tools.get("known") is None)
        worker = _client(users.settings("worker"))
        worker.eval(_LOGGED, 2, keys.log, keys.meta, "pin/known", "")
        await Records(admin).put(ToolGroup("later"))
        await eventually(lambda: "later" in bus.tools.catalogue.groups)
        assert bus.tools.get("known") is None


async def test_the_platform_lets_tools_wait_and_an_approver_approves(users: Users, namespace: str) -> None:
    """A host and the coding agent can't record what was not approved, and see what was."""
    async with ToolBus(settings=users.settings("platform")) as agent:
        records = Records(agent)
        await records.put_after(recorded("made"), await records.all(), pending=True)
        live = LiveRecords(agent)
        await eventually(lambda: set(live.snapshot().pending) == {"made"})
        with pytest.raises(BrokerError, match=r"NOPERM|ACL failure"):
            await records.put(recorded("made"))
        with pytest.raises(BrokerError, match=r"NOPERM|ACL failure"):
            await records.approve("made")
        assert (set(live.snapshot().pending), set(live.snapshot().tools)) == ({"made"}, set())
        async with Admin(users.settings("gateway")) as gateway:
            with pytest.raises(BrokerError, match=r"NOPERM|ACL failure"):
                await Records(gateway).approve("made")
        async with Admin(users.settings("gateway", "approver")) as page:
            assert (await Records(page).approve("made", digest=digest_of(recorded("made")))).tool_id == "made"
            [pin] = [each for each in await page.pins.all() if each.name == "made"]
            assert pin.approved
        await eventually(lambda: (set(live.snapshot().pending), set(live.snapshot().tools)) == (set(), {"made"}))
    with _client(users.settings("operator")) as server:
        assert server.hexists(Keys(namespace).recorded, "recorded/made")


async def test_a_gateway_keeps_groups(users: Users) -> None:
    """The role of gateways stores and deletes groups, and nothing that hosts run or that people decide."""
    async with ToolBus(settings=users.settings("gateway")) as bus:
        await bus.put("group/g", b'{"name": "G"}')
        await eventually(lambda: "g" in bus.tools.catalogue.groups)
        assert await bus.delete("group/g")
        for key in ("pin/x", "recorded/x", "pending/x"):
            with pytest.raises(BrokerError, match=r"NOPERM|ACL failure"):
                await bus.put(key, b"{}")


async def test_documents_of_an_older_toolbus_are_moved_when_a_person_says_so(users: Users, namespace: str) -> None:
    """Until then nobody uses them; a newer one in its place stays, and an old pin withholds its tool."""
    keys = Keys(namespace)
    async with Worker(known, settings=users.settings("worker")), Admin(users.settings("operator")) as admin:
        old, new = encode(recorded("kept")), encode(recorded("kept", name="New"))
        await Records(admin).put(recorded("kept", name="New"))
        with _client(users.settings("worker")) as server:
            server.hset(keys.items, mapping={"recorded/kept": old, "recorded/lost": encode(recorded("lost")), "pin/known": b"{}"})
        async with ToolBus(settings=users.settings("agent")) as bus:
            assert bus.tools.get("known") is None
            assert set(await admin.misplaced()) == {"recorded/kept", "recorded/lost", "pin/known"}
            assert await admin.move(["recorded/kept", "recorded/lost", "pin/none"]) == {"recorded/kept": False, "recorded/lost": True}
            await eventually(lambda: "recorded/lost" in bus.tools.catalogue.documents.by_key)
            assert "recorded/lost" not in {each.name for each in bus.tools.catalogue.refused()}
            assert await admin.item("recorded/kept") == new
            await admin.pins.approve("known")
            await eventually(lambda: bus.tools.get("known") is not None)
            assert list(await admin.misplaced()) == ["pin/known"]
