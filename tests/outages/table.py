"""The faults: how each is made, who names it, and how soon. ``faults.md`` is made from this table."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
import redis
import yaml

from tests.deploy.monitoring import ALERTS
from tests.outages.installation import SERVICE, Installation
from tests.outages.monitoring import SCRAPE, seconds
from tests.servers import eventually
from tests.tls import Authority, terminating
from toolbus.bus.broker.transport.embedded import find_binary
from toolbus.bus.values.secrets import TokenRecord
from toolbus.bus.values.settings import Settings
from toolbus.bus.watch import exporter
from toolbus.bus.watch.faults import CHECKS, SERVER, SERVER_RUNBOOK


class Outage(NamedTuple):
    """One fault.

    Attributes:
        name: for people.
        users: what users see of it.
        cause: makes it.
        alert: the one that fires, with the check after a colon; empty where the cause is a setting of one process.
        check: the check of ``toolbus doctor`` that names it first; empty for what only Prometheus can see.
        line: a pattern of the line that it says.
        options: of the installation and its server.
    """

    name: str
    users: str
    cause: Callable[[Installation], Awaitable[None]]
    alert: str
    check: str
    line: str
    options: Mapping[str, Any] = MappingProxyType({})


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


async def _disk_full(at: Installation) -> None:
    """Let the append-only file lie on a disk of four megabytes, and fill it."""
    disk = at.shell.folder / "disk"
    disk.mkdir()
    words = ("mount", "-t", "tmpfs", "-o", "size=4m", "none", str(disk))
    if (await asyncio.to_thread(subprocess.run, words, capture_output=True, check=False)).returncode:
        pytest.skip("a small disk is a tmpfs, which may not be mounted here")
    # Lazily, since the server has its files there until it ends.
    at.stack.callback(subprocess.run, ["umount", "-l", disk], check=True)
    at.configure(dir=disk, appendonly="yes")
    with at.redis as client:
        await eventually(lambda: not client.info("persistence")["aof_rewrite_in_progress"], timeout=20)

        def refused() -> bool:
            try:
                client.set("filling", "x" * 500_000)
            except redis.ResponseError as error:
                return str(error).startswith("MISCONF")
            return False

        await eventually(refused, timeout=30)


async def _replicas_missing(at: Installation) -> None:
    at.configure(min_replicas_to_write=1)


async def _replica(at: Installation) -> None:
    with at.redis as client:
        client.replicaof("127.0.0.1", 1)


async def _too_few_to_wait_for(at: Installation) -> None:
    at.shell.environment["TOOLBUS_WAIT_REPLICAS"] = "1"
    await at.restart_watchers()


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


async def _pool_killed(at: Installation) -> None:
    await at.occupied(3)
    await _idle_killed(at)


async def _killed_at_work(at: Installation) -> None:
    await at.occupied(0)
    await _idle_killed(at)


async def _idle_killed(at: Installation) -> None:
    """Kill the worker, and wait until it is taken out of the registry."""
    at.kill()
    with at.redis as client:
        await eventually(lambda: client.zcard(at.keys.live) == 0, timeout=30)


async def _supervisor_killed(at: Installation) -> None:
    """Kill the process that started the worker's processes, which leave then."""
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    at.processes = ("--processes", "2")
    await at.start_worker()
    await _idle_killed(at)


async def _worker_stopped(at: Installation) -> None:
    at.kill(signal.SIGSTOP)


async def _withdrawn(at: Installation) -> None:
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)


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
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    at.shell.environment["TOOLBUS_CONCURRENCY"] = "30"
    await at.start_worker()
    at.keep("work", 11, seconds=11.0)
    await at.answered("work", 10, seconds=11.0)


async def _failing(at: Installation) -> None:
    await at.answered("broken", 12)
    at.keep("broken", 8)


async def _failing_seldom(at: Installation) -> None:
    await at.answered("broken", 12)
    at.keep("broken", 1)


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
    await at.restart_watchers()


async def _log_unread(at: Installation) -> None:
    """Log more than the writer keeps for a reader, which is this test and reads nothing."""
    await at.answered("shout", 1)


async def _mistyped(at: Installation) -> None:
    at.shell.environment["TOOLBUS_NAMESPACE"] = "prdo"


# -- what Prometheus alone sees -----------------------------------------------------------------------


async def _gateway_killed(at: Installation) -> None:
    at.gateways[1].kill()


async def _watchers_killed(at: Installation) -> None:
    for each in (*at.gateways, at.exporter):
        each.kill()


async def _cut_off_alone(at: Installation, name: str) -> None:
    """Give one process a user of its own, and then take the user's password away; the worker is at work meanwhile."""
    with at.redis as client:
        client.execute_command("ACL", "SETUSER", "alone", "on", ">old", "~*", "&*", "+@all")
        url = at.shell.environment["TOOLBUS_URL"]
        at.shell.environment["TOOLBUS_URL"] = url.replace("://", "://alone:old@")
        await at.restart(name)
        at.shell.environment["TOOLBUS_URL"] = url
        if name == "worker":
            await at.occupied(0)
        client.execute_command("ACL", "SETUSER", "alone", "resetpass", ">new")
        client.client_kill_filter(user="alone")


async def _gateway_cut_off(at: Installation) -> None:
    await _cut_off_alone(at, "two")


async def _exporter_cut_off(at: Installation) -> None:
    await _cut_off_alone(at, "exporter")


async def _worker_cut_off(at: Installation) -> None:
    await _cut_off_alone(at, "worker")


async def _history_without_place(at: Installation) -> None:
    """Remove the folder of a history that has begun, and let a call end."""
    await eventually(lambda: at.metric("history", "toolbus_up") == 1.0, timeout=60)
    shutil.rmtree(at.shell.folder / "kept")
    await at.answered("work", 1)


async def _children_killed(at: Installation) -> None:
    """Kill the process of a supervisor's worker, five times."""
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    at.processes = ("--processes", "2")
    await at.start_worker()
    for killed in range(1, 6):
        child = await eventually(at.children, timeout=30)
        os.kill(child[0], signal.SIGKILL)
        await eventually(lambda killed=killed: at.metric("worker", "toolbus_worker_restarts_total") >= killed, timeout=60)


async def _child_stopped(at: Installation) -> None:
    """Stop one of a worker's two processes."""
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    at.processes = ("--processes", "2")
    await at.start_worker()
    await eventually(lambda: at.metric("worker", "toolbus_worker_processes_ready") == 2, timeout=60)
    os.kill(at.children()[0], signal.SIGSTOP)


async def _taken_over(at: Installation) -> None:
    """Kill a worker that runs twelve calls."""
    at.shell.environment |= {"TOOLBUS_CONCURRENCY": "20", "TOOLBUS_MAX_DELIVERIES": "5"}
    other = at.shell.start("worker", "pool.py")
    with at.redis as client:
        queue, instances = at.keys.queue(SERVICE), at.keys.instances(SERVICE)
        # Between the two workers there must be no moment without one, in which calls are refused.
        await eventually(lambda: len([field for field in client.hkeys(instances) if field.startswith(b"i:")]) == 2, timeout=60)
        at.kill(signal.SIGTERM)
        await eventually(lambda: at.worker.poll() is not None, timeout=30)
        await at.call("work", 12, seconds=600.0)
        await eventually(lambda: client.xlen(queue) == 12 and client.xpending(queue, "g")["pending"] == 12, timeout=30)
    await at.start_worker()
    os.kill(other.pid, signal.SIGKILL)


async def _connections_killed(at: Installation) -> None:
    """End every connection of a worker with four processes, each second from now on."""
    at.kill(signal.SIGTERM)
    await eventually(lambda: at.worker.poll() is not None, timeout=30)
    at.processes = ("--processes", "4")
    await at.start_worker()

    async def end() -> None:
        with at.redis as client:
            for kind in ("normal", "pubsub"):
                client.client_kill_filter(_type=kind, skipme=True)

    at.repeat(end)


async def _malformed(at: Installation) -> None:
    with at.redis as client:
        client.xadd(at.keys.queue(SERVICE), {"r": "nonsense", "d": int((time.time() + 600) * 1000)})


OUTAGES: tuple[Outage, ...] = (
    Outage("the server is away", "calls wait, and end at their deadlines", _server_killed, "ToolbusServerAway", "server", "can't reach"),
    Outage(
        "the server stands still", "calls wait, and end at their deadlines", _server_stands_still, "ToolbusServerAway", "server", "Timeout"
    ),
    Outage("the server's memory is full", "new calls end as `overloaded`", _memory_full, "ToolbusFault:memory", "memory", "memory is full"),
    Outage(
        "the server can't write its snapshot and refuses writes",
        "new calls end as `unavailable`",
        _snapshot_refused,
        "ToolbusFault:writes",
        "writes",
        "can't write to its disk",
        {"config": {"save": "3600 1"}},
    ),
    Outage(
        "the server's disk is full",
        "new calls end as `unavailable`",
        _disk_full,
        "ToolbusFault:writes",
        "writes",
        "No space left on device",
        {"config": {"enable-protected-configs": "yes"}},
    ),
    Outage(
        "the server can't write its snapshot", "nothing yet", _snapshot_failed, "ToolbusFault:disk", "disk", "could not write the snapshot"
    ),
    Outage(
        "replicas are missing",
        "calls wait, and end at their deadlines",
        _replicas_missing,
        "ToolbusFault:writes",
        "writes",
        "too few replicas",
    ),
    Outage(
        "the server is a replica", "calls wait, and end at their deadlines", _replica, "ToolbusServerAway", "server", "read-only replica"
    ),
    Outage(
        "fewer replicas than are waited for",
        "`once` calls end as `unavailable`",
        _too_few_to_wait_for,
        "ToolbusFault:replicas",
        "replicas",
        "no `once` call",
    ),
    Outage(
        "the server deletes keys when it is full",
        "some calls are lost",
        _evicting,
        "ToolbusWarning:memory policy",
        "memory policy",
        "allkeys-lru",
    ),
    Outage(
        "the append-only file is not synced",
        "nothing, until a machine crashes",
        _unsynced,
        "ToolbusWarning:appendfsync",
        "appendfsync",
        "appendfsync is no",
    ),
    Outage("a clock was set", "deadlines and times are wrong", _clock_stepped, "ToolbusWarning:clock", "clock", "60.0 s from here"),
    Outage(
        "the server cuts off slow readers",
        "some calls end as `outcome_unknown`",
        _cut_off,
        "ToolbusCutOff",
        "output buffers",
        "has cut off",
    ),
    Outage(
        "a worker stands still",
        "its calls are late by a lease",
        _worker_stopped,
        "ToolbusServiceDown",
        "worker",
        "no worker of asleep, pool answers|has no worker",
        {"lease": 20.0},
    ),
    Outage(
        "paused with calls waiting",
        "calls wait, and end at their deadlines",
        _paused_with_calls,
        "ToolbusPausedWithCalls",
        "paused",
        "is paused, and 3 calls wait",
    ),
    Outage(
        "all workers were killed",
        "calls wait, and end at their deadlines",
        _pool_killed,
        "ToolbusNoWorker",
        "service",
        "no worker serves it",
    ),
    Outage(
        "the last worker was killed at its call",
        "it waits, and ends at its deadline",
        _killed_at_work,
        "ToolbusNoWorker",
        "service",
        "1 call waits",
    ),
    Outage("the last worker was withdrawn", "calls end as `unavailable`", _withdrawn, "", "withdrawn", "left by itself"),
    Outage("the last worker was killed", "calls end as `unavailable`", _idle_killed, "ToolbusServiceDown", "down", "has no worker"),
    Outage(
        "the supervisor of the last workers was killed",
        "calls end as `unavailable`",
        _supervisor_killed,
        "ToolbusServiceDown",
        "down",
        "has no worker",
    ),
    Outage(
        "scaled to zero wrongly", "calls wait, and end at their deadlines", _asleep, "ToolbusNoWorker", "service", "no worker serves it"
    ),
    Outage("paused and forgotten", "nothing, until somebody calls", _paused, "ToolbusPaused", "forgotten pause", "is paused"),
    Outage("more calls than the workers can do", "calls are late", _backlog, "ToolbusBacklog", "backlog", "30 calls wait"),
    Outage("a slow tool", "its calls are late", _slow_tool, "ToolbusSlowTool", "slow tool", "work is slow"),
    Outage("a tool that fails", "its calls fail", _failing, "ToolbusToolBroken", "failures", "runs of broken have failed"),
    Outage(
        "a tool that fails and is seldom called",
        "its calls fail",
        _failing_seldom,
        "ToolbusFailures",
        "failures",
        "runs of broken have failed",
    ),
    Outage(
        "a call kills its workers",
        "it ends as `tool_error`",
        _dead_letter,
        "ToolbusDeadLetters",
        "dead letters",
        "1 call of pool set aside",
    ),
    Outage("a token is about to end", "nothing yet", _token_ends, "ToolbusWarning:token", "token", "'ci'"),
    Outage(
        "a certificate is about to end",
        "nothing yet",
        _certificate_ends,
        "ToolbusWarning:certificate",
        "certificate",
        "the server's certificate ends on",
    ),
    Outage("log lines are lost", "nothing", _log_unread, "ToolbusLogLinesLost", "log", "log lines of the worker"),
    Outage("a mistyped namespace", "tools are not found", _mistyped, "", "namespace", "'prod'"),
    Outage("one of two gateways is gone", "its clients must use the other", _gateway_killed, "ToolbusProcessGone", "", ""),
    Outage("all gateways and exporters are gone", "calls through gateways fail", _watchers_killed, "ToolbusUnwatched", "", ""),
    Outage("a worker that is not ready", "calls wait for the others", _server_stands_still, "ToolbusNotReady", "server", "Timeout"),
    Outage("one of two gateways is cut off", "its clients get 503", _gateway_cut_off, "ToolbusNotReady", "", ""),
    Outage("the exporter is cut off beside gateways", "nothing", _exporter_cut_off, "ToolbusNotReady", "", ""),
    Outage("a worker is cut off at a call", "its calls are late by a lease", _worker_cut_off, "ToolbusNotReady", "", ""),
    Outage("one of a worker's processes stands still", "its calls are late by a lease", _child_stopped, "ToolbusNotReady", "", ""),
    Outage("the history can't be written", "nothing", _history_without_place, "ToolbusNotReady", "", "", {"history": True}),
    Outage("all slots are taken", "calls wait", _backlog, "ToolbusSlotsFull", "backlog", "30 calls wait"),
    Outage("workers end again and again", "calls are late by a lease", _children_killed, "ToolbusWorkersRestart", "", ""),
    Outage("many calls are taken over", "calls are late by a lease", _taken_over, "ToolbusTakenOver", "", ""),
    Outage("connections are lost again and again", "calls are late", _connections_killed, "ToolbusReconnects", "", ""),
    Outage("a stranger writes to a queue", "nothing", _malformed, "ToolbusMalformed", "dead letters", "set aside"),
)


RULES: dict[str, dict[str, Any]] = {}
EVALUATED: dict[str, int] = {}
for _group in yaml.safe_load(ALERTS.read_text())["groups"]:
    for _rule in _group["rules"]:
        RULES[_rule["alert"]] = _rule
        EVALUATED[_rule["alert"]] = seconds(_group["interval"])

SOON = 120.0
"""Seconds within which a fault is to be named."""

_LEASE = Settings().lease

# Seconds that the metrics of a rule need to show the fault at all.
NEEDS: dict[str, tuple[float, str]] = {
    "ToolbusWarning": (_LEASE, "a worker that is gone has a lease (the other checks need none)"),
    "ToolbusNoWorker": (_LEASE, "workers that were killed have a lease"),
    "ToolbusServiceDown": (_LEASE, "a worker that was killed has a lease"),
    "ToolbusNotReady": (_LEASE, "a worker that hears nothing of its server has a lease"),
    "ToolbusTakenOver": (_LEASE * 4 / 3, "others look for calls to take over three times a lease"),
    "ToolbusWorkersRestart": (10.0, "a process that ends at once is started again later each time, the fourth time within ten seconds"),
    "ToolbusReconnects": (20.0, "it counts twenty connects, which are a second apart at most"),
    "ToolbusToolBroken": (60.0, "half of the runs of two minutes have failed after one"),
}

# Rules that wait for longer, since what they see is no fault before.
LATER = {
    "ToolbusFailures": "a share of failures needs a number of calls, and a tool that is seldom called has few",
    "ToolbusSlowTool": "one slow run is no slow tool, and durations are known only when runs have ended",
    "ToolbusSlotsFull": "a pool whose slots are all taken is used well as long as no calls wait, and those that do are `ToolbusBacklog`",
    "ToolbusPaused": "a pause is what somebody wanted, and one with calls waiting is `ToolbusPausedWithCalls`",
}


def within(alert: str) -> float:
    """Return how many seconds after a fault its rule fires at the latest, with scrapes as the chart asks for."""
    rule = RULES[alert]
    # Workers know their own metrics; for the others a gateway or exporter asks the server.
    asked = 0.0 if "toolbus_worker_" in rule["expr"] else exporter._KEPT + exporter._PATIENCE
    return seconds(rule.get("for", "0s")) + EVALUATED[alert] + SCRAPE + asked + NEEDS.get(alert, (0.0, ""))[0]


def runbook_of(outage: Outage) -> str:
    """Return the heading of the page of runbooks that an outage leads to, as a fragment."""
    if outage.check:
        return {SERVER: SERVER_RUNBOOK, **{check.name: check.runbook for check in CHECKS}}[outage.check]
    return str(RULES[outage.alert]["annotations"]["runbook_url"].partition("#")[2])


def documentation() -> str:
    """Return the table of all faults, and the rules that wait for longer, as ``faults.md`` has them."""
    lines = ["| Fault | Users see | Alert | `doctor` says |", "|---|---|---|---|"]
    for outage in OUTAGES:
        said = f"`{outage.check}`: {outage.line.partition('|')[0]}" if outage.check else "nothing"
        alert = f"`{outage.alert}`" if outage.alert else "none"
        lines.append(f"| [{outage.name}](../../docs/how-to/runbooks.md#{runbook_of(outage)}) | {outage.users} | {alert} | {said} |")
    waiting = [f"- `{alert}` ({within(alert) / 60:.0f} min): {reason}." for alert, reason in LATER.items()]
    return "\n".join([*lines, "", "These alerts wait for longer:", "", *waiting, ""])
