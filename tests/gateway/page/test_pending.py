"""Recorded tools that wait for approval, on the page of pins."""

from __future__ import annotations

import httpx
import pytest

from tests.broker.users import Users
from tests.gateway.page.serving import Tokens, gateway
from tests.records.made import recorded
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.settings import Settings
from toolbus.edges.gateway.options import Principal
from toolbus.platform.documents import digest_of
from toolbus.platform.store import Records

pytestmark = pytest.mark.anyio

OPERATOR = Principal("olga", may=frozenset({"call", "observe", "operate"}))
WATCHER = Principal("wim", may=frozenset({"call", "observe"}))


async def test_a_pending_tool_is_approved_in_the_form_that_was_shown(server: str, namespace: str) -> None:
    """Not without a digest, not in another form, and by operators alone; one that is rejected leaves what is served."""
    settings = Settings(url=server, namespace=namespace)
    async with Admin(settings) as admin, ToolBus(settings=settings) as bus:
        records = Records(admin)
        await records.put(recorded())
        await records.put(recorded(revision=2, description="New."), pending=True)
        async with gateway(bus, Tokens(op=OPERATOR, watch=WATCHER)) as url, httpx.AsyncClient(base_url=url) as client:
            own = {"authorization": "Bearer op"}
            [shown] = (await client.get("/ui/pins", headers=own)).json()
            changes = ["rights: it runs with all rights of the host that serves it", "meta.description: New."]
            assert (shown["name"], shown["state"], shown["changes"]) == ("image_stitcher", "pending", changes)
            given = {"name": "image_stitcher", "pending": True, "digest": shown["digest"]}
            watcher = {**own, "authorization": "Bearer watch"}
            assert (await client.post("/ui/pins/approve", json=given, headers=watcher)).status_code == 403
            for wrong in ("", "0000"):
                assert (await client.post("/ui/pins/approve", json={**given, "digest": wrong}, headers=own)).status_code >= 400
            assert (await records.get("image_stitcher")) == recorded()
            done = await client.post("/ui/pins/approve", json=given, headers=own)
            assert (done.status_code, done.json()["state"]) == (200, "approved")
            assert (await records.get("image_stitcher")) == recorded(revision=2, description="New.")
            third = recorded(revision=3)
            await records.put(third, pending=True)
            done = await client.post("/ui/pins/reject", json={**given, "digest": digest_of(third)}, headers=own)
            assert done.status_code == 200
            assert (await records.all()).pending == {}
            assert (await records.get("image_stitcher")) == recorded(revision=2, description="New.")


async def test_a_gateway_without_the_role_of_approvers_approves_nothing(server: str, namespace: str) -> None:
    """The answer names the role, and what waits still waits."""
    users = Users(server, namespace)
    try:
        async with Admin(Settings(url=server, namespace=namespace)) as admin:
            await Records(admin).put(recorded(), pending=True)
            asked = {"name": "image_stitcher", "pending": True, "digest": digest_of(recorded())}
            for roles, status in ((("gateway",), 403), (("gateway", "approver"), 200)):
                async with (
                    ToolBus(settings=users.settings(*roles)) as bus,
                    gateway(bus, Tokens(op=OPERATOR)) as url,
                    httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer op"}) as client,
                ):
                    [shown] = (await client.get("/ui/pins")).json()
                    assert shown["state"] == "pending"
                    answer = await client.post("/ui/pins/approve", json=asked)
                    assert answer.status_code == status, answer.text
                    assert ("role approver" in answer.text) == (status == 403)
                    assert (status == 200) == bool((await Records(admin).all()).tools)
    finally:
        users.remove()
