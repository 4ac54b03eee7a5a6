"""The page shows what happens while it is open."""

from __future__ import annotations

import signal

import pytest

from tests.cli.shell import Shell
from tests.gateway.page.browser import Browser, Page
from tests.gateway.page.serving import free_port, gateway
from tests.servers import eventually
from toolbus import ToolBus

pytestmark = pytest.mark.anyio

JOKES = '''
from toolbus import tool

@tool
def tell_joke(topic: str):
    """Tell a joke about a topic."""
    return f"a joke about {topic}"
'''


async def test_a_service_appears_and_goes_without_a_reload(page: Page, shell: Shell) -> None:
    """A page that taught how to start a worker shows its service, its tools, and that it has gone."""
    await page.run("globalThis.same = true")
    await page.sees("toolbus worker jokes.py")
    (shell.folder / "jokes.py").write_text(JOKES)
    worker = shell.start("worker", "jokes.py")
    await page.sees("jokes", "main table")
    await page.run("location.hash = '#/tools'")
    await page.sees("Tell a joke about a topic.")
    worker.send_signal(signal.SIGTERM)
    await page.run("location.hash = '#/services'")
    await page.sees("No services yet")
    assert await page.run("globalThis.same") is True


async def test_the_page_goes_on_when_the_gateway_is_back(browser: Browser, bus: ToolBus, shell: Shell) -> None:
    """While the gateway is away the page says so and keeps what it knew; afterwards it goes on by itself."""
    port = free_port()
    (shell.folder / "jokes.py").write_text(JOKES)
    shell.start("worker", "jokes.py")
    await bus.wait_for_tool("tell_joke", 30.0)
    async with browser.page() as page:
        async with gateway(bus, port=port) as url:
            await page.open(f"{url}/")
            await page.sees("jokes", "main table")
        await page.sees("The gateway is away", "#banner")
        assert "jokes" in await page.text("main")
        async with gateway(bus, port=port):
            await page.wait("globalThis.toolbusPage.connection === 'live'")
            await page.wait("document.getElementById('banner').hidden")
            await page.sees("jokes", "main table")


async def test_an_open_page_does_not_keep_a_gateway_from_stopping(browser: Browser, bus: ToolBus, shell: Shell) -> None:
    """`toolbus serve` ends on SIGTERM while a page is open, long before the time that answers have to finish."""
    port = free_port()
    serving = shell.start("serve", "--port", str(port), "--grace", "600")
    async with browser.page() as page:

        async def opened() -> bool:
            await page.open(f"http://127.0.0.1:{port}/")
            return await page.run("globalThis.toolbusPage?.connection === 'live'") is True

        await eventually(opened, timeout=60.0, interval=0.5)
        serving.send_signal(signal.SIGTERM)
        await eventually(lambda: serving.poll() is not None, timeout=60.0)
        assert serving.poll() == 0
        await page.sees("The gateway is away", "#banner")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
async def test_every_view_fits_its_window(browser: Browser, address: str, width: int, dark: bool) -> None:
    """No view of an empty namespace is wider than the window, on a phone and on a desk, in both themes; each one teaches something."""
    async with browser.page(f"{address}/", width=width, height=844, dark=dark) as page:
        await page.wait("globalThis.toolbusPage?.connection === 'live'")
        names = await page.run("[...document.querySelectorAll('#nav .links a')].map((link) => link.getAttribute('href'))")
        assert len(names) == 9
        for name in names:
            await page.run(f"location.hash = {name!r}")
            await page.wait("document.querySelector('main').innerText.length > 20")
            assert await page.run("document.documentElement.scrollWidth") <= width, name
        assert page.errors == []


async def test_the_keyboard_is_enough(page: Page, shell: Shell) -> None:
    """Letters go to views, a slash to the search, arrows through the list, and Escape back."""
    (shell.folder / "jokes.py").write_text(JOKES)
    shell.start("worker", "jokes.py")
    await page.sees("jokes", "main table")
    await page.press("g")
    await page.press("t")
    await page.sees("Choose a tool")
    await page.press("/")
    await page.wait("document.activeElement.matches('[data-search]')")
    await page.press("ArrowDown")
    await page.press("ArrowDown")
    await page.wait("location.hash === '#/tools/tell_joke'")
    await page.press("Escape")
    await page.wait("location.hash === '#/tools'")
    await page.press("?")
    await page.sees("next time range", "dialog")
