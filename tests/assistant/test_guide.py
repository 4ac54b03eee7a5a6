"""The guide to the platform: its files and commands do what it says."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.agent.endpoint import Canned, endpoint, says
from tests.cli.shell import Shell
from tests.cli.test_platform_up import model_of, up
from tests.forking import ForkServer
from tests.pictures import png
from toolbus.platform.files import read_folder

pytestmark = pytest.mark.anyio

GUIDE = (Path(__file__).parents[2] / "docs/how-to/platform.md").read_text("utf-8")
COMMANDS = re.findall(r"^```bash\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(forks: ForkServer, tmp_path: Path, valkey_server: str, namespace: str) -> Iterator[Shell]:
    """Return a shell in an empty folder, with the test's namespace."""
    made = Shell(forks, tmp_path, valkey_server, namespace)
    yield made
    made.close()


class Machines(BaseHTTPRequestHandler):
    """The API of the guide."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer({"machine": "m-1", **body} if self.path == "/machines" else {"path": self.path, **body})

    def do_DELETE(self) -> None:
        self._answer({"stopped": self.path})

    def log_message(self, *given: object) -> None:
        """Say nothing."""

    def _answer(self, document: dict[str, str]) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def machines() -> Iterator[int]:
    """The API, at a port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Machines)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_files(folder: Path, port: int) -> None:
    """Write the files of the guide, whose program needs no project of uv here."""
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    registry, sources, groups = re.findall(r"^```json\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    (folder / "tools/image_stitcher").mkdir(parents=True)
    (folder / "tools/image_stitcher/main.py").write_text(program)
    (folder / "tools/registry.json").write_text(registry)
    (folder / "tools/groups.json").write_text(groups)
    placed = json.loads(sources.replace("127.0.0.1:8100", f"127.0.0.1:{port}"))
    placed["image_stitcher"][0]["command"] = [sys.executable, "main.py", "--port", "{port}"]
    (folder / "tools/sources.json").write_text(json.dumps(placed))
    image = base64.b64encode(png()).decode()
    (folder / "images.json").write_text(json.dumps({"images": [image, image]}))


def test_the_files_of_the_guide_can_be_recorded(tmp_path: Path) -> None:
    """Every entry is a tool, a source or a group."""
    write_files(tmp_path, 8100)
    found = read_folder(tmp_path / "tools")
    assert found.wrong == []
    assert found.ignored == []
    assert len(found.records) == 6


@pytest.mark.usefixtures("slow")
async def test_the_commands_of_the_guide_do_what_it_says(shell: Shell) -> None:
    """The program, the API, the mounted document and the chat answer as they are shown."""

    def script(body: dict[str, object]) -> Canned:
        return says("image_stitcher puts images beside each other.")

    with machines() as port:
        write_files(shell.folder, port)
        words = ("toolbus", "platform", "up", "--import", "tools", "--http-port", "0", "--allow-host", "127.0.0.1")
        async with endpoint(script) as model, up(shell, *words, **model_of(model.url)) as platform:
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
    stitched = json.loads(stitch)["data"]
    assert base64.b64decode(stitched["image"]).startswith(b"\x89PNG")
    assert stitched["width"] > stitched["height"]
    launched, ran, stopped = group.strip().splitlines()
    assert json.loads(launched) == {"machine": "m-1", "size": "small"}
    assert json.loads(ran) == {"path": "/machines/m-1/jobs", "job": "train"}
    assert json.loads(stopped) == {"stopped": "/machines/m-1"}
    assert {"invoke_launch_machine", "invoke_image_stitcher"} <= set(mount.split())
    first, second = chat.strip().splitlines()
    assert first == "image_stitcher puts images beside each other."
    assert json.loads(second) == {"response": first, "chat_id": "guide"}
