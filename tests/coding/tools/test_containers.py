"""The tools for containers."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends import busybox
from tests.backends.busybox import docker
from tests.coding.workspace.places import workspace
from tests.servers import eventually
from toolbus.bus.local import ToolRegistry
from toolbus.bus.values.results import ToolResult
from toolbus.platform.coding.run import TaskTools

# A daemon that others use, too, takes its time for each of its commands.
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

# Other processes run these tests at the same time.
TASK = f"create_{os.getpid():08x}"


def left() -> list[str]:
    """Return the containers of the task."""
    return docker("ps", "--all", "--quiet", "--filter", f"label=toolbus.task={TASK}").split()


@pytest.fixture(params=["none"])
async def tools(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ToolRegistry]:
    """The tools of a task that may have two containers; none is left."""
    busybox.image()
    async with (
        workspace(tmp_path, TASK, network=request.param, memory=64 << 20, processes=40) as place,
        ToolRegistry(*TaskTools(place).functions.values()) as registry,
    ):
        yield registry
    assert not left()
    assert f"toolbus-task/{TASK}" not in docker("images", "--format", "{{.Repository}}")


async def make(tools: ToolRegistry, **more: Any) -> ToolResult:
    return await tools.execute("create_docker_env", {"name": "box", "image": busybox.IMAGE, **more})


async def run(tools: ToolRegistry, command: str = "", **more: Any) -> ToolResult:
    return await tools.execute("run_in_docker", {"name": "box", "command": command, **more})


async def test_commands_run_beside_the_workspace(tools: ToolRegistry) -> None:
    """A container sees the workspace's files, is confined, and keeps its own files until it is destroyed."""
    await tools.execute("write_file", {"path": "hello.txt", "content": "hello\n"})
    assert (await make(tools)).success
    ran = await run(tools, "cat hello.txt; echo new > made.txt; touch /own; mount -t tmpfs none /tmp 2>&1; exit 4")
    assert ran.output.startswith("hello\nmount: permission denied")
    assert (ran.data["status"], ran.data["ended"]) == (4, "")
    assert (await tools.execute("read_file", {"path": "made.txt"})).output == "new\n"
    interfaces = (await run(tools, "grep : /proc/net/dev")).output
    assert "lo:" in interfaces
    assert interfaces.count(":") == 1
    assert (await run(tools, "ls /own")).data["status"] == 0
    assert (await tools.execute("destroy_docker_env", {"name": "box"})).success
    gone = await run(tools, "ls")
    assert (gone.error.type, gone.error.code) == ("not_found", "no_environment")


async def test_what_takes_too_long_ends_with_its_processes(tools: ToolRegistry) -> None:
    """A command that is ended leaves no process in the container, also none that left its session."""
    await make(tools)
    ran = await run(tools, "echo begun; sleep 4321 & sleep 4321", seconds=1.0)
    assert ran.data["ended"] == "time"
    assert ran.output.startswith("begun\n")
    assert "4321" not in (await run(tools, "cat /proc/[0-9]*/cmdline")).output.replace("cat", "")


async def test_a_program_in_the_background(tools: ToolRegistry) -> None:
    """A server in a container is called from there, read, and stopped."""
    await make(tools)
    handle = (await run(tools, "/bin/httpd -f -vv -p 127.0.0.1:8000 -h /www", mode="background")).data["handle"]

    async def answers() -> bool:
        return bool((await run(tools, "/bin/wget -q -O - --post-data x=1 http://127.0.0.1:8000/cgi-bin/echo")).output.startswith("x=1"))

    await eventually(answers, timeout=30)
    assert "/cgi-bin/echo" in (await run(tools, mode="read", handle=handle)).output
    assert (await run(tools, mode="stop", handle=handle)).data["running"] is False
    assert not await answers()


@pytest.mark.parametrize("tools", ["all"], indirect=True)
async def test_ports_are_mapped_anew(tools: ToolRegistry) -> None:
    """A container that is made anew keeps its files; a port that can't be had leaves it as it was."""
    await make(tools)
    await run(tools, "touch /own")
    rebuilt = await tools.execute("rebuild_docker_ports", {"name": "box", "ports": ["8000"]})
    assert rebuilt.success, rebuilt.error
    port = rebuilt.data["ports"]["8000"]
    assert f"its port 8000 is 127.0.0.1:{port}" in rebuilt.output
    assert (await run(tools, "ls /own")).data["status"] == 0
    assert len(left()) == 1


@pytest.mark.parametrize(
    ("tool", "arguments", "code"),
    [
        ("create_docker_env", {"name": "Bad Name", "image": "x"}, "bad_name"),
        ("create_docker_env", {"name": "x"}, "no_image"),
        ("create_docker_env", {"name": "x", "image": "a", "folder": "b"}, "no_image"),
        ("create_docker_env", {"name": "x", "image": "--privileged"}, "bad_image"),
        ("create_docker_env", {"name": "x", "image": "toolbus-no-such-image"}, "docker_failed"),
        ("create_docker_env", {"name": "x", "folder": "../.."}, "outside"),
        ("create_docker_env", {"name": "x", "folder": "."}, "no_file"),
        ("create_docker_env", {"name": "x", "image": "a", "ports": ["80"]}, "no_network"),
        ("run_in_docker", {"name": "box", "command": " "}, "no_command"),
        ("run_in_docker", {"name": "box", "mode": "read", "handle": "run_x"}, "no_handle"),
        ("rebuild_docker_ports", {"name": "box", "ports": ["80"]}, "no_network"),
        ("destroy_docker_env", {"name": "box"}, "no_environment"),
    ],
)
async def test_mistakes_are_told(tools: ToolRegistry, tool: str, arguments: dict[str, Any], code: str) -> None:
    """Names, images and ports that are none are errors that a model can act upon."""
    assert (await tools.execute(tool, arguments)).error.code == code


@pytest.mark.parametrize("tools", ["all"], indirect=True)
@pytest.mark.parametrize("port", ["x", "0", "99999", "80:80", "0.0.0.0:8000:80"])
async def test_ports_that_are_none_are_refused(tools: ToolRegistry, port: str) -> None:
    """Ports of the machine below 1024, and addresses, are not given."""
    assert (await make(tools, ports=[port])).error.code == "bad_port"


async def test_a_task_has_only_so_many(tools: ToolRegistry) -> None:
    """One more than allowed, and a name twice, are refused."""
    assert (await make(tools)).success
    assert (await make(tools)).error.code == "exists"
    assert (await make(tools, name="two")).success
    assert (await make(tools, name="three")).error.code == "too_many"


async def test_a_daemon_that_is_away_is_told(tools: ToolRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model learns that no container can be had."""
    with monkeypatch.context() as away:
        away.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
        result = await make(tools)
    assert (result.error.type, result.error.code) == ("unavailable", "no_docker")


async def test_a_deployment_can_give_no_containers(tmp_path: Path) -> None:
    """Without them, the model is told what else there is."""
    async with workspace(tmp_path, docker=False) as place, ToolRegistry(*TaskTools(place).functions.values()) as tools:
        result = await make(tools)
        assert result.error.type == "forbidden"
        assert "create_uv_project" in result.error.message


async def test_an_image_is_built_from_a_folder(tools: ToolRegistry) -> None:
    """A Dockerfile of the workspace is built, and its image removed with the container."""
    await tools.execute("write_file", {"path": "b/Dockerfile", "content": f"FROM {busybox.IMAGE}\nCOPY x /x\n"})
    await tools.execute("write_file", {"path": "b/x", "content": "built\n"})
    made = await make(tools, image="", folder="b")
    assert made.success, made.error
    assert (await run(tools, "cat /x")).output.startswith("built\n")
    await tools.execute("write_file", {"path": "b/Dockerfile", "content": "FROM nothing-of-the-kind\n"})
    failed = await make(tools, name="other", image="", folder="b")
    assert failed.error.code == "docker_failed"
