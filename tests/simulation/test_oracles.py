"""The invariants are right: they pass what is right, and each is broken once here."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.history import Begun, Exited, Left
from tests.chaos.options import Options
from tests.chaos.samples import unreached
from tests.simulation import oracles
from tests.simulation.oracles import Invariants
from tests.simulation.storage import Hash, Storage, Stream
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.transport.link import Link
from toolbus.bus.broker.transport.wire import Wire

PREFIX = b"tb:{chaos}:"


class Bench:
    """A server's keys, and the invariants over them."""

    def __init__(self) -> None:
        self.db = Storage(lambda: 0)
        self.invariants = Invariants(self.db, PREFIX, Options(concurrency=1))

    def found(self) -> list[str]:
        return [f"{violation.rule}: {violation.what}" for violation in self.invariants.violations]

    def hash(self, name: str, **fields: str) -> None:
        """Set fields of a hash, with a command of its own."""
        self._expires(name)
        self.db.make(PREFIX + name.encode(), Hash).update({field.encode(): value.encode() for field, value in fields.items()})
        self.invariants.changed({PREFIX + name.encode()})

    def frames(self, name: str, run: str, *places: int) -> None:
        """Append frames of a run to a reply stream, with a command of its own."""
        self._expires(name)
        stream = self.db.make(PREFIX + name.encode(), Stream)
        stream.last = stream.next_id(0)
        document = ",".join(f'{{"run":"{run}","seq":{place}}}' for place in places)
        stream.entries[stream.last] = [b"f", f"[{document}]".encode()]
        self.invariants.changed({PREFIX + name.encode()})

    def _expires(self, name: str) -> None:
        self.db.expires[PREFIX + name.encode()] = 1_000_000


def _no_ttl(bench: Bench) -> None:
    bench.db.make(PREFIX + b"started:x", Hash)[b"a"] = b"b"
    bench.invariants.changed({PREFIX + b"started:x", b"elsewhere", PREFIX + b"gone"})


def _too_many_handlers(bench: Bench) -> None:
    for key in ("a", "b"):
        bench.invariants.wrote(Begun(1.0, key, 1, 7))


def _fence_falls(bench: Bench) -> None:
    bench.hash("fence:chaos", generation="0.x", **{"c:w": "12"})
    bench.hash("fence:chaos", **{"c:w": "9"})


def _flushes_overtake(bench: Bench) -> None:
    bench.hash("pub:a", one="4 x")
    bench.hash("pub:a", two="3 y")


def _a_frame_is_missing(bench: Bench) -> None:
    bench.frames("rsp:a", "r", 0, 1)
    bench.frames("rsp:a", "r", 3)


def _two_scripts(bench: Bench) -> None:
    _send(bench, ['{"run":"r"}', '{"run":"r"}'], answer=False)


def _send(bench: Bench, frames: list[str], *, answer: bool) -> None:
    """Send each frame with a script of its own, each after the answer to the one before if there are answers."""
    link: Any = Link.__new__(Link)

    def run(_: Any, script: Any, keys: Any, args: Any, on_reply: Callable[[Any], None], **options: Any) -> None:
        if answer:
            on_reply(None)

    with pytest.MonkeyPatch.context() as patch, bench.invariants.listening():
        patch.setattr(Wire, "run", run)
        for frame in frames:
            link.run(scripts.FINISH, ("key",), (frame.encode(), 1))


BROKEN: dict[Callable[[Bench], None], str] = {
    _no_ttl: "rest: the key started:x has no TTL",
    _too_many_handlers: "inside: 2 handlers run in process 7, of 1 slots",
    _fence_falls: "inside: fence:chaos: c:w went from 12 back to 9",
    _flushes_overtake: "inside: pub:a: flush 3 was carried out after flush 4",
    _a_frame_is_missing: "inside: rsp:a: the run r goes on with frame 3 after frame 1",
    _two_scripts: "inside: the run r is in two scripts that were not answered, the second of them finish/finish",
}


@pytest.mark.parametrize("break_it", BROKEN)
def test_each_invariant_is_broken_once(break_it: Callable[[Bench], None]) -> None:
    """One thing that goes wrong is found, once."""
    bench = Bench()
    break_it(bench)
    assert bench.found() == [BROKEN[break_it]]


def test_there_is_an_example_of_each_invariant() -> None:
    """Whatever the invariants can say is wrong, an example here has them say."""

    def break_everything() -> None:
        for break_it in BROKEN:
            break_it(Bench())

    assert unreached([Path(oracles.__file__)], break_everything) == []


def test_what_goes_on_as_promised_breaks_nothing() -> None:
    """Counters that rise, or begin anew with their key; flushes in order; frames that are written again; one handler after another."""
    bench = Bench()
    bench.hash("fence:chaos", generation="0.x", **{"c:w": "9"})
    bench.hash("fence:chaos", **{"c:w": "12"})
    bench.db.remove(PREFIX + b"fence:chaos")
    bench.hash("fence:chaos", **{"c:w": "1"})
    bench.hash("pub:a", one="3 x")
    bench.hash("pub:a", two="4 y")
    for places in ((0, 1), (1, 2), (3,)):
        bench.frames("call:a", "r", *places)
    bench.frames("call:a", "other", 0)
    for number in itertools.count(1):
        bench.invariants.wrote(Begun(1.0, "a", number, 7))
        bench.invariants.wrote(Left(1.0, "a", number, 7, "done") if number < 3 else Exited(1.0, "worker", 7, -9, True))
        if number == 4:
            break
    _send(bench, ['{"run":"r"}', '{"run":"r"}'], answer=True)
    _send(bench, ['{"run":"r"}', '{"run":"s"}'], answer=False)
    assert bench.found() == []
