"""Local programs that misbehave before, while and after they run."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.backends.places import Place, call
from tests.backends.processes import alive, is_keeper
from tests.servers import eventually
from toolbus.platform.backends import program
from toolbus.platform.backends.keeper import descendants
from toolbus.platform.backends.runner import CannotStart

pytestmark = pytest.mark.anyio


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("changes", "said", "permanent"),
    [
        ({"env": {"START": "ends"}}, "it ended with exit code 1: no licence", False),
        ({"env": {"START": "never"}, "ready_within": 1.0}, "it was not ready within 1 s (nothing listens on port", False),
        ({"ready": "path:/ill", "ready_within": 1.0}, "(GET /ill was not answered well); it last wrote: listening on", False),
        ({"ready": "log:never said", "ready_within": 1.0}, "it was not ready within 1 s (no line with 'never said' was written)", False),
        ({"host_dir": "/no/such/folder"}, "its folder '/no/such/folder' is not on this host", True),
        ({"command": ("no-such-program",)}, "it can't be started: No such file or directory", False),
        ({"env": {"KEY": "env:NOT_SET_ANYWHERE"}}, "env:NOT_SET_ANYWHERE has no value", True),
        ({"env": {"KEY": "env:TOOLBUS_URL"}}, "env:TOOLBUS_URL is a setting of toolbus, which is not given to tools", True),
        (
            {"env": {"START": "in use"}},
            "its port was taken by another process: OSError: [Errno 98] Address already in use; after 3 tries",
            False,
        ),
    ],
)
async def test_what_can_not_start_says_why(local: Place, changes: dict[str, object], said: str, permanent: bool) -> None:
    """A program that can't start, or never is ready, is one line that says why, and whether that can pass; nothing of it is left."""
    before = _children()
    with pytest.raises(CannotStart) as raised:
        await local.start(**changes)
    assert said in str(raised.value)
    assert raised.value.permanent is permanent
    assert "\n" not in str(raised.value)
    assert _children() == before


async def test_readiness_by_a_line(local: Place) -> None:
    """A program may say that it is ready."""
    instance = await local.start(ready="log:listening on")
    assert (await call(instance, "value", value=1)).data == 1
    await instance.stop(5)


async def test_readiness_by_a_line_that_comes_at_once(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line may have been written before the system has said that the program runs."""
    start = program.start

    async def late(*arguments: Any) -> program.Program:
        running = await start(*arguments)
        await eventually(lambda: any("listening on" in line for line in local.lines), timeout=30)
        return running

    monkeypatch.setattr(program, "start", late)
    instance = await local.start(ready="log:listening on", ready_within=5.0)
    await instance.stop(5)


@pytest.mark.parametrize("ready", ["port", "path:/", "log:listening on"])
async def test_listening_on_all_addresses_is_told(local: Place, ready: str, caplog: pytest.LogCaptureFixture) -> None:
    """A tool's output says at each start that others can reach its program, and the log says it once."""
    for start in ("everywhere", "everywhere", ""):
        instance = await local.start(ready=ready, env={"START": start})
        assert (await call(instance, "value", value=1)).data == 1
        await instance.stop(5)
    assert sum("it listens on all addresses of the machine" in line for line in local.lines) == 2
    assert caplog.text.count("instance.listens_everywhere tool=tried") == 1


async def test_a_taken_port_is_another_try(local: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a port that another process took before the program did, the program gets another one, and calls never go to the other process."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        real, ports = local.runner._ports.take, [taken]
        monkeypatch.setattr(local.runner._ports, "take", lambda: ports.pop() if ports else real())
        instance = await local.start()
        assert instance.port != taken
        assert (await call(instance, "value", value=1)).data == 1
        await instance.stop(5)


@pytest.mark.usefixtures("slow")
async def test_floods_of_output(local: Place) -> None:
    """Megabytes of output neither block a program nor reach the host whole: lines are cut, and left out above a rate, and counted."""
    instance = await local.start(env={"START": "flood"})
    assert (await call(instance, "print", lines=3, length=50_000)).data is True
    await eventually(lambda: "printed" in local.lines, timeout=30)
    assert len(local.lines) < 10_000
    assert max(map(len, local.lines)) < 2_100
    assert any("lines left out" in line for line in local.lines)
    await instance.stop(5)


async def test_a_stubborn_program_is_killed(local: Place) -> None:
    """A program that ignores SIGTERM is killed after its grace."""
    instance = await local.start(env={"START": "stubborn"})
    await instance.stop(0.2)
    assert "SIGKILL" in await instance.ended()
    assert not alive(instance.pid)


async def test_grandchildren_end_with_a_program(local: Place) -> None:
    """Everything that a program has started ends with it, in whatever session it is and whatever signals it ignores."""
    instance = await local.start(env={"START": "family"})
    family = await eventually(_whole_family, timeout=30)
    await instance.stop(0.2)
    assert not [pid for pid in family if alive(pid)]


@pytest.mark.parametrize("ending", ["program", "keeper"])
async def test_a_death_is_told(local: Place, ending: str) -> None:
    """When a program, or what keeps it, is killed, everything of it ends, its calls fail, and the instance says that it has ended."""
    instance = await local.start(env={"START": "family"})
    family = await eventually(_whole_family, timeout=30)
    running = asyncio.create_task(call(instance, "hang"))
    keeper = next(pid for pid in family if is_keeper(pid))
    os.kill(instance.pid if ending == "program" else keeper, 9)
    assert "SIGKILL" in await asyncio.wait_for(instance.ended(), 30)
    assert "SIGKILL" in await instance.health()
    assert not [pid for pid in family if alive(pid)]
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], Exception)
    await instance.stop(5)


async def test_work_at_a_call_that_was_given_up_is_known(local: Place) -> None:
    """A program that goes on after the connection was closed is seen to do so, until it has answered nobody."""
    instance = await local.start()

    async def begun() -> bool:
        return "working" in (await call(instance, "seen")).data

    async def unfinished(count: int) -> None:
        async def as_many() -> bool:
            return await instance.unfinished() == count

        await eventually(as_many, timeout=30)

    working = asyncio.create_task(call(instance, "work"))
    await eventually(begun, timeout=30)
    assert await instance.unfinished() == 0
    working.cancel()
    await unfinished(1)
    await call(instance, "hurry")
    await unfinished(0)
    await instance.stop(5)


async def test_an_exit_says_its_last_line(local: Place) -> None:
    """The last line of a program that ended is why it ended."""
    instance = await local.start()
    with pytest.raises(Exception, match="closed the connection"):
        await call(instance, "exit")
    assert await asyncio.wait_for(instance.ended(), 30) == "it ended with exit code 5: listening on " + f"{instance.port} / falling over"
    await instance.stop(5)


async def test_cancelling_a_start_leaves_nothing(local: Place) -> None:
    """A start that is cancelled ends what it began."""
    before = _children()
    starting = asyncio.create_task(local.start(env={"START": "never"}))
    await eventually(lambda: "thinking" in local.lines, timeout=30)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert _children() == before


async def test_the_environment_has_no_secrets(local: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program gets harmless variables, and those of its source, whose values may be in the host's environment or files."""
    monkeypatch.setenv("API_KEY", "secret")
    monkeypatch.setenv("TOOLBUS_URL", "redis://:password@host")
    (tmp_path / "token").write_text("of the file\n")
    instance = await local.start(env={"GIVEN": "env:API_KEY", "FILE": f"file:{tmp_path}/token", "PLAIN": "x"})
    names = (await call(instance, "environment")).data
    assert {"GIVEN", "FILE", "PLAIN", "PATH", "PORT"} <= set(names)
    assert not {"API_KEY", "TOOLBUS_URL"} & set(names)
    await instance.stop(5)


def _children() -> set[int]:
    return {pid for pid in descendants(os.getpid()) if alive(pid)}


def _whole_family() -> list[int] | None:
    """Return the keeper, its program, and the four that this has started, once all run; servers of other tests are children, too."""
    for keeper in filter(is_keeper, descendants(os.getpid())):
        if len(found := descendants(keeper)) >= 5:
            return [keeper, *found]
    return None
