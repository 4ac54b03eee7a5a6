"""The runbook's backup and restore, command by command, on real servers, with calls in flight."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import redis

from tests.servers import eventually
from tests.test_contract_lost_sessions import SavedBasket
from toolbus import Settings, ToolBus, Worker, tool
from toolbus.bus.broker.admin import Admin
from toolbus.bus.broker.server.access import rights
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.embedded import EmbeddedServer, find_binary, free_port
from toolbus.bus.values.secrets import TokenRecord, new_token

pytestmark = [pytest.mark.usefixtures("slow"), pytest.mark.anyio, pytest.mark.timeout(600), pytest.mark.xdist_group("recovery")]

RUNBOOK = Path(__file__).parent.parent.parent / "docs" / "how-to" / "runbooks.md"
LONG = 600.0
KEYS = Keys("default")
# The wheel brings no redis-cli, so this one stands in for it: one command, its answer as text.
CLI = """#!{python}
import os, sys, redis
words = sys.argv[1:]
port = int(os.environ["FROM_PORT"])
if words[0] == "-p":
    port, words = int(words[1]), words[2:]
try:
    found = redis.Redis(port=port).execute_command(*words)
except redis.RedisError as error:
    sys.exit(str(error))
lines = [f"{{name}}:{{value}}" for name, value in found.items()] if isinstance(found, dict) else [found]
print(*("PONG" if line is True and words == ["PING"] else line for line in lines), sep="\\n")
"""
SERVER = '#!/bin/sh\nexec {binary} "$@" --logfile "$NEW/server.log"\n'

runs: Counter[str] = Counter()
gates: dict[str, asyncio.Event] = {}


@tool(service="saved", effect="once")
async def pay(name: str) -> str:
    """Have an effect, and hold on."""
    runs[name] += 1
    await gates["pay"].wait()
    return f"paid {name}"


@tool(service="saved", effect="idempotent")
async def work(name: str) -> str:
    """Hold on."""
    runs[name] += 1
    await gates["work"].wait()
    return f"did {name}"


@tool(service="waiting", effect="once")
async def pay_later(name: str) -> str:
    """Have an effect."""
    runs[name] += 1
    return f"paid {name}"


@tool(service="waiting", effect="idempotent")
async def work_later(name: str) -> str:
    """Do something."""
    runs[name] += 1
    return f"did {name}"


def blocks() -> list[str]:
    """The commands that back up, and those that restore."""
    text = RUNBOOK.read_text(encoding="utf-8")
    section = text[text.index("## Back up and restore") : text.index("## Upgrade and roll back")]
    return re.findall(r"```bash\n(.*?)```", section, re.DOTALL)[:2]


def users_of(server: EmbeddedServer) -> Path:
    """The server's ACL file."""
    assert server.data_dir is not None
    return server.data_dir / "users.acl"


class Shell:
    """A folder in which the commands run, with the two programs that they need."""

    def __init__(self, folder: Path, server: EmbeddedServer) -> None:
        self.folder = folder
        self.port = free_port()
        self.new = folder / "new"
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("redis-cli", CLI.format(python=sys.executable)), ("redis-server", SERVER.format(binary=find_binary()))):
            (programs / name).write_text(text)
            (programs / name).chmod(stat.S_IRWXU)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "FROM_PORT": str(server.port),
            "DATA": str(server.data_dir),
            "USERS": str(users_of(server)),
            "NEW": str(self.new),
            "PORT": str(self.port),
        }

    async def run(self, commands: str) -> str:
        """Run commands as they are written; one that fails is the last."""
        words = ["bash", "-euo", "pipefail", "-c", commands]
        done = await asyncio.to_thread(
            subprocess.run, words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        log = self.new / "server.log"
        assert done.returncode == 0, (done.stdout, done.stderr, log.read_text() if log.exists() else "")
        return done.stdout

    @property
    def url(self) -> str:
        """The URL of the restored server."""
        return f"redis://127.0.0.1:{self.port}"


@pytest.fixture
def source(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server as the documentation wants it, with an append-only file."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "users.acl").touch()
    with EmbeddedServer(data_dir=folder, appendonly=True, config={"aclfile": str(folder / "users.acl")}) as server:
        yield server


@pytest.fixture
def shell(tmp_path: Path, source: EmbeddedServer) -> Iterator[Shell]:
    """The commands' folder; a restored server ends with it."""
    runs.clear()
    made = Shell(tmp_path, source)
    yield made
    with suppress(redis.RedisError):
        redis.Redis(port=made.port).shutdown(nosave=True, force=True)


def settings_of(url: str) -> Settings:
    return Settings.load({}, url=url, lease=1.0, timeout=LONG, retention=LONG)


@asynccontextmanager
async def site(settings: Settings) -> AsyncIterator[ToolBus]:
    """A worker and an agent; those of the copy are gone when it is restored."""
    gates.update(pay=asyncio.Event(), work=asyncio.Event())
    async with Worker([pay, work, pay_later, work_later, SavedBasket()], settings=settings), ToolBus(settings=settings) as bus:
        yield bus


async def fill(settings: Settings) -> str:
    """Store what people write; return the id of a token."""
    token, ident, hashed = new_token()
    with redis.Redis.from_url(settings.url) as client:
        client.execute_command("ACL", "SETUSER", "workers", "on", ">secret", *rights(["worker"], "default").rules().split())
        client.acl_save()
    async with Admin(settings) as admin:
        await admin.put("tool/stored", b'{"type": "tool-service", "name": "stored", "description": "x", "service": "saved"}')
        await admin.pins.approve("work")
        await admin.tokens.add(TokenRecord(ident, hashed, "ci"))
        with redis.Redis.from_url(settings.url) as client:
            client.xadd(KEYS.queue("saved"), {"r": b"no request", "d": str(int(time.time() * 1000) + 60_000)})
        await eventually(lambda: letters(admin), timeout=30.0)
    assert token
    return ident


async def letters(admin: Admin) -> list[str]:
    return await admin.dead_letters.ids("saved")


async def test_the_runbook_restores_a_copy_and_runs_nothing_twice(source: EmbeddedServer, shell: Shell) -> None:
    """All that people wrote is there; calls of the copy go on by their effect, `once` work is not repeated, and no old lease counts."""
    backup, restore = blocks()
    settings = settings_of(source.url)
    async with site(settings) as bus:
        token = await fill(settings)
        assert (await bus.call("put", {"what": "apple"}, user="u", session="s")).output == "apple"
        async with Admin(settings) as admin:
            await admin.pause("waiting")
            calls = [
                asyncio.create_task(bus.call(name, {"name": name}, idempotency_key=name))
                for name in ("pay", "work", "pay_later", "work_later")
            ]
            with redis.Redis.from_url(source.url) as client:
                await eventually(lambda: runs["pay"] == runs["work"] == 1 and client.xlen(KEYS.queue("waiting")) == 2, timeout=30.0)
            await shell.run(backup)
            # The old server goes on after the copy, and everything ends there.
            for gate in gates.values():
                gate.set()
            await admin.resume("waiting")
            assert [each.output for each in await asyncio.gather(*calls)] == ["paid pay", "did work", "paid pay_later", "did work_later"]
            assert set(runs.values()) == {1}
    source.kill()
    await shell.run(restore)
    # The user is there with the rights of its role, and a worker is let in.
    async with Admin(settings_of(shell.url.replace("redis://", "redis://workers:secret@"))) as admin:
        assert await admin.roles() == ["worker"]
    await _restored(settings_of(shell.url), token)


async def _restored(settings: Settings, token: str) -> None:
    async with Admin(settings) as admin:
        health = await admin.health()
        assert health.append_only
        assert [each.name for each in (await admin.pins.all()) if each.state == "approved"] == ["work"]
        assert "tool/stored" in (await admin.snapshot())[1]
        assert [each.id for each in await admin.tokens.all()] == [token]
        assert len(await letters(admin)) == 1
        services = await admin.services()
        assert {each.publication.service.id: each.workers for each in services} == {"basket": 0, "saved": 0, "waiting": 0}
        # It was paused at the time of the copy.
        await admin.resume("waiting")
        async with site(settings) as bus:
            for gate in gates.values():
                gate.set()
            for name in ("pay", "pay_later"):
                answer = await bus.call(name, {"name": name}, idempotency_key=name, timeout=60.0)
                assert answer.error is not None, name
                assert answer.error.type == "outcome_unknown", name
                assert runs[name] == 1
            for name, expected in (("work", "did work"), ("work_later", "did work_later")):
                answer = await bus.call(name, {"name": name}, idempotency_key=name, timeout=60.0)
                assert (answer.error, answer.output) == (None, expected)
            # The session's owner is gone, and its state was kept.
            assert (await bus.call("put", {"what": "pear"}, user="u", session="s", timeout=60.0)).output == "apple pear"
            fresh = await bus.call("pay", {"name": "new"}, timeout=60.0)
            assert (fresh.error, fresh.output, runs["new"]) == (None, "paid new", 1)
            [seen] = [each for each in await admin.services() if each.publication.service.id == "saved"]
            assert (seen.workers, seen.running) == (1, 0)
        for name in ("saved", "waiting"):
            assert await admin.queued(name) == 0
