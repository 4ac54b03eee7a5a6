"""One wrong answer to each script and each command, while a canary calls: it costs a connection, and the next calls are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
import redis

from tests.broker.test_forms import CASES, WRONG
from tests.faults.canary import Canary, Sung
from tests.faults.liar import Liar
from tests.servers import eventually
from tests.tiers import some
from toolbus import Settings, ToolBus, ToolbusError, Worker
from toolbus.bus.broker.admin import Admin
from toolbus.bus.values.envelope import new_id

pytestmark = pytest.mark.anyio


# What a canary makes its processes ask, but for what its lease thread asks. `tests/broker/test_forms.py` has all.
REACHED = (
    "CLIENT", "DEL", "EXISTS", "HGET", "HMGET", "HSCAN", "INFO", "TIME", "XADD", "XRANGE", "XREAD", "XREADGROUP", "XREVRANGE",
    "XTRIM", "ZRANGE", "finish/finish", "finish/finish_each", "limits/count", "publish/cancel",
    "publish/listen", "publish/publish", "publish/share", "recover/mend", "recover/reap", "recover/rescue", "registry/overview",
    "registry/probe", "registry/unregister", "streams/append", "take/start",
)  # fmt: skip


class Stage:
    """A canary whose every connection goes through a liar, for what operators do as well."""

    def __init__(self, canary: Canary, liar: Liar) -> None:
        self.canary = canary
        self.liar = liar

    async def everything(self) -> None:
        """Call, and do what agents and operators do now and then; whoever is lied to may fail once."""
        for _ in range(2):
            await self.canary.sings()
            with suppress(ToolbusError):
                await self._agent()
            for operation in (
                Admin.services,
                Admin.statistics,
                Admin.recent,
                Admin.health,
                lambda admin: admin.purge("nobody"),
                lambda admin: admin.item("tool/x"),
            ):
                with suppress(ToolbusError):
                    async with Admin(self.canary.settings) as admin:
                        await operation(admin)

    async def _agent(self) -> None:
        async with ToolBus(settings=self.canary.settings) as bus:
            await bus.wait_for_tool("canary_echo")
            await bus.call("canary_echo", {"text": "x", "seconds": 5.0}, timeout=0.2)
            await bus.call("canary_echo", {"text": "x", "seconds": 5.0}, timeout=0.2, idempotency_key=new_id())
            await bus.tallies.spend("canary", 10, 1.0)
            await bus.tallies.use("canary", 10, 1.0)
            await bus.shared_confirmations.pending()


@pytest.fixture
async def stage(server: str, namespace: str, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Stage]:
    """A canary that sings, and a liar that says the truth until it is told what to say."""
    liar = Liar(urlsplit(server).port or 0)
    await liar.start()
    settings = Settings.load({}, url=f"redis://127.0.0.1:{liar.port}", namespace=namespace, lease=1.0, grace=2.0)
    async with Worker(Sung, settings=settings) as worker, ToolBus(settings=settings) as bus:
        await bus.wait_for_tool("canary_pay")
        canary = Canary(settings, worker, bus, caplog)
        # It waits in the event loop that the liar needs.
        canary.client.close()
        canary.client = redis.Redis.from_url(server)
        await canary.sings()
        yield Stage(canary, liar)
        canary.client.close()
    await liar.stop()


@pytest.mark.parametrize("name", some(["finish/finish", "publish/publish"], REACHED))
async def test_wrong_answers_cost_their_connection(stage: Stage, name: str) -> None:
    """After one wrong answer, and after two in a row, calls of every kind are answered, and nothing was left to a safety net."""
    wrong = [WRONG[case][0] for each, case in CASES if each == name]
    for lies in (wrong[:1], wrong[-2:]):
        stage.liar.lies[name] = deque(lies)
        await stage.everything()

        async def is_told() -> bool:
            # Some commands are asked only after more calls.
            await stage.canary.sings()
            return not stage.liar.lies[name]

        await eventually(is_told, timeout=15.0)
    assert stage.liar.told[name] == 3
    await stage.canary.is_well()
    stage.canary.is_quiet()


@pytest.mark.parametrize("name", some(["finish/finish"], ["finish/finish", "publish/publish", "XREADGROUP", "XREAD"]))
async def test_an_answer_too_many_is_noticed(stage: Stage, name: str) -> None:
    """All later ones would be taken for the answers to other commands."""
    stage.liar.lies[name] = deque([WRONG[case][0] + b":1\r\n" for each, case in CASES if each == name][:1])
    await stage.everything()
    assert stage.liar.told[name] == 1
    await stage.canary.is_well()
    stage.canary.is_quiet()
