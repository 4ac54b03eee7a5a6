"""The example of a container tool, from the image that its script makes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from tests.backends import busybox
from tests.backends.test_docker import nothing
from toolbus.platform.backends.docker import DockerRunner
from toolbus.platform.files import read_folder
from toolbus.platform.records import RecordedTool

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("slow")]

FOLDER = Path(__file__).parents[2] / "examples" / "platform" / "container_tool"


async def test_the_example_counts_words(namespace: str) -> None:
    """Its base is made from this machine's Python, its image built, and its records are read as they are."""
    busybox.image()
    made = await asyncio.create_subprocess_exec(sys.executable, str(FOLDER / "make_python_image.py"), stdout=asyncio.subprocess.DEVNULL)
    assert await made.wait() == 0
    found = read_folder(FOLDER)
    assert not found.wrong
    (tool,) = found.records
    assert isinstance(tool, RecordedTool)
    # There may be no bridge here that a port could be mapped through.
    command = ("python3", "/app/main.py", "--port", "{port}")
    changes = {"host_dir": str(FOLDER), "network": "host", "internal_port": 0, "command": command}
    source = msgspec.structs.replace(tool.sources[0], **changes)
    runner = DockerRunner(namespace)
    instance = await runner.start(tool, source, lambda _: None)
    try:
        answer = await instance.call({"text": "to be or not to be", "most": 1}, nothing)
        assert answer.data == {"words": 6, "most": [["to", 2]]}
        assert not await instance.health()
    finally:
        await instance.stop(5)
