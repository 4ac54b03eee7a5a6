"""Text of tools, workers and callers stays text on the page, whatever it is."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.gateway.page.browser import Browser, Page
from tests.servers import eventually
from toolbus import ToolBus

pytestmark = pytest.mark.anyio

MARKUP = '<img src=x onerror="globalThis.hacked=1"><script>globalThis.hacked=1</script><svg onload=globalThis.hacked=1>'
REVERSED = "\u202egnp.exe\u2066\u200b\u2028"
LONG = "x" * 10_000
PROTOTYPE = "__proto__"

TOOLS = f"""
from typing import Any
from toolbus import Blob, Progress, ToolError, invocation, tool
from toolbus.bus.values.descriptors import ToolDescriptor

MARKUP = {MARKUP!r}
REVERSED = {REVERSED!r}
LONG = {LONG!r}


@tool(description=MARKUP + REVERSED + LONG, category=MARKUP, groups=[MARKUP, LONG[:200], "__proto__"])
async def evil(first: str = MARKUP):
    yield MARKUP
    yield REVERSED
    yield LONG
    yield Progress(1, 2, MARKUP)
    yield Blob("image/svg+xml", b"<svg xmlns='http://www.w3.org/2000/svg' onload='globalThis.hacked=1'/>")
    yield Blob("text/html" + MARKUP, b"<script>globalThis.hacked=1</script>")
    await invocation().confirm(MARKUP + REVERSED, data={{MARKUP: LONG, "__proto__": 1}})


@tool(description="fails")
def wrong():
    raise ToolError(MARKUP + REVERSED + LONG, code=MARKUP)
"""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "markup": {"type": "string", "title": MARKUP, "description": MARKUP + LONG, "default": MARKUP, "examples": [MARKUP]},
        MARKUP: {"enum": [MARKUP, 1, None]},
        PROTOTYPE: {"type": "string"},
        "constructor": {"type": "integer"},
        "self": {"$ref": "#"},
        "odd": {"anyOf": 3, "type": ["string", 7]},
        "outside": {"$ref": "https://example.org/schema.json"},
    },
    "required": ["markup", 5],
}


async def test_hostile_words_do_nothing(page: Page, bus: ToolBus, shell: Shell) -> None:
    """Markup, reversed, invisible and very long text of descriptions, answers, errors, questions and names adds no element."""
    (shell.folder / "evil.py").write_text(TOOLS)
    shell.start("worker", "evil.py")
    await bus.wait_for_tool("evil", 30.0)
    assert not (await bus.call("wrong", user=MARKUP + REVERSED, session=LONG)).success
    asking = asyncio.create_task(bus.call("evil", user=MARKUP, session=REVERSED))
    await eventually(bus.confirmations.pending, timeout=30.0)
    for width in (1280, 390):
        await page.resize(width, 844)
        for view in ("", "services", "services/evil", "tools", "calls", "waiting", "dead", "sessions", "pins"):
            await page.run(f"location.hash = '#/{view}'")
            await page.wait("document.querySelector('main').innerText.length > 20")
            await _is_harmless(page, view, width)
    await page.run("location.hash = '#/tools/wrong'")
    await page.click("button", "Run")
    await page.sees("onerror", ".answer")
    await _is_harmless(page, "wrong", 390)
    await page.run("location.hash = '#/tools/evil'")
    await page.sees("onerror", ".description")
    await page.click("button", "Run")
    await page.sees("onerror", ".answer .output")
    await page.sees("\\u{202e}gnp.exe", ".answer .output")
    await page.click(".answer button", "Allow")
    await page.sees("Done", ".answer")
    await _is_harmless(page, "evil", 390)
    asking.cancel()


async def _is_harmless(page: Page, view: str, width: int) -> None:
    assert await page.run("globalThis.hacked ?? null") is None, view
    assert await page.run("document.querySelectorAll('main img, main script, main [onerror], main [onload], main iframe').length") == 0, (
        view
    )
    assert await page.run("document.documentElement.scrollWidth") <= width, view
    # No character is left that reorders or hides what is around it.
    assert await page.run("/[\\u202a-\\u202e\\u2066-\\u2069\\u200b\\u2028]/.test(document.body.innerText)") is False, view


async def test_a_schema_of_any_form_makes_a_form(page: Page, bus: ToolBus, shell: Shell) -> None:
    """Hostile names, references to the schema itself and elsewhere, and nonsense make fields; what is filled in is sent as it is."""
    await page.run(f"globalThis.given = JSON.parse({json.dumps(json.dumps(SCHEMA))})")
    names = await page.run(
        "import('/ui/static/form.js').then(({ ArgumentsForm }) => { globalThis.form = new ArgumentsForm(given);"
        " document.querySelector('main').append(form.element); return form.fields.map((field) => field.name); })"
    )
    assert set(names) == set(SCHEMA["properties"])
    await _is_harmless(page, "form", 1280)
    await page.fill("markup", MARKUP)
    await page.fill(PROTOTYPE, "safe")
    sent = json.loads(await page.run("JSON.stringify(form.values())"))
    assert sent["markup"] == MARKUP
    assert sent[PROTOTYPE] == "safe"
    assert await page.run("({}).safe ?? null") is None


async def test_the_policy_stops_markup_that_would_get_through(browser: Browser, address: str) -> None:
    """Even code of the page itself can't turn a text into markup, load from elsewhere, or evaluate a text."""
    async with browser.page(f"{address}/") as page:
        await page.wait("globalThis.toolbusPage?.connection === 'live'")
        for attempt in (
            "document.body.innerHTML = '<img src=x>'",
            "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
            "new Function('return 1')()",
            "fetch('http://127.0.0.1:9/')",
        ):
            refused = f"(async () => {{ try {{ await ({attempt}); return false; }} catch (error) {{ return true; }} }})()"
            assert await page.run(refused) is True, attempt
