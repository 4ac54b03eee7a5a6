"""A user whose rights on the server do not suffice: the log says once which server, user and right."""

from __future__ import annotations

import logging

import pytest
import redis

from tests.servers import eventually
from toolbus import Settings, Worker, tool
from toolbus.telemetry.lines import FIELDS

pytestmark = pytest.mark.anyio


@tool(service="guarded", effect="read")
async def guarded_echo(text: str) -> str:
    """Give a text back."""
    return text


async def test_a_right_that_is_taken_away_is_named(valkey_server: str, namespace: str, caplog: pytest.LogCaptureFixture) -> None:
    """Beats and commands that the server forbids are logged with the server, the user and the namespace, and seldom."""
    user = f"u-{namespace}"
    with redis.Redis.from_url(valkey_server) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "&*", "+@all")
        url = valkey_server.replace("redis://", f"redis://{user}:secret@")
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
