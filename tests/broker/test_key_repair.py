"""The repair of keys of a wrong type: when it looks, and who hears of it."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.fakes import Bench
from toolbus.bus.broker.lease import recover as key_repair
from toolbus.bus.broker.lease.recover import KeyRepair
from toolbus.bus.broker.server import scripts
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


async def test_keys_are_repaired_when_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each request; owners hear of deleted keys alone, and a lost connection ends nothing."""
    monkeypatch.setattr(key_repair, "_PAUSE", 0.0)
    bench, repaired = Bench(), 0

    def count() -> None:
        nonlocal repaired
        repaired += 1

    async def renew() -> None:
        await bench.as_link.execute_script(scripts.LISTEN, ("replies",), (), repeatable=True)

    repair = KeyRepair(bench.as_link, lambda: [{"one": "hash", "two": "stream"}], count, renew)
    running = asyncio.ensure_future(repair.run())

    async def turns() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    await turns()
    assert bench.link.names == []
    for answer, heard in (([], 0), ([2, b"group"], 0), ([1, b"set"], 1), (BrokerUnavailable("gone"), 1), ([2, b"group", 1, b"set"], 2)):
        bench.link.answers["mend"] = answer
        asked = len(bench.link.names)
        repair.request()
        await turns()
        assert bench.link.names[asked:] == ["mend", "listen"], "a reply stream that was deleted is there again before anybody looks"
        assert repaired == heard
    running.cancel()
    assert bench.link.keys("mend")[0] == ("one", "two")
    assert bench.link.args("mend")[0] == ("hash", "stream")
    assert "key.wrong_type" in caplog.text
    assert "key.group_moved" in caplog.text
