"""Measure the gateway's page in a headless browser: the first paint with many tools, and frames while much changes."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from tests.gateway.page.browser import PROGRAM, Page, running
from tests.gateway.page.serving import gateway
from toolbus import Settings, ToolBus, ToolService, Worker
from toolbus.bus.broker.transport.embedded import EmbeddedServer

SERVICES, TOOLS = 200, 10
CHANGES = 50.0
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
FRAMES = """
new Promise((resolve) => {
  const gaps = [], tasks = [];
  const observer = new PerformanceObserver((list) => tasks.push(...list.getEntries().map((entry) => entry.duration)));
  observer.observe({ type: "longtask" });
  const began = performance.now(), changes = toolbusPage.changes, drawn = toolbusPage.frames;
  let last = began;
  const frame = (now) => {
    gaps.push(now - last);
    last = now;
    if (now - began < SECONDS) requestAnimationFrame(frame);
    else {
      observer.disconnect();
      gaps.sort((a, b) => a - b);
      resolve({
        frames: gaps.length, p50: gaps[Math.floor(gaps.length / 2)], p99: gaps[Math.floor(gaps.length * 0.99)],
        longest: gaps[gaps.length - 1], long_tasks: tasks.length, longest_task: Math.max(0, ...tasks),
        events: toolbusPage.changes - changes, drawn: toolbusPage.frames - drawn,
      });
    }
  };
  requestAnimationFrame(frame);
})
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("page", help="the gateway's page in a headless browser")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of frames (default: 10)")
    parser.set_defaults(function=run)


def run(options: argparse.Namespace) -> int:
    """Measure and print the figures as JSON."""
    if PROGRAM is None:
        print("there is no Chromium on PATH")
        return 1
    print(json.dumps(asyncio.run(_measure(options.seconds)), indent=2))
    return 0


async def _measure(seconds: float) -> dict[str, Any]:
    server = EmbeddedServer()
    server.start()
    try:
        settings = Settings(url=server.url, namespace="page")
        services = [_service(number) for number in range(SERVICES)]
        async with Worker(services, settings=settings), ToolBus(settings=settings) as bus, gateway(bus) as url:
            with running() as browser:
                paints = [await _paint(browser, url) for _ in range(5)]
                async with browser.page(f"{url}/") as page:
                    await page.wait("globalThis.toolbusPage?.services.size === 200")
                    found: dict[str, Any] = {"paints": paints}
                    changing = asyncio.create_task(_change(bus))
                    for view in ("", "services", "tools"):
                        await page.run(f"location.hash = '#/{view}'")
                        await asyncio.sleep(1.0)
                        found[view or "overview"] = await _frames(page, seconds)
                    changing.cancel()
                    return found
    finally:
        server.stop()


def _service(number: int) -> ToolService:
    name = f"service-{number:03}"
    text = f"Do one of the things that {name} does, with care, and say what came of it. " * 3
    topic = {"name": "topic", "type": "string", "description": "what it is about"}
    tools = [{"name": f"tool_{number:03}_{each}", "description": text, "arguments": [topic]} for each in range(TOOLS)]
    made = type("Many", (_Idle,), {"id": name, "tools": tools})
    service: ToolService = made()
    return service


class _Idle(ToolService):
    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return "done"


async def _paint(browser: Any, url: str) -> dict[str, float]:
    """Return the milliseconds until something was painted, and until every service and tool was known and drawn."""
    async with browser.page() as page:
        began = time.perf_counter()
        await page.send("Page.navigate", url=f"{url}/#/tools")
        await page.wait("globalThis.toolbusPage?.catalogue.size === 2000 && document.querySelectorAll('.tool-row').length > 0")
        whole = (time.perf_counter() - began) * 1000
        return {"first_paint_ms": round(await page.run(PAINTED)), "all_tools_ms": round(whole)}


async def _frames(page: Page, seconds: float) -> Any:
    return await page.run(FRAMES.replace("SECONDS", str(seconds * 1000)))


async def _change(bus: ToolBus) -> None:
    """Change a static tool of one of the services, so many times a second."""
    number = 0
    while True:
        number += 1
        name = f"static_{number % 100}"
        document = {"type": "tool-service", "name": name, "description": f"change {number}", "service": f"service-{number % SERVICES:03}"}
        await bus.put(f"tool/{name}", json.dumps(document).encode())
        await asyncio.sleep(1 / CHANGES)
