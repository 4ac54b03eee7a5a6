"""A user whose rights on the server do not suffice: the log says once which server, user and right."""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis

from tests.servers import eventually
from toolbus import Settings, ToolBus, ToolbusError, Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.telemetry.output import FIELDS
from toolbus.bus.watch.faults import faults_of, look

pytestmark = pytest.mark.anyio


@tool(service="guarded", effect="read")
async def guarded_echo(text: str) -> str:
    """Give a text back."""
    return text


async def test_a_right_that_is_taken_away_is_named(server: str, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    """Beats and commands that the server forbids are logged with the server, the user and the namespace, and seldom."""
    user = f"u-{namespace}"
    with redis.Redis.from_url(server) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all")
        url = server.replace("redis://", f"redis://{user}:secret@")
        settings = Settings.load({}, url=url, namespace=namespace, lease=1.0)

        def said(name: str) -> list[dict[str, object]]:
            events = [getattr(line, FIELDS) for line in caplog.records if hasattr(line, FIELDS)]
            return [event for event in events if event["event"] == name]

        with caplog.at_level(logging.WARNING, "toolbus"):
            async with Worker([guarded_echo], settings=settings):
                client.execute_command("ACL", "SETUSER", user, "-evalsha", "-eval")
                await eventually(lambda: said("lease.beat_failed") and said("server.no_permission"), timeout=20.0)
                client.execute_command("ACL", "SETUSER", user, "+evalsha", "+eval")
        beat, forbidden = said("lease.beat_failed")[0], said("server.no_permission")
        client.execute_command("ACL", "DELUSER", user)
    assert user in str(beat["server"])
    assert "secret" not in str(beat["server"])
    assert beat["namespace"] == namespace
    assert "evalsha" in str(beat["error"])
    assert user in str(forbidden[0]["server"])
    assert len(forbidden) == len({str(each["error"]) for each in forbidden}), "each is said once"


@pytest.mark.usefixtures("slow")
async def test_a_worker_that_may_take_nothing_leaves(server: str, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named while it is there, and then ends with the server's reason: its lease would keep its service listed, and callers wait."""
    monkeypatch.setattr("toolbus.bus.broker.transport.opening._SECONDS", 5.0)
    user = f"u-{namespace}"
    with redis.Redis.from_url(server) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all")
        settings = Settings.load({}, url=server, namespace=namespace, lease=0.5)
        url = server.replace("redis://", f"redis://{user}:secret@")
        worker = Worker([guarded_echo], settings=Settings.load({}, url=url, namespace=namespace, lease=0.5))
        async with ToolBus(settings=settings) as bus:
            running = asyncio.ensure_future(worker.run())
            try:
                await bus.wait_for_tool("guarded_echo", timeout=20.0)
                client.execute_command("ACL", "SETUSER", user, "-xreadgroup")

                async def named() -> bool:
                    async with Admin(settings) as admin:
                        found = faults_of(await look(admin, settings, ask=True, roles=None))
                    return any(
                        each.check == "worker" and "can take no requests: " in each.found and "NOPERM" in each.found for each in found
                    )

                await eventually(named, timeout=20.0)
                with pytest.raises(ToolbusError, match=r"no requests could be taken for \d+ s: NOPERM"):
                    async with asyncio.timeout(30.0):
                        await running
                result = await bus.call("guarded_echo", {"text": "no"}, timeout=5.0)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                client.execute_command("ACL", "DELUSER", user)
    assert result.error is not None
    assert result.error.type == "unavailable"
