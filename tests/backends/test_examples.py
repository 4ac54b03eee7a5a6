"""The examples of ``examples/platform`` run as their records say."""

from __future__ import annotations

import base64
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from PIL import Image

from tests.backends.places import Heard
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.values.results import ToolError
from toolbus.platform.backends.runner import CannotStart, Instance
from toolbus.platform.files import read_folder
from toolbus.platform.host.host import make_runner
from toolbus.platform.records import RecordedTool

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[2] / "examples" / "platform"
_OFFLINE = ("failed to fetch", "dns error", "error sending request", "no solution found")


class Records:
    """The records of the examples, by id."""

    def __init__(self) -> None:
        found = read_folder(FOLDER)
        assert (found.wrong, found.ignored) == ([], [])
        self.tools = {each.tool_id: each for each in found.records if isinstance(each, RecordedTool)}
        self.groups = {each.group_id: each for each in found.records if isinstance(each, ToolGroup)}


@pytest.fixture
def found() -> Records:
    """The records of the examples, none of which is wrong."""
    return Records()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the API for jobs."""
    monkeypatch.setenv("JOBS_TOKEN", "of-the-tests")
    words = [sys.executable, str(FOLDER / "jobs_api.py"), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ.copy()) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


async def test_the_image_stitcher(found: Records, tmp_path: Path) -> None:
    """A uv project with Pillow is started by uv, tells how far it is, and returns a picture."""
    tool = found.tools["image_stitcher"]
    folder = tmp_path / "image_stitcher"
    shutil.copytree(FOLDER / "image_stitcher", folder, ignore=shutil.ignore_patterns(".venv"))
    runner = await make_runner("local", "host-of-tests")
    lines: list[str] = []
    try:
        instance = await runner.start(tool, msgspec.structs.replace(tool.sources[0], host_dir=str(folder)), lines.append)
    except CannotStart as error:
        if any(each in f"{error} {lines}".lower() for each in _OFFLINE):
            pytest.skip(f"uv can't get Pillow here, so the image stitcher is not tried: {error}")
        raise
    heard = Heard()
    images = [_png(3, 2, "red"), _png(4, 5, "blue")]
    result = await instance.call({"images": images, "direction": "vertical"}, heard)
    assert result.data == {"width": 4, "height": 7}
    assert heard.pieces == ["2 images, 4 x 7 pixels"]
    assert [message for _, _, message in heard.told] == ["image 1 of 2", "image 2 of 2"]
    ((media_type, data),) = heard.blobs
    picture = Image.open(io.BytesIO(data))
    assert (media_type, picture.size, picture.getpixel((0, 0)), picture.getpixel((3, 6))) == ("image/png", (4, 7), (255, 0, 0), (0, 0, 255))
    with pytest.raises(ToolError, match=r"images\[1\]: it is no image in base64"):
        await instance.call({"images": [images[0], "bm90aGluZw=="]}, Heard())
    await instance.stop(5)


async def test_the_jobs(found: Records, jobs: str) -> None:
    """A job is launched, runs a command, whose output streams, and is stopped; its id is in the path of the requests."""
    group = found.groups["job_lifecycle"]
    assert group.usage_order == ("job_launch", "job_run", "job_stop")
    launch, run, stop = [await _started(found, name, jobs) for name in group.usage_order]
    job = (await launch.call({"size": "small"}, Heard())).data["job_id"]
    heard = Heard()
    await run.call({"job_id": job, "command": "train"}, heard)
    assert "".join(heard.pieces) == "train: begun on a small machine\ntrain: done\n"
    assert (await stop.call({"job_id": job}, Heard())).data == {"stopped": True}
    with pytest.raises(ToolError, match="there is no job j1; launch one first"):
        await run.call({"job_id": job, "command": "train"}, Heard())
    for each in (launch, run, stop):
        await each.stop(0)


async def _started(found: Records, name: str, url: str) -> Instance:
    tool = found.tools[name]
    runner = await make_runner("remote", "host-of-tests", ["127.0.0.1"])
    return await runner.start(tool, msgspec.structs.replace(tool.sources[0], url=url), lambda _: None)


def _png(width: int, height: int, color: str) -> str:
    written = io.BytesIO()
    Image.new("RGB", (width, height), color).save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()
