"""Containers: how they start and end, and that none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends import busybox
from tests.backends.busybox import docker, source
from tests.servers import eventually
from toolbus.bus.values.results import Blob, Progress
from toolbus.platform.backends.containers import labels_of
from toolbus.platform.backends.docker import DockerRunner
from toolbus.platform.backends.runner import CannotStart, Instance
from toolbus.platform.records import RecordedTool, ToolMeta

# A daemon that others use, too, takes its time for each of its commands.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

TOOL = RecordedTool(meta=ToolMeta(tool_id="echo"))
DEAD = "0:0:0"


async def nothing(item: str | Blob | Progress) -> None:
    """Take in what is streamed."""


@pytest.fixture
async def runner(namespace: str) -> AsyncIterator[DockerRunner]:
    """A runner of a host of the test's own; nothing of it may be left."""
    busybox.image()
    made = DockerRunner(namespace)
    yield made
    assert not left(namespace)


def left(host: str) -> list[str]:
    """Return the containers of a host."""
    return docker("ps", "--all", "--quiet", "--filter", f"label=toolbus.host={host}").split()


async def start(runner: DockerRunner, lines: list[str] | None = None, **changes: Any) -> Instance:
    return await runner.start(TOOL, source(**changes), (lines if lines is not None else []).append)


async def test_a_container_is_called_and_removed(runner: DockerRunner, namespace: str) -> None:
    """It answers, is well, carries its host's labels, and is gone once it is stopped."""
    lines: list[str] = []
    instance = await start(runner, lines)
    assert (await instance.call({"a": 1}, nothing)).data == {"a": 1}
    assert not await instance.health()
    assert instance.pid > 0
    assert instance.port > 0
    (container,) = left(namespace)
    assert docker("inspect", "--format", '{{index .Config.Labels "toolbus.tool"}}', container) == "echo"
    await eventually(lambda: any("/cgi-bin/echo" in line for line in lines), timeout=30)
    await instance.stop(5)
    await instance.stop(5)
    assert not left(namespace)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": "toolbus-no-such-image"}, "its image toolbus-no-such-image is not on this host, and can't be fetched"),
        ({"command": ("/bin/sh", "-c", "echo oops; exit 3")}, "ended at once: it ended with exit code 3: oops"),
        ({"command": ("/bin/nothing",)}, "exec /bin/nothing failed: No such file or directory"),
        ({"command": ("/bin/sh", "-c", "echo slow; sleep 60"), "ready_within": 1.0}, "not ready within 1 s"),
        ({"memory": "8m", "command": ("/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=64M")}, "used more memory than it may"),
        ({"host_dir": "/nothing"}, "has no Dockerfile on this host"),
    ],
)
async def test_what_can_not_start_says_why(runner: DockerRunner, changes: dict[str, Any], said: str) -> None:
    """One line says what is wrong, and nothing is left."""
    with pytest.raises(CannotStart) as raised:
        await start(runner, **changes)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


async def test_a_port_in_use_is_told(runner: DockerRunner) -> None:
    """A port of the record that another program has is named."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port} can't be had"):
            await start(runner, internal_port=port)


async def test_a_daemon_that_is_away_is_told(runner: DockerRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting says what to do; there is nothing to clean."""
    with monkeypatch.context() as away:
        away.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
        with pytest.raises(CannotStart, match="daemon does not answer: start it"):
            await start(runner)
        assert await runner.clean() == []


async def test_its_end_is_told(runner: DockerRunner, namespace: str) -> None:
    """A container that is killed has ended, and is not well."""
    instance = await start(runner)
    ending = asyncio.create_task(instance.ended())
    docker("kill", *left(namespace))
    assert "it ended with exit code 137" in await ending
    assert await instance.health() == await instance.ended()
    await instance.stop(1)


async def test_a_program_is_asked_before_it_is_killed(runner: DockerRunner) -> None:
    """SIGTERM reaches the program; one that ignores it is killed after its time."""
    lines: list[str] = []
    polite = "trap 'echo asked; exit 0' TERM; echo up; while :; do sleep 0.1; done"
    instance = await start(runner, lines, command=("/bin/sh", "-c", polite), ready="log:up")
    await instance.stop(30)
    assert "asked" in lines
    stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    instance = await start(runner, command=("/bin/sh", "-c", stubborn), ready="log:up")
    await instance.stop(0.3)


async def test_a_cancelled_start_leaves_nothing(runner: DockerRunner, namespace: str) -> None:
    """A start that nobody waits for any more is undone, wherever it was."""
    for _ in range(3):
        starting = asyncio.create_task(start(runner, command=("/bin/sleep", "60")))
        await eventually(lambda: left(namespace), timeout=30)
        starting.cancel()
        await asyncio.wait((starting,))
        assert not left(namespace)


async def test_containers_of_dead_hosts_are_removed(runner: DockerRunner, namespace: str) -> None:
    """A killed host's containers are removed by the next one; those of living hosts and of other machines stay."""
    code = f"""
import asyncio
from tests.backends.busybox import source
from tests.backends.test_docker import TOOL
from toolbus.platform.backends.docker import DockerRunner
async def main():
    runner = DockerRunner({namespace!r})
    kept = await runner.start(TOOL, source(), lambda line: None)
    print("started", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    other = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    assert other.stdout is not None
    assert await other.stdout.readline() == b"started\n"
    elsewhere = {**labels_of(namespace, "echo"), "toolbus.process": DEAD, "toolbus.machine": "another"}
    words = [word for name, value in elsewhere.items() for word in ("--label", f"{name}={value}")]
    kept = docker("create", *words, busybox.IMAGE, "/bin/sleep", "600")
    own = await start(runner)
    await runner.clean()
    assert len(left(namespace)) == 3
    other.send_signal(signal.SIGKILL)
    await other.wait()
    # Another test's runner may have removed it meanwhile, so what is said of it is not looked at.
    await runner.clean()
    assert len(left(namespace)) == 2
    await own.stop(0)
    docker("rm", kept)


async def test_an_image_is_built_from_its_folder(runner: DockerRunner, tmp_path: Path) -> None:
    """It is built when the folder has changed, and only then; a failure says what the builder said."""
    (tmp_path / "Dockerfile").write_text(f"FROM {busybox.IMAGE}\nCOPY page /www/page\n")
    (tmp_path / "page").write_text('{"page": 1}')
    name = f"toolbus-test-built-{os.getpid()}"
    fields = {"image": name, "host_dir": str(tmp_path), "endpoint_path": "/page", "http_method": "GET"}
    try:
        for page, builds in ((1, True), (1, False), (2, True)):
            (tmp_path / "page").write_text(f'{{"page": {page}}}')
            lines: list[str] = []
            instance = await start(runner, lines, **fields)
            # busybox does not say what a page without a suffix is.
            assert (await instance.call({}, nothing)).observation == f'{{"page": {page}}}'
            assert any("building the image" in line for line in lines) is builds
            await instance.stop(0)
        (tmp_path / "Dockerfile").write_text(f"FROM {busybox.IMAGE}\nCOPY nothing /x\n")
        with pytest.raises(CannotStart, match=r"can't be built: .*nothing"):
            await start(runner, **fields)
    finally:
        docker("rmi", "--force", name)
