"""The guide to the platform: its files and commands do what it says."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.endpoint import Canned, endpoint, says
from tests.cli.shell import Shell
from tests.cli.test_platform_up import model_of, up
from tests.forking import ForkServer
from tests.pictures import png
from toolbus.platform.files import read_folder

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "platform"
GUIDE = (ROOT / "docs/how-to/platform.md").read_text("utf-8")
COMMANDS = re.findall(r"^```bash\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, url: str, namespace: str) -> Iterator[Shell]:
    """Return a shell in an empty folder, with the test's namespace."""
    made = Shell(forks, tmp_path, url, namespace)
    yield made
    made.close()


@contextmanager
def jobs() -> Iterator[int]:
    """The API of the guide, at a port."""
    command = [sys.executable, str(EXAMPLES / "jobs_api.py"), "--port", "0"]
    with subprocess.Popen(command, env={**os.environ, "JOBS_TOKEN": "secret"}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2])
        finally:
            process.terminate()


def write_files(folder: Path, port: int) -> None:
    """Copy the files of the guide for an API at a port; the image stitcher runs in this environment, without uv."""
    shutil.copytree(EXAMPLES, folder / "platform")
    file = folder / "platform" / "sources.json"
    placed = json.loads(file.read_text("utf-8").replace("127.0.0.1:8765", f"127.0.0.1:{port}"))
    placed["image_stitcher"][0]["command"] = [sys.executable, "main.py", "--port", "{port}"]
    file.write_text(json.dumps(placed))
    image = base64.b64encode(png()).decode()
    (folder / "images.json").write_text(json.dumps({"images": [image, image]}))


def test_the_files_of_the_guide_can_be_recorded(tmp_path: Path) -> None:
    """Every entry of the folder that the guide names is a tool, a source or a group."""
    assert f"](../../{EXAMPLES.relative_to(ROOT)})" in GUIDE
    write_files(tmp_path, 8100)
    found = read_folder(tmp_path / "platform")
    assert found.wrong == []
    assert found.ignored == []
    assert len(found.records) == 5


@pytest.mark.usefixtures("slow")
async def test_the_commands_of_the_guide_do_what_it_says(shell: Shell) -> None:
    """The program, the API, the mounted document and the chat answer as they are shown."""

    def script(body: dict[str, object]) -> Canned:
        return says("image_stitcher puts images beside each other.")

    [start] = [line for line in GUIDE.splitlines() if "toolbus platform up --import" in line]
    words = shlex.split(start.partition(" ")[2].replace("examples/", "").replace("--data kept", "--http-port 0"))
    with jobs() as port:
        write_files(shell.folder, port)
        async with endpoint(script) as model, up(shell, *words, JOBS_TOKEN="secret", **model_of(model.url)) as platform:
            address = platform.url.removeprefix("http://")

            def run(command: str) -> str:
                here = command.replace("localhost:8001", address).replace("--allow-host localhost", "--allow-host 127.0.0.1")
                here = re.sub(r"^toolbus (call .*)$", r"toolbus \1 --wait 60", here, flags=re.MULTILINE)
                path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
                environment = {**shell.environment, "PATH": path}
                done = subprocess.run(
                    ["bash", "-ec", here], cwd=shell.folder, env=environment, capture_output=True, text=True, timeout=100, check=False
                )
                assert done.returncode == 0, (here, done.stderr)
                return done.stdout

            stitch, group, mount, chat = [await asyncio.to_thread(run, command) for command in COMMANDS]
    stitched = json.loads(stitch)
    assert base64.b64decode(stitched["content"][0]["data"]).startswith(b"\x89PNG")
    assert stitched["data"]["width"] > stitched["data"]["height"]
    assert group.count("j1") == 1
    assert "train: done" in group
    assert json.loads(group.splitlines()[-1]) == {"stopped": True}
    assert {"invoke_job_launch", "invoke_image_stitcher"} <= set(mount.split())
    first, second = chat.strip().splitlines()
    assert first == "image_stitcher puts images beside each other."
    assert json.loads(second) == {"response": first, "chat_id": "guide"}
