"""The faults: how each is made, and who names it. The table of the documentation is made from this one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pytest

from tests.outages.installation import SERVICE, Installation
from tests.servers import eventually
from tests.tls import Authority, terminating
from toolbus.bus.broker.transport.embedded import find_binary
from toolbus.bus.values.secrets import TokenRecord


class Outage(NamedTuple):
    """One fault.

    Attributes:
        name: for people.
        users: what users see of it.
        cause: makes it.
        check: the check of ``toolbus doctor`` that names it first; empty for what only Prometheus can see.
        line: a part of the line that it says.
        options: of the server.
    """

    name: str
    users: str
    cause: Callable[[Installation], Awaitable[None]]
    check: str
    line: str
    options: Mapping[str, Mapping[str, str]] = MappingProxyType({})


# -- the server ---------------------------------------------------------------------------------------


async def _server_killed(at: Installation) -> None:
    at.server.kill()


async def _server_stands_still(at: Installation) -> None:
    os.kill(at.server.pid, signal.SIGSTOP)


async def _memory_full(at: Installation) -> None:
    at.configure(maxmemory=1)


async def _snapshot_refused(at: Installation) -> None:
    assert at.server.data_dir is not None
    (at.server.data_dir / "dump.rdb").mkdir()
    with at.redis as client:
        client.set("changed", 1)
        client.bgsave()
        await eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", timeout=20)


async def _snapshot_failed(at: Installation) -> None:
    at.configure(stop_writes_on_bgsave_error="no")
    await _snapshot_refused(at)


async def _replicas_missing(at: Installation) -> None:
    at.configure(min_replicas_to_write=1)


async def _replica(at: Installation) -> None:
    with at.redis as client:
        client.replicaof("127.0.0.1", 1)


async def _too_few_to_wait_for(at: Installation) -> None:
    at.shell.environment["TOOLBUS_WAIT_REPLICAS"] = "1"


async def _evicting(at: Installation) -> None:
    at.configure(maxmemory_policy="allkeys-lru")


async def _unsynced(at: Installation) -> None:
    at.configure(appendfsync="no", appendonly="yes")


async def _clock_stepped(at: Installation) -> None:
    """Start the server again with a clock that is a minute ahead."""
    at.server.kill()
    at.server._binary = _ahead(at.shell.folder, at.server)
    at.server.start()


_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int gettimeofday(struct timeval *restrict t, void *restrict z) {
  int (*real)(struct timeval *, void *) = dlsym(RTLD_NEXT, "gettimeofday");
  int done = real(t, z);
  t->tv_sec += 60;
  return done;
}
"""


def _ahead(folder: Path, server: object) -> Path:
    """Return a program that runs the server with another clock."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a clock is set by a library that is compiled here, and there is no cc (Debian: gcc)")
    (folder / "clock.c").write_text(_CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "clock.so", "clock.c", "-ldl"], cwd=folder, check=True, timeout=60)
    chosen = os.environ.get("TOOLBUS_TEST_SERVER", "")
    program = folder / "server"
    program.write_text(f'#!/bin/sh\nLD_PRELOAD={folder}/clock.so exec {shutil.which(chosen) if chosen else find_binary()} "$@"\n')
    program.chmod(0o755)
    return program


async def _cut_off(at: Installation) -> None:
    """Let a client ask for much and read nothing."""
    at.configure(client_output_buffer_limit="normal 100000 50000 1")
    with at.redis as client:
        client.set("long", "x" * 90_000)
        reader = at.redis.connection_pool.get_connection()
        reader.send_packed_command(reader.pack_commands([("GET", "long")] * 200))
        field = "client_output_buffer_limit_disconnections"
        await eventually(lambda: client.info("stats").get(field, 0) > 0, timeout=20)
        reader.disconnect()
        client.delete("long")


# -- workers and services -----------------------------------------------------------------------------


async def _worker_stopped(at: Installation) -> None:
    at.kill(signal.SIGSTOP)
    await at.lapsed()


async def _asleep(at: Installation) -> None:
    """Let the last worker leave and calls come, which an autoscaler does not see."""
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    await at.call("nap", 3)
    with at.redis as client:
        await eventually(lambda: client.xlen(at.keys.queue("asleep")) == 3, timeout=20)


async def _paused_with_calls(at: Installation) -> None:
    await _paused(at)
    await at.call("work", 3)
    with at.redis as client:
        await eventually(lambda: client.xlen(at.keys.queue(SERVICE)) == 3, timeout=20)


async def _paused(at: Installation) -> None:
    assert at.shell.run("operate", "pause", SERVICE).returncode == 0


async def _backlog(at: Installation) -> None:
    await at.occupied(30)


async def _slow_tool(at: Installation) -> None:
    await at.answered("work", 1, seconds=11.0)


async def _failing(at: Installation) -> None:
    await at.answered("broken", 12)


async def _dead_letter(at: Installation) -> None:
    await at.call("die")
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    await at.start_worker()
    with at.redis as client:
        await eventually(lambda: client.xlen(at.keys.dead_letters(SERVICE)) == 1, timeout=60)
        # The one that died is taken out of the registry: what is left are the two services of the new one.
        await eventually(lambda: client.zcard(at.keys.live) == 2, timeout=30)


async def _token_ends(at: Installation) -> None:
    record = TokenRecord(id="0" * 12, hash="0" * 64, name="ci", expires=time.time() + 3 * 86_400)
    with at.redis as client:
        client.hset(at.keys.tokens, record.id, msgspec.json.encode(record))


async def _certificate_ends(at: Installation) -> None:
    authority = Authority(at.shell.folder)
    context = authority.server(expires=datetime.now(UTC) + timedelta(days=3))
    proxy = await at.stack.enter_async_context(terminating(at.server.port, context))
    at.shell.environment |= {"TOOLBUS_URL": f"rediss://127.0.0.1:{proxy.port}", "TOOLBUS_TLS_CA": authority.file}


async def _log_unread(at: Installation) -> None:
    """Log more than the writer keeps for a reader, which is this test and reads nothing."""
    await at.answered("shout", 1)


async def _mistyped(at: Installation) -> None:
    at.shell.environment["TOOLBUS_NAMESPACE"] = "prdo"


OUTAGES: tuple[Outage, ...] = (
    Outage("the server is away", "calls wait, and end at their deadlines", _server_killed, "server", "can't reach"),
    Outage("the server stands still", "calls wait, and end at their deadlines", _server_stands_still, "server", "Timeout"),
    Outage("the server's memory is full", "new calls end as `overloaded`", _memory_full, "memory", "memory is full"),
    Outage(
        "the server can't write its snapshot and refuses writes",
        "calls wait, and end at their deadlines",
        _snapshot_refused,
        "writes",
        "can't write to its disk",
        {"config": {"save": "3600 1"}},
    ),
    Outage("the server can't write its snapshot", "nothing yet", _snapshot_failed, "disk", "could not write the snapshot"),
    Outage("replicas are missing", "calls wait, and end at their deadlines", _replicas_missing, "writes", "too few replicas"),
    Outage("the server is a replica", "calls wait, and end at their deadlines", _replica, "server", "read-only replica"),
    Outage("fewer replicas than are waited for", "`once` calls end as `unavailable`", _too_few_to_wait_for, "replicas", "no `once` call"),
    Outage("the server deletes keys when it is full", "some calls are lost", _evicting, "memory policy", "allkeys-lru"),
    Outage("the append-only file is not synced", "nothing, until a machine crashes", _unsynced, "appendfsync", "appendfsync is no"),
    Outage("a clock was set", "deadlines and times are wrong", _clock_stepped, "clock", "+60.0 s"),
    Outage("the server cuts off slow readers", "some calls end as `outcome_unknown`", _cut_off, "output buffers", "has cut off"),
    Outage("a worker stands still", "its calls are late by a lease", _worker_stopped, "worker", "no sign of life"),
    Outage(
        "paused with calls waiting", "calls wait, and end at their deadlines", _paused_with_calls, "paused", "is paused, and 3 calls wait"
    ),
    Outage("scaled to zero wrongly", "calls wait, and end at their deadlines", _asleep, "service", "no worker serves it"),
    Outage("paused and forgotten", "nothing, until somebody calls", _paused, "forgotten pause", "is paused"),
    Outage("more calls than the workers can do", "calls are late", _backlog, "backlog", "30 calls wait"),
    Outage("a slow tool", "its calls are late", _slow_tool, "slow tool", "work is slow"),
    Outage("a failing tool", "its calls fail", _failing, "failures", "12 of 12 runs of broken"),
    Outage("a call kills its workers", "it ends as `unavailable`", _dead_letter, "dead letters", "1 call of pool set aside"),
    Outage("a token is about to end", "nothing yet", _token_ends, "token", "'ci'"),
    Outage("a certificate is about to end", "nothing yet", _certificate_ends, "certificate", "the server's certificate ends on"),
    Outage("log lines are lost", "nothing", _log_unread, "log", "log lines of the worker"),
    Outage("a mistyped namespace", "tools are not found", _mistyped, "namespace", "'prod'"),
)
