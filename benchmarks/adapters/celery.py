"""Celery: requests in lists, results over pub/sub; its default pool of processes, and clients that are threads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from celery.signals import worker_ready

from benchmarks.adapters.contract import Setup, ThreadedPeer, main, ready

PROCESSES = 8


def _app(setup: Setup) -> tuple[Celery, Any, Any]:
    app = Celery("bench", broker=setup.url, backend=setup.url)
    app.conf.update(
        worker_prefetch_multiplier=64,
        worker_redirect_stdouts=False,
        result_expires=60,
        redis_max_connections=8192,
        broker_pool_limit=None,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        broker_connection_retry_on_startup=True,
    )

    @app.task(name="echo")
    def echo(text: str) -> str:
        return text

    @app.task(name="nap")
    def nap(seconds: float) -> None:
        time.sleep(seconds)

    return app, echo, nap


class Caller:
    """Calls from any thread; Celery keeps a result backend per thread."""

    def __init__(self, echo: Any, nap: Any) -> None:
        self._echo = echo
        self._nap = nap

    def echo(self, text: str) -> str:
        """Have the worker return ``text``."""
        return self._echo.delay(text).get(timeout=30)

    def nap(self, seconds: float) -> None:
        """Have the worker sleep."""
        self._nap.delay(seconds).get(timeout=30)


def serve(setup: Setup) -> None:
    """Serve both tasks without gossip, mingle and heartbeats: in processes, the default, or in threads where tools wait."""
    app, _, _ = _app(setup)

    @worker_ready.connect(weak=False)
    def started(**_: Any) -> None:
        ready()

    kind = "prefork" if setup.concurrency <= PROCESSES else "threads"
    pool = ("--pool", kind, "--concurrency", str(setup.concurrency))
    app.worker_main(["worker", "--loglevel", "CRITICAL", *pool, "--without-gossip", "--without-mingle", "--without-heartbeat"])


@contextmanager
def connect(setup: Setup) -> Iterator[Caller]:
    """Open the client side."""
    app, echo, nap = _app(setup)
    yield Caller(echo, nap)
    app.close()


if __name__ == "__main__":
    main(ThreadedPeer(serve, connect))
