"""The programs of this folder, started as processes of their own in a namespace with a short lease."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.contract import Place
from tests.forking import ForkServer, Program
from tests.servers import put_down

LEASE = 1.0


def place_of(url: str, namespace: str) -> Place:
    """Return a namespace with the lease of the programs."""
    place = Place(url, namespace)
    place.settings = place.with_(lease=LEASE)
    return place


@contextmanager
def programs(forks: ForkServer) -> Iterator[Callable[..., Program]]:
    """Yield what starts a module with its words; what was started is put down at the end."""
    started: list[Program] = []

    def start(module: str, *words: str) -> Program:
        started.append(forks.start("-m", module, *words, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for program in started:
        put_down(program)
        if program.stdout is not None:
            program.stdout.close()
