"""Nothing of a host that was killed is left: programs end with it, or the next host on the machine ends them."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.places import Place, call, folder_with
from tests.backends.processes import alive, is_keeper
from tests.backends.served import PROGRAM
from tests.forking import ForkServer, Program
from tests.servers import eventually
from toolbus.platform.backends.keeper import descendants

pytestmark = pytest.mark.anyio

_HOST = """
import asyncio, sys
from pathlib import Path
from tests.backends.places import Place, local_source
from toolbus.platform.host.host import make_runner

async def main():
    runner = await make_runner("local", "to-be-killed")
    place = Place(runner, local_source(Path(sys.argv[1])))
    # Programs end when nobody holds them any more.
    held = await asyncio.gather(*(place.start(env={"START": "family"}) for _ in range(2)))
    print("started", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def host(forks: ForkServer, tmp_path: Path) -> Iterator[Program]:
    """A process that has started two programs with children and grandchildren."""
    process = forks.start("-c", _HOST, str(folder_with(PROGRAM, tmp_path)), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "started\n"
        yield process
    process.kill()


async def test_programs_end_with_their_host(host: Program) -> None:
    """After SIGKILL of a host its programs end by themselves, with all that they have started."""
    family = await _family(host)
    host.kill()
    await eventually(lambda: not any(map(alive, family)), timeout=30)


async def test_the_next_host_ends_what_is_left(host: Program, local: Place) -> None:
    """When host and keepers were killed at once, the next host of the machine ends what is left, and tells it; its own go on."""
    family = await _family(host)
    own = await local.start()
    assert not _told(await local.runner.clean()) & set(family)
    assert all(map(alive, family))
    for pid in [host.pid, *filter(is_keeper, family)]:
        os.kill(pid, signal.SIGSTOP)
    for pid in [*filter(is_keeper, family), host.pid]:
        os.kill(pid, signal.SIGKILL)
    host.wait()
    told = _told(await local.runner.clean())
    assert not any(map(alive, family))
    # The programs themselves end with their keepers, and what they have started does not.
    assert len(set(family) & told) >= 8
    assert not _told(await local.runner.clean()) & {own.pid, *family}
    assert (await call(own, "value", value=1)).data == 1
    await own.stop(5)


@pytest.mark.usefixtures("slow")
async def test_fifty_kills_at_random(local: Place) -> None:
    """Any process of a program may be killed at any time: its calls end, its instance ends, and nothing of it is left."""
    chosen = random.Random(1)

    async def once() -> None:
        starting = asyncio.create_task(local.start(env={"START": chosen.choice(["", "family"])}))
        if chosen.random() < 0.3:
            await asyncio.sleep(chosen.random() * 0.3)
            starting.cancel()
        instance = (await asyncio.gather(starting, return_exceptions=True))[0]
        if isinstance(instance, BaseException):
            return
        calls = [asyncio.create_task(call(instance, do)) for do in ("hang", "value", "drip", "print") for _ in range(2)]
        await asyncio.sleep(chosen.random() * 0.05)
        mine = [instance.pid, *descendants(instance.pid)]
        keepers = [pid for pid in descendants(os.getpid()) if is_keeper(pid) and instance.pid in descendants(pid)]
        os.kill(chosen.choice([*mine, *keepers]), signal.SIGKILL)
        ending = asyncio.create_task(instance.ended())
        await asyncio.wait([ending], timeout=chosen.random())
        await instance.stop(0.1)
        await ending
        assert not [pid for pid in mine if alive(pid)]
        assert len(await asyncio.gather(*calls, return_exceptions=True)) == 8

    before = set(filter(alive, descendants(os.getpid())))
    for _ in range(10):
        await asyncio.gather(*(once() for _ in range(5)))
    assert set(filter(alive, descendants(os.getpid()))) == before


def _told(lines: list[str]) -> set[int]:
    """Return the processes that were ended; other tests leave some at the same time."""
    return {int(line.split()[1]) for line in lines}


async def _family(host: Program) -> list[int]:
    """Return two keepers, their programs, and four more processes of each."""

    def whole() -> list[int] | None:
        found = descendants(host.pid)
        return found if len(found) >= 12 else None

    return await eventually(whole, timeout=30)
