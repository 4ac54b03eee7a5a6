"""Operators act on the page: they answer, run again, drop and pause, if their token allows it."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.cli.shell import Shell
from tests.gateway.page.browser import Browser, Page
from tests.gateway.page.serving import Tokens, gateway
from tests.servers import eventually
from toolbus import ToolBus
from toolbus.bus.broker.admin import Admin
from toolbus.edges.gateway.options import Principal

pytestmark = pytest.mark.anyio

TOOLS = '''
import asyncio
import os
from pathlib import Path

from toolbus import invocation, tool


@tool(effect="once")
async def refund(order: int):
    """Refund an order, if a person allows it."""
    return "refunded" if await invocation().confirm(f"Refund order {order}?") else "kept"


@tool(effect="idempotent")
async def hold(word: str):
    """Hold a call until there is a file."""
    Path(f"took-{os.getpid()}").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    yield f"{word} is done"


@tool(effect="idempotent")
def poison():
    """End the worker, unless there is an antidote."""
    if not Path("antidote").exists():
        os._exit(9)
    Path("survived").touch()
    return "survived"
'''
OPERATOR = Principal("olga", may=frozenset({"call", "observe", "operate"}))


async def start(shell: Shell, bus: ToolBus, tool: str = "hold") -> None:
    """Start a worker with the tools above."""
    (shell.folder / "kitchen.py").write_text(TOOLS)
    shell.start("worker", "kitchen.py")
    await bus.wait_for_tool(tool, 30.0)


async def test_a_killed_worker_and_the_second_attempt_of_its_call(page: Page, bus: ToolBus, shell: Shell) -> None:
    """The page shows that a worker is gone, and its call with a lost and a second attempt, which succeeds."""
    await start(shell, bus)
    first = shell.started[0]
    calling = asyncio.create_task(bus.call("hold", {"word": "soup"}))
    took = await eventually(lambda: list(shell.folder.glob("took-*")), timeout=30.0)
    await page.run("location.hash = '#/services'")
    await page.wait("globalThis.toolbusPage.instances.size === 1 && [...globalThis.toolbusPage.instances.values()][0].running === 1")
    await start(shell, bus)
    await page.wait("globalThis.toolbusPage.instances.size === 2")
    first.send_signal(signal.SIGKILL)
    await page.sees("gone since")
    await eventually(lambda: len(list(shell.folder.glob("took-*"))) > len(took), timeout=30.0)
    (shell.folder / "go").touch()
    assert (await calling).meta.attempts == 2
    await page.run("location.hash = '#/calls'")
    await page.click("main tbody tr", "hold")
    await page.sees("Attempt 1 was lost with its worker")
    await page.sees("Attempt 2 succeeded")
    assert await page.run("document.querySelectorAll('.timeline .track .bar').length") >= 2


async def test_a_confirmation_is_answered(page: Page, bus: ToolBus, shell: Shell) -> None:
    """A request appears by itself with its question; allowing and denying it reach the caller, with the reason."""
    await start(shell, bus)
    allowed = asyncio.create_task(bus.call("refund", {"order": 17}))
    await page.run("location.hash = '#/waiting'")
    await page.sees("Refund order 17?")
    await page.click("button", "Allow")
    assert (await allowed).output == "refunded"
    await page.sees("Nobody waits for you")
    denied = asyncio.create_task(bus.call("refund", {"order": 18}))
    await page.sees("Refund order 18?")
    await page.click("main button", "Deny")
    await page.fill("Reason", "not on a Friday")
    await page.click("dialog button[type=submit]")
    error = (await denied).error
    assert error is not None
    assert error.type == "forbidden"
    assert "local" in error.message
    assert "not on a Friday" in error.message


async def test_a_dead_letter_is_run_again(page: Page, bus: ToolBus, shell: Shell) -> None:
    """A request that ended its workers is listed with its reason, and runs again when its cause is gone; another one is dropped."""
    shell.environment["TOOLBUS_MAX_DELIVERIES"] = "1"
    await start(shell, bus, "poison")
    for _ in range(2):
        worker = shell.started[-1]
        poisoned = asyncio.create_task(bus.call("poison"))
        await eventually(lambda worker=worker: worker.poll() is not None, timeout=30.0)
        await start(shell, bus, "poison")
        assert not (await poisoned).success
    await page.run("location.hash = '#/dead'")
    await page.wait("document.querySelectorAll('main tbody tr').length === 2")
    await page.click("main tbody button.link", "poison")
    await page.sees("ended its workers too often", "dialog")
    await page.click("dialog button", "Close")
    (shell.folder / "antidote").touch()
    await page.click("main tbody button", "Run again")
    await page.click("dialog button[type=submit]")
    await eventually((shell.folder / "survived").exists, timeout=30.0)
    await page.wait("document.querySelectorAll('main tbody tr').length === 1")
    await page.click("main tbody button", "Drop")
    await page.click("dialog button[type=submit]")
    await page.sees("No dead letters")


async def test_a_service_is_paused_and_goes_on(page: Page, bus: ToolBus, shell: Shell) -> None:
    """After Pause the workers take nothing and the page says so; Resume lifts it."""
    await start(shell, bus)
    await page.run("location.hash = '#/services/kitchen'")
    await page.click("main button", "Pause")
    await page.click("dialog button[type=submit]")
    await page.sees("paused", "main header")
    async with Admin(bus.settings) as admin:
        assert [each.paused for each in await admin.services()] == [True]
    await page.click("main button", "Resume")
    await page.sees("live", "main header")


async def test_a_token_is_asked_for_and_never_in_an_address(browser: Browser, bus: ToolBus, shell: Shell) -> None:
    """A gateway that wants a token gets it as a header of every request, also after a reload, and in no address."""
    await start(shell, bus)
    async with gateway(bus, Tokens(s3cret=OPERATOR)) as url, browser.page(f"{url}/") as page:
        await page.sees("This gateway wants a token", "dialog")
        await page.fill("Token", "wrong")
        await page.click("dialog button[type=submit]")
        await page.sees("did not accept", "dialog")
        await page.fill("Token", "s3cret")
        await page.click("dialog button[type=submit]")
        await page.sees("kitchen", "main table")
        await page.open(f"{url}/")
        await page.sees("kitchen", "main table")
        assert not [each for each in page.requests if "s3cret" in each]
        assert await page.run("sessionStorage.getItem('toolbus.token')") == "s3cret"
        assert await page.run("localStorage.getItem('toolbus.token')") is None


async def test_without_the_permission_there_is_nothing_to_press(browser: Browser, bus: ToolBus, shell: Shell) -> None:
    """A person who may only observe sees everything and no button that changes anything; one who may only call sees the tools alone."""
    await start(shell, bus)
    asking = asyncio.create_task(bus.call("refund", {"order": 17}))
    tokens = Tokens(look=Principal("otto", may=frozenset({"observe"})), call=Principal("carl", may=frozenset({"call"})))
    async with gateway(bus, tokens) as url:
        async with browser.page(f"{url}/#/waiting") as page:
            await page.fill("Token", "look")
            await page.click("dialog button[type=submit]")
            await page.sees("Refund order 17?")
            assert await page.run("document.querySelectorAll('main button').length") == 0
            await page.run("location.hash = '#/services/kitchen'")
            await page.sees("live", "main header")
            assert "Pause" not in await page.text("main")
        async with browser.page(f"{url}/#/waiting") as page:
            await page.fill("Token", "call")
            await page.click("dialog button[type=submit]")
            await page.sees("hold")
            assert (await page.text("#nav .links")).split() == ["Tools"]
            assert await page.run("globalThis.toolbusPage.services.size + globalThis.toolbusPage.confirmations.size") == 0
    asking.cancel()


async def test_a_tool_that_changed_is_approved_again(page: Page, bus: ToolBus, shell: Shell) -> None:
    """A tool is approved and rejected on the page; one that changes afterwards is marked, with what has changed."""
    await start(shell, bus)
    await page.run("location.hash = '#/pins'")
    await page.fill_search("hold")
    await page.click("main tbody button", "Approve")
    await page.click("dialog button[type=submit]")
    await page.sees("approved", "main tbody")
    shell.started[0].terminate()
    (shell.folder / "kitchen.py").write_text(TOOLS.replace("Hold a call until there is a file.", "Do as you like."))
    shell.start("worker", "kitchen.py")
    await page.sees("changed since it was approved", "main tbody")
    await page.sees("description", "main tbody")
    await page.click("main tbody button", "Reject")
    await page.click("dialog button[type=submit]")
    await page.sees("rejected", "main tbody")
    async with Admin(bus.settings) as admin:
        assert [pin.state for pin in await admin.pins.all() if pin.name == "hold"] == ["rejected"]
        await admin.pins.remove("hold")
