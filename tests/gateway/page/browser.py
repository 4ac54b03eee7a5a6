"""A headless Chromium, spoken to over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.servers import eventually, eventually_sync, put_down

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next((found for name in NAMES if (found := shutil.which(name))), None)
"""Path of the browser, or None where there is none."""

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--mute-audio", "--hide-scrollbars",
    "--force-color-profile=srgb", "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip
_WITHIN = 30.0


class ScriptError(Exception):
    """A script raised in the page."""


class Page:
    """One tab. ``errors`` has what its console, its scripts and its content security policy complained of;
    ``requests`` and ``bodies`` what it asked for.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.bodies: list[str] = []

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._ids)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        answer = await self._answers[number]
        if "error" in answer:
            raise ScriptError(f"{method}: {answer['error']['message']}")
        return answer.get("result", {})

    async def open(self, url: str) -> None:
        """Go to an address and wait until it has loaded."""
        await self.send("Page.navigate", url=url)
        await self.wait("document.readyState === 'complete'")

    async def run(self, script: str) -> Any:
        """Return the value of an expression, awaited if it is a promise."""
        found = await self.send(
            "Runtime.evaluate",
            expression=script,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        if "exceptionDetails" in found:
            raise ScriptError(found["exceptionDetails"].get("exception", {}).get("description", str(found)))
        return found["result"].get("value")

    async def wait(self, script: str, timeout: float = _WITHIN) -> Any:
        """Wait until an expression is true and return its value."""

        async def value() -> Any:
            # While a page is being left there is nothing to ask.
            with contextlib.suppress(ScriptError):
                return await self.run(script)
            return None

        return await eventually(value, timeout=timeout, interval=0.05)

    async def text(self, selector: str = "main") -> str:
        """Return the visible text of an element; empty when there is none."""
        return str(await self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    async def sees(self, text: str, selector: str = "main", timeout: float = _WITHIN) -> None:
        """Wait until an element shows a text."""
        await self.wait(f"(document.querySelector({json.dumps(selector)})?.innerText ?? '').includes({json.dumps(text)})", timeout)

    async def click(self, selector: str, text: str = "") -> None:
        """Click the first element of a selector that shows a text, as soon as there is one."""
        found = (
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".find((each) => each.checkVisibility() && each.innerText.includes({json.dumps(text)}))"
        )
        await self.wait(f"Boolean({found})")
        await self.run(f"{found}.click()")

    async def fill(self, label: str, value: str) -> None:
        """Fill in the field of a label."""
        found = f"[...document.querySelectorAll('label')].find((each) => each.innerText.includes({json.dumps(label)}))?.control"
        await self.wait(f"Boolean({found})")
        change = f"field.value = {json.dumps(value)}; field.dispatchEvent(new Event('input', {{ bubbles: true }}))"
        await self.run(f"{{ const field = {found}; {change}; 0 }}")

    async def fill_search(self, value: str) -> None:
        """Search in the view that is shown."""
        await self.wait("document.querySelector('[data-search]')?.checkVisibility()")
        await self.run(
            f"{{ const field = document.querySelector('[data-search]'); field.value = {json.dumps(value)};"
            " field.dispatchEvent(new Event('input')); 0 }"
        )

    async def press(self, key: str) -> None:
        """Press a key where the focus is."""
        text = {"text": key} if len(key) == 1 else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page at a size, in light or dark colours."""
        await self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        await self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    async def picture(self) -> bytes:
        """Return what is shown as a PNG image."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])

    async def close(self) -> None:
        """Stop listening."""
        self._reading.cancel()
        await self._socket.close()

    async def _read(self) -> None:
        async for message in self._socket:
            document = json.loads(message)
            if "id" in document:
                self._answers.pop(document["id"]).set_result(document)
            else:
                self._heard(document["method"], document["params"])

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
            self.errors.append(" ".join(str(each.get("value", each.get("description"))) for each in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Audits.issueAdded":
            self.errors.append(f"issue: {json.dumps(params['issue'])[:500]}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            self.bodies.append(params["request"].get("postData", ""))


class Browser:
    """A running browser, which opens pages."""

    def __init__(self, port: int, path: str) -> None:
        self._port = port
        self._path = path

    @contextlib.asynccontextmanager
    async def page(self, url: str = "", *, width: int = 1280, height: int = 860, dark: bool = False) -> AsyncIterator[Page]:
        """Open a tab with storage of its own, at an address if one is given."""
        async with connect(f"ws://127.0.0.1:{self._port}{self._path}", max_size=None) as whole:

            async def ask(number: int, method: str, **params: Any) -> dict[str, Any]:
                await whole.send(json.dumps({"id": number, "method": method, "params": params}))
                while True:
                    answer = json.loads(await whole.recv())
                    if answer.get("id") == number:
                        return answer["result"]

            context = (await ask(1, "Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
            target = (await ask(2, "Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
            socket = await connect(f"ws://127.0.0.1:{self._port}/devtools/page/{target}", max_size=None)
            page = Page(socket)
            try:
                for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
                    await page.send(f"{domain}.enable")
                await page.resize(width, height, dark=dark)
                if url:
                    await page.open(url)
                yield page
            finally:
                await page.close()


@contextlib.contextmanager
def running() -> Iterator[Browser]:
    """Run a browser within the ``with``."""
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(prefix="toolbus-browser-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [PROGRAM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            told = Path(folder, "DevToolsActivePort")
            port, path = eventually_sync(lambda: told.exists() and len(read := told.read_text().split()) == 2 and read, timeout=60.0)
            yield Browser(int(port), path)
        finally:
            put_down(process)
