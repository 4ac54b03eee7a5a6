"""Forms of tools' code that no record names are removed after two weeks, and no other ones."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from toolbus import ToolBus
from toolbus.bus.values.settings import Settings
from toolbus.platform.coding.options import deployment_of
from toolbus.platform.coding.registering import NOTES, Forms
from toolbus.platform.coding.service import Leftovers
from toolbus.platform.records import RecordedTool, ToolMeta, ToolSource
from toolbus.platform.store import Records

pytestmark = pytest.mark.anyio


def form(tools: Path, name: str, *owners: Settings) -> Path:
    """Make the code of a tool."""
    made = tools / name
    made.mkdir(parents=True)
    (made / "main.py").write_text("print()\n")
    for owner in owners:
        Forms(tools, owner).note(made)
    return made


def recorded(folder: Path) -> RecordedTool:
    """A record whose code is in a folder."""
    meta = ToolMeta(tool_id=folder.parent.name, description="Do it.")
    return RecordedTool(meta=meta, sources=(ToolSource(type="local", host_dir=str(folder)),))


def later(tools: Path) -> None:
    """Let three weeks pass."""
    then = time.time() - 21 * 86_400
    for note in (tools / NOTES).glob("*/*/*"):
        os.utime(note, (then, then))


async def test_forms_that_no_record_names_are_removed(tmp_path: Path, namespace: str) -> None:
    """After two weeks, counted from when that was first seen; not what is named, waits, is of others, or was made by hand."""
    tools = tmp_path / "tools"
    mine, other = Settings(url="memory://", namespace=namespace), Settings(url="memory://", namespace=f"{namespace}-other")
    deployment = deployment_of({"TOOLBUS_TOOLS_DIR": str(tools), "TOOLBUS_CODING_WORKSPACES": str(tmp_path / "tasks")})
    old, served, waits = (form(tools, f"reverse/{digit * 16}", mine) for digit in "abc")
    kept = [form(tools, "reverse/by-hand"), form(tools, f"shout/{'d' * 16}", other), form(tools, f"shout/{'e' * 16}", mine, other)]
    async with ToolBus(settings=mine) as bus:
        await Records(bus).put(recorded(served))
        await Records(bus).put(recorded(waits), pending=True)
        keys = {"recorded/reverse", "pending/reverse"}
        await bus.tools.catalogue.wait(lambda: keys <= bus.tools.catalogue.documents.by_key.keys())
        leftovers = Leftovers(bus, deployment)
        later(tools)
        await leftovers.prepare()
        assert old.is_dir()
        await leftovers.prepare()
        assert old.is_dir()
        later(tools)
        await leftovers.prepare()
    assert not old.exists()
    assert all(each.is_dir() for each in (served, waits, *kept))


async def test_a_form_that_is_named_again_is_kept(tmp_path: Path, namespace: str) -> None:
    """A record that was exported may come back: the two weeks begin anew."""
    tools = tmp_path / "tools"
    settings = Settings(url="memory://", namespace=namespace)
    deployment = deployment_of({"TOOLBUS_TOOLS_DIR": str(tools), "TOOLBUS_CODING_WORKSPACES": str(tmp_path / "tasks")})
    code = form(tools, f"reverse/{'a' * 16}", settings)
    async with ToolBus(settings=settings) as bus:
        leftovers, records = Leftovers(bus, deployment), Records(bus)
        documents = bus.tools.catalogue.documents
        await leftovers.prepare()
        later(tools)
        await records.put(recorded(code))
        await bus.tools.catalogue.wait(lambda: "recorded/reverse" in documents.by_key)
        await leftovers.prepare()
        await records.remove("recorded/reverse")
        await bus.tools.catalogue.wait(lambda: "recorded/reverse" not in documents.by_key)
        later(tools)
        await leftovers.prepare()
    assert code.is_dir()
