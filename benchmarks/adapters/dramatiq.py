"""dramatiq: requests in lists, blocking clients; each result is a list that the client pops with a blocking command."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from benchmarks.adapters.contract import Setup, ThreadedPeer, main, ready


def _actors(setup: Setup) -> tuple[RedisBroker, Any, Any]:
    broker = RedisBroker(url=setup.pooled_url)
    broker.add_middleware(Results(backend=RedisBackend(url=setup.pooled_url), result_ttl=60_000))
    dramatiq.set_broker(broker)

    @dramatiq.actor(actor_name="echo", store_results=True)
    def echo(text: str) -> str:
        return text

    @dramatiq.actor(actor_name="nap", store_results=True)
    def nap(seconds: float) -> bool:
        time.sleep(seconds)
        return True

    return broker, echo, nap


class Caller:
    """Calls from any thread; the broker's connection pool is shared."""

    def __init__(self, echo: Any, nap: Any) -> None:
        self._echo = echo
        self._nap = nap

    def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        return self._echo.send(text).get_result(block=True, timeout=30_000)

    def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        self._nap.send(seconds).get_result(block=True, timeout=30_000)


def serve(setup: Setup) -> None:
    """Serve both actors with a thread per slot."""
    broker, _, _ = _actors(setup)
    worker = dramatiq.Worker(broker, worker_threads=setup.concurrency, worker_timeout=100)
    worker.start()
    ready()
    threading.Event().wait()


@contextmanager
def connect(setup: Setup) -> Iterator[Caller]:
    """Open the client side."""
    broker, echo, nap = _actors(setup)
    yield Caller(echo, nap)
    broker.close()


if __name__ == "__main__":
    main(ThreadedPeer(serve, connect))
