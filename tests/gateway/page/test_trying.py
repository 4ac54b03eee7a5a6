"""Tools are tried with a form made from their schema, and their answers stream in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.gateway.page.browser import Page
from tests.servers import eventually
from toolbus import ToolBus

pytestmark = pytest.mark.anyio

TOOLS = '''
import asyncio
from pathlib import Path
from typing import Any, Literal

import msgspec

from toolbus import Blob, Progress, ToolError, invocation, tool


class Address(msgspec.Struct):
    street: str
    number: int = 1


@tool
async def tell(topic: str):
    """Tell a story in parts."""
    yield f"{topic} begins. "
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    yield Progress(1, 2, "half of it")
    yield "It ends."


@tool
def echo(name: str, kind: Literal["a", "b"], count: int = 3, share: float | None = None, loud: bool = False,
         tags: list[str] = [], address: Address | None = None, anything: Any = None):
    """Return what was given."""
    return name


@tool
def draw():
    """Return a picture."""
    png = bytes.fromhex("89504e470d0a1a0a0000000d4948445200000001000000010806000000"
                        "1f15c4890000000d49444154789c6360f8cf000000030001018dd4b5180000000049454e44ae426082")
    yield Blob("image/png", png)
    yield "a picture"


@tool
def fail():
    """Fail."""
    raise ToolError("the oven is cold", code="cold")


@tool
async def wait():
    """Wait until it is cancelled."""
    try:
        yield "waits"
        await asyncio.Event().wait()
    finally:
        Path("cancelled").touch()


@tool(effect="once")
async def refund(order: int):
    """Refund an order, if a person allows it."""
    return "refunded" if await invocation().confirm(f"Refund order {order}?") else "kept"
'''


@pytest.fixture
async def tools(shell: Shell, bus: ToolBus) -> Path:
    """Start a worker with the tools above, and return its folder."""
    (shell.folder / "kitchen.py").write_text(TOOLS)
    shell.start("worker", "kitchen.py")
    await bus.wait_for_tool("tell", 30.0)
    return shell.folder


async def test_an_answer_streams(page: Page, tools: Path) -> None:
    """The first part is there before the second is sent, then progress and the end."""
    await page.run("location.hash = '#/tools/tell'")
    await page.fill("topic", "The cat")
    await page.click("button", "Run")
    await page.sees("The cat begins.", ".answer .output")
    assert "It ends" not in await page.text(".answer")
    (tools / "go").touch()
    await page.sees("The cat begins. It ends.", ".answer .output")
    await page.sees("Done", ".answer")


async def test_a_form_has_a_field_for_every_kind_of_value(page: Page, tools: Path) -> None:
    """Texts, numbers, choices, lists, objects and JSON become the arguments; what is left empty is left out."""
    await page.run("location.hash = '#/tools/echo'")
    await page.fill("name", "Ada")
    await page.fill("kind", "1")
    await page.fill("share", "0.5")
    await page.fill("anything", '{"deep": [1, null]}')
    await page.click("button", "Add an item")
    await page.run("{ const field = document.querySelector('.item input'); field.value = 'x y'; 0 }")
    await page.fill("street", "Main Street")
    await page.click("button", "Run")
    await page.sees("Done", ".answer")
    sent = json.loads(next(body for body in page.bodies if body))
    assert sent == {
        "name": "Ada",
        "kind": "b",
        "share": 0.5,
        "tags": ["x y"],
        "address": {"street": "Main Street"},
        "anything": {"deep": [1, None]},
    }
    await page.click("button", "Edit as JSON")
    assert json.loads(await page.run("document.querySelector('.tryout textarea.mono[rows=\"8\"]').value")) == sent


async def test_a_missing_field_is_shown_before_anything_is_sent(page: Page, tools: Path) -> None:
    """Without what is required nothing runs, and the field says so."""
    await page.run("location.hash = '#/tools/echo'")
    await page.click("button", "Run")
    await page.sees("required", ".field-error")
    assert not [url for url in page.requests if "invoke" in url]


async def test_pictures_and_failures_are_shown(page: Page, tools: Path) -> None:
    """An image of a tool is drawn, and the error of another one is told with its type."""
    await page.run("location.hash = '#/tools/draw'")
    await page.click("button", "Run")
    await page.wait("document.querySelector('.answer img')?.naturalWidth === 1")
    await page.run("location.hash = '#/tools/fail'")
    await page.click("button", "Run")
    await page.sees("the oven is cold", ".answer .note")
    await page.sees("Failed", ".answer")


async def test_stopping_cancels_the_call(page: Page, tools: Path) -> None:
    """A call that is stopped on the page is cancelled at its worker."""
    await page.run("location.hash = '#/tools/wait'")
    await page.click("button", "Run")
    await page.sees("waits", ".answer .output")
    await page.click("button", "Stop")
    await page.sees("Stopped", ".answer")
    await eventually((tools / "cancelled").exists, timeout=30.0)


async def test_a_question_of_a_running_tool_is_answered_in_place(page: Page, tools: Path) -> None:
    """The handler's question appears with the answer, and allowing it lets the call go on."""
    await page.run("location.hash = '#/tools/refund'")
    await page.fill("order", "17")
    await page.click("button", "Run")
    await page.sees("Refund order 17?", ".answer")
    await page.click(".answer button", "Allow")
    await page.sees("refunded", ".answer .output")
