"""Every script that a call meets, refused by the server in every way: what was not written counts as not written, and nobody is misled."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contract import KeptLists, Place
from tests.faults.programs import place_of
from tests.servers import eventually
from tests.tiers import some
from toolbus import Retry, ToolBus, ToolResult, invocation, tool
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.scripts import Script
from toolbus.bus.broker.transport.command import Command
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.wire import Wire, pack
from toolbus.bus.values.envelope import FRAMES_REFUSED
from toolbus.bus.values.results import BrokerError

pytestmark = pytest.mark.anyio

REFUSALS = (
    "MISCONF Errors writing to the AOF file",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "NOREPLICAS Not enough good replicas to write.",
    "BUSY Valkey is busy running a script.",
    "READONLY You can't write against a read only replica.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
)
# Scripts that these calls do not meet: those of other parts, and those for workers that die, are full, or leave calls behind.
OTHER_PARTS = {"confirmations", "dead_letters", "held", "limits"}
NOT_MET = {
    *(each for each in scripts.ALL if each.name.partition("/")[0] in OTHER_PARTS),
    *(
        scripts.FINISH_EACH,
        scripts.RENEW,
        scripts.BEAT,
        scripts.RESCUE,
        scripts.HAND_BACK,
        scripts.HAND_OVER,
        scripts.TAKE,
    ),
    *(scripts.CHANGE, scripts.OVERVIEW, scripts.PAUSE, scripts.PROBE),
}
MET = set(scripts.ALL) - NOT_MET
# Without these no worker and no agent begins, which is told where it is started.
AT_START = {scripts.REGISTER, scripts.LISTEN, scripts.MEND}


class Refused:
    """Has the server refuse a script, a few times in each way."""

    def __init__(self, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = list(REFUSALS)
        self._meant: dict[bytes, Command] = {}
        send, put_off = Wire.send, Link._put_off

        def sent(wire: Wire, args: tuple[Any, ...], *rest: Any, **options: Any) -> None:
            send(wire, args, *rest, **options)
            if args[:2] == ("EVALSHA", script.sha) and self.left:
                meant = wire._unsent[-1]
                # The server itself refuses it, in its turn; the number tells it from others.
                words = "EVAL", "return redis.error_reply(ARGV[1])", 0, self.left.pop(0), len(self.left)
                packed = pack(words)
                self._meant[packed] = meant
                wire._unsent[-1] = meant._replace(packed=packed)

        monkeypatch.setattr(Wire, "send", sent)
        monkeypatch.setattr(Link, "_put_off", lambda link, command, error: put_off(link, self._meant.get(command.packed, command), error))


class Basket(KeptLists):
    """A state that is kept."""

    id = "basket"

    @tool(effect="idempotent")
    async def put(self, what: str) -> str:
        """Put something in."""
        if what not in invocation().state:
            invocation().state.append(what)
        return " ".join(invocation().state)


RUNS: Counter[str] = Counter()


@tool(service="work", effect="idempotent")
async def tell(name: str, parts: int = 20) -> AsyncIterator[str]:
    """Tell a long text, in parts."""
    RUNS[name] += 1
    for number in range(parts):
        yield f"{name}-{number} " * 500
        await asyncio.sleep(0.002)


@tool(service="work", effect="once")
async def pay(name: str) -> str:
    """Pay once."""
    RUNS[name] += 1
    return f"paid {name}"


@tool(service="work", effect="idempotent", retry=Retry(attempts=3, delay=0.05, jitter=0.0))
async def insist(name: str) -> str:
    """Succeed at the second attempt."""
    RUNS[name] += 1
    if invocation().attempt == 1:
        raise RuntimeError("not now")
    return f"done {name}"


@tool(service="work", effect="idempotent")
async def last(name: str) -> str:
    """Take long."""
    await asyncio.sleep(60)
    return name


def said(name: str, parts: int = 20) -> str:
    """The text that ``tell`` tells."""
    return "".join(f"{name}-{number} " * 500 for number in range(parts))


async def work(bus: ToolBus, mark: str) -> dict[str, tuple[ToolResult, str]]:
    """Make calls of every kind at once; returns each result, and the output that it must have if it is a success."""
    view = bus.bind(user="ann", session="s")
    made: dict[str, tuple[Any, str]] = {}
    for number in range(3):
        name = f"{mark}{number}"
        made[f"tell {name}"] = bus.call("tell", {"name": name}, timeout=20), said(name)
        made[f"pay p{name}"] = bus.call("pay", {"name": f"p{name}"}, timeout=20), f"paid p{name}"
        made[f"insist {name}"] = bus.call("insist", {"name": f"i{name}"}, timeout=20), f"done i{name}"
        for caller in "ab":
            key = {"idempotency_key": f"k{name}"}
            made[f"shared {caller} {name}"] = bus.call("tell", {"name": f"k{name}"}, timeout=20, **key), said(f"k{name}")
    results = dict(zip(made, await asyncio.gather(*(call for call, _ in made.values())), strict=True))
    long = asyncio.create_task(bus.call("last", {"name": mark}))
    for number in range(3):
        made[f"put {mark}{number}"] = None, ""
        results[f"put {mark}{number}"] = await view.call("put", {"what": f"{mark}{number}"}, timeout=20)
    long.cancel()
    await asyncio.wait([long])
    return {name: (results[name], wanted) for name, (_, wanted) in made.items()}


async def start(place: Place) -> None:
    """Start a worker and an agent, and stop them."""
    async with place.worker(tell), place.bus():
        pass


# Who can't cancel leaves work behind for which a drain waits.
@pytest.mark.parametrize(
    "script", some(MET - {scripts.CANCEL}, [each for each in scripts.ALL if each in MET]), ids=lambda script: script.name
)
async def test_a_refused_script_misleads_nobody(server: str, namespace: str, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has its whole answer, or ends as one that never began or can be made again; nothing runs twice or is half kept."""
    place = place_of(server, namespace)
    refused = Refused(script, monkeypatch)
    RUNS.clear()
    while script in AT_START and refused.left:
        with contextlib.suppress(BrokerError):
            await start(place)
    found: dict[str, tuple[ToolResult, str]] = {}
    tools = (tell, pay, insist, last, Basket())
    async with asyncio.timeout(60), place.worker(*tools) as worker, place.bus() as bus:
        for name in ("tell", "put"):
            await bus.wait_for_tool(name, timeout=20)
        found |= await work(bus, "a")
        async with place.worker(*tools):
            running = asyncio.create_task(work(bus, "b"))
            await eventually(lambda: RUNS["b0"])
            await worker.drain()
            found |= await running
    assert len(refused.left) < len(REFUSALS), "the calls do not meet it"
    results = {name: result for name, (result, _) in found.items()}
    errors = {name: result.error for name, result in results.items() if result.error is not None}
    # A state of which no snapshot was taken is lost with its worker, which is said.
    lost = {name for name, error in errors.items() if error.code == "session_lost" and script is scripts.SAVE}
    errors = {name: error for name, error in errors.items() if name not in lost}
    assert [str(error) for error in errors.values() if error.type not in {"unavailable", "overloaded"}] == []
    assert [str(error) for error in errors.values() if not (error.retryable or error.code == FRAMES_REFUSED)] == []
    texts = {name: wanted for name, (result, wanted) in found.items() if wanted and result.success}
    assert [name for name, wanted in texts.items() if results[name].output != wanted] == []
    assert {name: RUNS[name.split()[1]] for name in results if name.startswith("pay")} == {
        name: int(result.success) for name, result in results.items() if name.startswith("pay")
    }
    basket: list[str] = []
    for name, result in results.items():
        if name in lost:
            basket.clear()
        if name.startswith("put ") and result.success:
            basket.append(name.removeprefix("put "))
            assert result.output == " ".join(basket)
