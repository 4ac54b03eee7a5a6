"""A worker's registration, and the registry it is written to: what is sent, refused, repeated and swept."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import msgspec
import pytest

from tests.broker.fakes import FENCE, KEYS, SETTINGS, Bench
from tests.servers import eventually
from toolbus.bus.broker.protocols import RefusedTool
from toolbus.bus.broker.registry.follower import RegistryFollower
from toolbus.bus.broker.registry.publications import WorkerRegistration
from toolbus.bus.broker.registry.registry import RegisterAnswer, Registry
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, ToolDescriptor
from toolbus.bus.values.results import BrokerUnavailable, RegistrationRefused, ToolbusError

pytestmark = pytest.mark.anyio

PUBLICATION = Publication(ServiceDescriptor("pool"), (ToolDescriptor(name="echo", description="Echo.", service="pool"),), "owner", "digest")
LISTED = b"+" + msgspec.json.encode(PUBLICATION)
OTHER = b"+" + msgspec.json.encode(Publication(PUBLICATION.service, (), "owner", "other"))


class Registering:
    """A worker whose registry answers as the test says."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.doubts = 0
        bench.link.answers["register"] = lambda keys, args: [b"ok", 4, *FENCE]
        self.registry = Registry(bench.as_link, KEYS, SETTINGS)
        self.refusals: list[ToolbusError] = []
        bench.link.answers["HMGET"] = [None, None]
        bench.listener.on_failed = self.refusals.append  # type: ignore[method-assign,assignment]
        self.registration = WorkerRegistration(*bench.own, self.registry, on_doubt=self.doubt, on_listed=self.listed)

    def listed(self, service: str, why: str) -> None:
        """Take note of it on the stream."""
        self.bench.streams[service].unlisted = why

    def doubt(self) -> None:
        """Count."""
        self.doubts += 1

    def holds(self, **lost: Any) -> None:
        """Let the server have everything that was registered, but for what was lost."""
        has = {
            "service": LISTED,
            "instance": b"4:digest",
            "document": msgspec.json.encode(PUBLICATION),
            "tools": b"echo",
            "owner": b"owner",
            "queue": b"pool",
            "start": b"4",
            "current": b"digest",
            "names": 1,
            "stream": 1,
        }
        has |= {"generation": b"1.a", "counter": b"5", "lease": b"6000"} | lost
        own = [has["instance"], has["document"], has["tools"], has["owner"], has["queue"], b"0", has["current"]]
        fence = [has["generation"], has["counter"], has["lease"]]
        self.bench.link.answers |= {
            "HGET": lambda keys, args: has["service"] if args[0] == KEYS.services else has["start"],
            "HMGET": lambda keys, args: {KEYS.instances("pool"): own, KEYS.format: [None, None]}.get(args[0], fence),
            "EXISTS": has["names"] + has["stream"],
        }

    @property
    def starts(self) -> list[int]:
        """The start numbers under which the worker registered."""
        return [args[13] for args in self.bench.link.args("register")]


@pytest.fixture
async def registering() -> Registering:
    """A worker that has registered."""
    made = Registering()
    await made.registration.register(PUBLICATION)
    return made


async def test_a_registration_names_everything_that_is_published(registering: Registering) -> None:
    """All of it, or nothing when a name is another owner's."""
    args = registering.bench.link.args("register")[0]
    assert (args[0], args[2], args[3]) == (KEYS.prefix, 30 * 86_400_000, int(SETTINGS.cooldown * 1000))
    assert args[4:8] == ("pool", "mine", "owner", "digest")
    assert msgspec.json.decode(args[8], type=Publication) == PUBLICATION
    assert args[9] == 6_000
    assert args[11:] == (0, "pool", 0, "echo")
    instances, queue, fence, cancelled = (key.decode() for key in registering.bench.link.keys("register")[0][6:])
    assert (instances, queue, fence, cancelled) == (KEYS.instances("pool"), KEYS.queue("pool"), KEYS.fence("pool"), KEYS.cancelled("pool"))


async def test_a_refusal_names_the_owners(registering: Registering) -> None:
    """Even those that can't be read."""
    registering.bench.link.answers |= {
        "register": lambda keys, args: [b"refused", b"tool/echo", b"another", b"queue/pool", b"\xff"],
        "HMGET": lambda keys, args: [b"another\npool\n9000", b"\xff"],
        "TIME": lambda keys, args: [b"5", b"0"],
    }
    with pytest.raises(RegistrationRefused, match="tool/echo belongs to 'another', queue/pool belongs to") as error:
        await registering.registry.register(PUBLICATION, "mine", 0)
    assert set(error.value.names) == {"tool/echo", "queue/pool"}


async def test_a_lost_registration_is_repeated_under_its_start(registering: Registering) -> None:
    """Its place in the order of starts stays, its fence may be another, and sessions are doubted."""
    registering.bench.link.answers["register"] = lambda keys, args: [b"ok", 4, b"2.b", b"8"]
    held = registering.bench.hold()
    registering.bench.stream.unlisted = "its lease was lost there"
    await registering.registration.register_again(["pool"])
    assert registering.starts == [0, 4]
    assert (registering.doubts, registering.bench.stream.unlisted) == (1, "")
    assert registering.bench.listener.lost == [held]
    assert registering.bench.stream.fence_known == (b"2.b", b"8")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (BrokerUnavailable("gone"), "service.register_failed service=pool error=gone"),
        ([b"refused", b"tool/echo", b"another"], "service.refused service=pool error="),
    ],
)
async def test_a_registration_that_fails_again_is_logged(
    registering: Registering, answer: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next beat, or the next turn, tries once more."""
    registering.bench.link.answers |= {
        "register": lambda keys, args: answer,
        "HMGET": lambda keys, args: [None] * (len(args) - 1),
        "TIME": lambda keys, args: [b"5", b"0"],
    }
    await registering.registration.register_again(["pool"])
    assert (registering.bench.stream.fence_known, registering.bench.stream.unlisted) == (FENCE, "")
    assert [record.getMessage().startswith(said) for record in caplog.records] == [True]


@pytest.mark.parametrize("answer", [ReplyError("OOM no memory"), [b"refused", b"tool/echo", b"another"]])
async def test_a_stream_tells_why_its_service_is_not_registered_again(registering: Registering, answer: Any) -> None:
    """Its worker takes nothing meanwhile, and says that when it is asked, or gives up."""
    registering.bench.link.answers |= {"register": lambda keys, args: answer, "HMGET": lambda keys, args: [None] * (len(args) - 1)}
    registering.bench.link.answers["TIME"] = [b"5", b"0"]
    registering.bench.stream.unlisted = "its lease was lost there"
    await registering.registration.register_again(["pool"])
    assert ("OOM no memory" if isinstance(answer, ReplyError) else "tool/echo") in registering.bench.stream.unlisted


async def test_a_failure_is_logged_once_while_it_is_the_same(registering: Registering, caplog: pytest.LogCaptureFixture) -> None:
    """Each beat registers again; another reason is news, and so is the same one after a success."""
    registering.bench.link.answers["HMGET"] = lambda keys, args: [None] * (len(args) - 1)
    for answer in (
        ReplyError("OOM full"),
        ReplyError("OOM full"),
        ReplyError("MISCONF no disk"),
        [b"ok", 4, *FENCE],
        ReplyError("MISCONF no disk"),
    ):
        registering.bench.link.answers["register"] = answer
        await registering.registration.register_again(["pool"])
    said = [record.getMessage() for record in caplog.records]
    failed = "service.register_failed service=pool error="
    assert said == [
        f'{failed}"OOM full"',
        f'{failed}"MISCONF no disk"',
        "service.registered_again service=pool",
        f'{failed}"MISCONF no disk"',
    ]


async def test_a_refusal_is_logged_once_while_it_is_the_same(registering: Registering, caplog: pytest.LogCaptureFixture) -> None:
    """Each beat registers again, and the message tells how long it lasts; another owner is news."""
    told: list[str] = []
    owner = ""
    registering.bench.link.answers |= {
        "HMGET": lambda keys, args: [f"{owner}\npool\n90000".encode() if name.startswith("t:") else None for name in args[1:]],
        "TIME": lambda keys, args: [str(len(told)).encode(), b"0"],
    }
    registering.bench.stream.unlisted = "its lease was lost there"
    for owner in ("another", "another", "third"):
        registering.bench.link.answers["register"] = [b"refused", b"tool/echo", owner.encode()]
        await registering.registration.register_again(["pool"])
        told.append(registering.bench.stream.unlisted)
    assert ["free in 90 s" in told[0], "free in 89 s" in told[1], "free in 88 s" in told[2]] == [True] * 3
    assert [record.getMessage().startswith("service.refused service=pool error=") for record in caplog.records] == [True] * 2


@pytest.mark.parametrize("others", [[], [b"/elsewhere"], [b"/a", b"/b", b"/c", b"/d", b"/here"]])
async def test_a_program_with_the_owner_of_another_one_is_warned(
    registering: Registering, others: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names up to three other places of the owner; a worker that does not tell its place compares nothing."""
    table = [part for number, place in enumerate(others) for part in (f"o:{number}".encode(), place, f"i:{number}".encode(), b"4:digest")]
    registering.bench.link.answers["HSCAN"] = [b"0", [*table, b"o:gone", b"/gone"]]
    await registering.registration.register(PUBLICATION)
    assert "HSET" not in registering.bench.link.names
    await registering.registration.register(PUBLICATION, "/here")
    assert registering.bench.link.args("HSET") == [(KEYS.instances("pool"), "o:mine", "/here")]
    there = {0: "", 1: "['/elsewhere']", 5: "\"['/a', '/b', '/c']\""}[len(others)]
    advice = "two programs? set TOOLBUS_OWNER, another one for each, or name their services differently"
    expected = f'service.other_program service=pool owner=owner here=/here there={there} advice="{advice}"'
    assert [record.getMessage() for record in caplog.records] == ([expected] if there else [])


@pytest.mark.parametrize(("died", "how"), [(True, [b"died"]), (False, [])])
async def test_a_worker_that_died_is_told_from_one_that_left(registering: Registering, died: bool, how: list[bytes]) -> None:
    """Unregistering says when the worker died, and nothing when it left."""
    await registering.registration.unregister(died=died)
    args = [each if isinstance(each, bytes) else str(each).encode() for each in registering.bench.link.args("unregister")[0]]
    assert args[args.index(b"pool/mine") + 1 :] == how


async def test_a_worker_that_can_not_ask_for_the_version_names_its_services(
    registering: Registering, caplog: pytest.LogCaptureFixture
) -> None:
    """A registration that fails at the version is logged once, with all services that are missing."""
    registering.bench.link.answers["HMGET"] = BrokerUnavailable("gone")
    await registering.registration.register_again(["pool", "other"])
    assert [record.getMessage() for record in caplog.records] == ['service.register_failed service="pool, other" error=gone']


async def test_registrations_that_wait_for_the_server_are_done_together(registering: Registering, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many beats missed the service until the first registration was answered, it is for all; a later one is news."""
    answered, registered = asyncio.Event(), []

    async def register(publication: Publication, instance: str, start: int) -> RegisterAnswer:
        registered.append(publication.service.id)
        await answered.wait()
        return RegisterAnswer(4, *FENCE)

    monkeypatch.setattr(registering.registry, "register", register)
    waiting = [asyncio.ensure_future(registering.registration.register_again(["pool"])) for _ in range(4)]
    await eventually(lambda: registered == ["pool"])
    registering.bench.stream.unlisted = "its lease was lost there"
    waiting.append(asyncio.ensure_future(registering.registration.register_again(["pool"])))
    await asyncio.sleep(0)
    answered.set()
    await asyncio.gather(*waiting)
    assert (registered, registering.bench.stream.unlisted) == (["pool"], "")
    assert registering.doubts == 5
    await registering.registration.register_again(["pool"])
    assert registered == ["pool", "pool"]


async def test_a_registration_that_fails_answers_nobody(registering: Registering, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that missed its service while a registration was under way that failed registers it at once."""
    failed, registered = asyncio.Event(), []

    async def register(publication: Publication, instance: str, start: int) -> RegisterAnswer:
        registered.append(publication.service.id)
        await failed.wait()
        if len(registered) == 1:
            raise BrokerUnavailable("gone")
        return RegisterAnswer(4, *FENCE)

    monkeypatch.setattr(registering.registry, "register", register)
    waiting = [asyncio.ensure_future(registering.registration.register_again(["pool"])) for _ in range(2)]
    await eventually(lambda: registered == ["pool"])
    failed.set()
    await asyncio.gather(*waiting)
    assert registered == ["pool", "pool"]


async def test_a_worker_that_leaves_is_not_registered_again(registering: Registering) -> None:
    """Nor does it stay when it left while it registered."""
    registering.registration.active = False
    await registering.registration.register_again(["pool"])
    await registering.registration.register_missing()
    assert registering.starts == [0]
    registering.registration.active = True

    def leaving(keys: Any, args: Any) -> Any:
        registering.registration.active = False
        return [b"ok", 4, *FENCE]

    registering.bench.link.answers["register"] = leaving
    await registering.registration.register_again(["pool"])
    assert registering.bench.link.args("unregister")[0][4:] == (b"pool/mine",)


@pytest.mark.parametrize(
    ("lost", "again"),
    [
        ({}, False),
        ({"start": b"9"}, False),
        ({"service": None}, True),
        ({"service": b"+nonsense"}, True),
        ({"instance": None}, True),
        ({"instance": b"3:digest"}, True),
        ({"instance": b"4:other"}, True),
        ({"document": None}, True),
        ({"tools": None}, True),
        ({"owner": None}, True),
        ({"queue": None}, True),
        ({"names": 0}, True),
        ({"stream": 0}, True),
        ({"service": OTHER}, True),
        ({"service": LISTED.replace(b"+", b"-", 1)}, True),
        ({"service": OTHER, "current": b"other"}, False),
        ({"start": None}, True),
        ({"start": b"3"}, True),
        ({"start": b"junk"}, True),
        ({"generation": None}, True),
        ({"counter": None}, True),
        ({"lease": None}, True),
    ],
)
async def test_a_worker_whose_registration_is_not_whole_registers_again(
    registering: Registering, lost: dict[str, Any], again: bool
) -> None:
    """Each part is looked at, since a beat sees the lease alone."""
    registering.holds(**lost)
    await registering.registration.register_missing()
    assert registering.starts == ([0, 4] if again else [0])


async def test_leaving_takes_every_service_out(registering: Registering) -> None:
    """In one script; a worker of no service sends none."""
    registering.bench.streams["other"] = registering.bench.new_stream("other")
    registering.bench.link.answers["HGET"] = lambda keys, args: b"mapped" if args[0] == KEYS.instances("other").encode() else None
    await registering.registration.unregister()
    assert registering.bench.link.args("unregister")[0][4:] == (b"pool/mine", b"other/mine")
    keys = registering.bench.link.keys("unregister")[0]
    assert KEYS.queue("mapped").encode() in keys
    assert KEYS.queue("pool").encode() in keys
    registering.bench.streams.clear()
    await registering.registration.unregister()
    assert registering.bench.link.names.count("unregister") == 1


@pytest.mark.parametrize(("answer", "trusted"), [(1, True), (0, True), (-1, False)])
async def test_a_sweep_names_what_seems_dead_and_distrusts_another_clock(registering: Registering, answer: int, trusted: bool) -> None:
    """The script says when the server's clock is not what was expected: then no lease is judged for a while."""
    bench = registering.bench
    for _ in range(5):
        bench.clock.observe(bench.times.now * 1000, bench.times.now, bench.times.now)
        bench.times.now += SETTINGS.lease / 4
    bench.clock.observe(bench.times.now * 1000, bench.times.now, bench.times.now)
    bench.link.answers |= {"ZRANGE": lambda keys, args: [b"pool/dead" if args[1] == "-inf" else b"pool/endless"], "unregister": answer}
    await registering.registry.sweep(bench.clock)
    now = int(bench.clock.server_ms())
    far = now + 7_200_000
    ranges = [(KEYS.live, "-inf", f"({now}", "BYSCORE", "LIMIT", 0, 64), (KEYS.live, f"({far}", "+inf", "BYSCORE", "LIMIT", 0, 64)]
    assert bench.link.args("ZRANGE") == ranges[: 1 if answer < 0 else 2]
    swept = [args[4:] for args in bench.link.args("unregister")]
    assert swept == [(member, "ended", now, 6_000, 3_600_000) for member in (b"pool/dead", b"pool/endless")][: 1 if answer < 0 else 2]
    assert bench.clock.trusted is trusted


@pytest.mark.parametrize(("kind", "at"), [("ended", 0), ("endless", 1)])
@pytest.mark.parametrize(("answer", "then"), [(64, 0), (0, 64), (60, 4), (ReplyError("WRONGTYPE"), 64)])
async def test_a_sweep_goes_on_after_members_that_stay(registering: Registering, kind: str, at: int, answer: Any, then: int) -> None:
    """Members that it could not remove, or for which the script failed, hide no others; after the last it begins anew."""
    bench = registering.bench
    full = [b"x%d/y" % number for number in range(64)]
    bench.link.answers |= {"ZRANGE": lambda keys, args: full if (args[1] == "-inf") == (kind == "ended") else [], "HGET": None}
    bench.link.answers["unregister"] = lambda keys, args: answer if len(args) > 8 else 0

    async def after() -> int:
        bench.link.seen.clear()
        with contextlib.suppress(ReplyError):
            await registering.registry.sweep(bench.clock)
        return int(bench.link.args("ZRANGE")[at][5])

    assert [await after(), await after()] == [0, then]
    full.clear()
    assert [await after(), await after()][1] == 0


async def test_a_member_whose_sweep_fails_keeps_no_other(registering: Registering) -> None:
    """They are swept one by one when the script fails for several, and the failure is told in the end."""
    bench = registering.bench
    members = [b"good/1", b"bad/2", b"good/3"]
    bench.link.answers |= {"ZRANGE": lambda keys, args: members, "HGET": None}
    bench.link.answers["unregister"] = lambda keys, args: ReplyError("ERR damaged") if b"bad/2" in args else len(args) - 8
    with pytest.raises(ReplyError, match="damaged"):
        await registering.registry.sweep(bench.clock)
    assert [args[4:-4] for args in bench.link.args("unregister")] == [tuple(members), *((member,) for member in members)] * 2
    bench.link.answers["unregister"] = BrokerUnavailable("gone")
    with pytest.raises(BrokerUnavailable):
        await registering.registry.sweep(bench.clock)
    assert len(bench.link.args("unregister")) == 9


async def test_a_table_of_a_wrong_type_does_not_stop_a_sweep(registering: Registering) -> None:
    """It is repaired, and its service is taken for one on its own queue; other errors are passed on."""
    bench = registering.bench
    bench.link.answers |= {"ZRANGE": lambda keys, args: [b"pool/dead"] if args[1] == "-inf" else [], "unregister": 1, "mend": []}
    bench.link.answers["HGET"] = ReplyError("WRONGTYPE no hash")
    await registering.registry.sweep(bench.clock)
    assert bench.link.keys("mend") == [(KEYS.instances("pool").encode(),)]
    assert KEYS.queue("pool").encode() in bench.link.keys("unregister")[0]
    bench.link.answers["HGET"] = ReplyError("NOPERM")
    with pytest.raises(ReplyError, match="NOPERM"):
        await registering.registry.sweep(bench.clock)


async def test_items_are_put_and_deleted_by_their_owners(registering: Registering) -> None:
    """A refusal says whose the name is, and what to do."""
    bench = registering.bench
    bench.link.answers["change"] = lambda keys, args: [b"ok", 1]
    await registering.registry.put_item("tool/x", b"{}", "owner")
    assert bench.link.args("change")[0][4:] == ("owner", 1, 1, "tool/x", "*", b"{}")
    assert await registering.registry.delete_item("tool/x")
    assert bench.link.args("change")[1][4:] == ("", 1, 1, "tool/x", "*", "")
    bench.link.answers["change"] = lambda keys, args: [b"ok", 0]
    assert not await registering.registry.delete_item("tool/x")
    bench.link.answers["HMGET"] = [None]
    bench.link.answers["change"] = lambda keys, args: [b"refused", b"another"]
    with pytest.raises(RegistrationRefused, match="published by 'another'"):
        await registering.registry.put_item("tool/x", b"{}")
    with pytest.raises(RegistrationRefused, match="belongs to 'another'"):
        await registering.registry.put_item("tool/x", b"{}", "owner")
    with pytest.raises(RegistrationRefused, match="belongs to 'another'"):
        await registering.registry.delete_item("tool/x", "owner")


class Hearing:
    """A listener of the registry."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def on_service(self, service: str, record: Any) -> None:
        """Take note."""
        self.said.append(
            ("service", service, None if record is None else record.reason if isinstance(record, RefusedTool) else record.live)
        )

    def on_item(self, key: str, document: bytes | None) -> None:
        """Take note."""
        self.said.append(("item", key, document))

    def on_registry(self, services: Any, items: Any) -> None:
        """Take note."""
        self.said.append(("registry", sorted(services), items))


def change(op: bytes, key: bytes, document: bytes, token: bytes, before: bytes) -> list[bytes]:
    """Return the fields of a log entry."""
    return [b"op", op, b"key", key, b"doc", document, b"token", token, b"prev", before]


async def test_changes_are_applied_in_order_until_one_is_missing() -> None:
    """Each names the one before it; a gap is not jumped over."""
    bench, hearing = Bench(), Hearing()
    published = msgspec.json.encode(PUBLICATION)
    bench.link.answers |= {
        "XREVRANGE": lambda keys, args: [[b"1-0", change(b"up", b"x", b"", b"t1", b"")]],
        "HSCAN": lambda keys, args: [b"0", [b"pool", b"+" + published, b"\xff", b"", b"bad", b"+x"] if args[0] == KEYS.services else []],
    }
    follower = RegistryFollower(bench.as_link, KEYS, cast("Any", hearing))
    await follower.load()
    assert (follower.position, hearing.said) == (b"1-0", [("registry", ["\\xff", "bad", "pool"], {})])
    hearing.said.clear()
    entries = [
        (b"2-0", change(b"up", b"pool", published, b"t2", b"t1")),
        (b"3-0", change(b"down", b"pool", published, b"t3", b"t2")),
        (b"4-0", change(b"gone", b"pool", b"", b"t4", b"t3")),
        (b"5-0", change(b"item", b"tool/x", b"{}", b"t5", b"t4")),
        (b"6-0", change(b"item", b"tool/x", b"", b"t6", b"t5")),
        (b"7-0", change(b"up", b"\xff", b"", b"t7", b"t6")),
    ]
    assert follower.apply(entries)
    expected = [("service", "pool", True), ("service", "pool", False), ("service", "pool", None), ("item", "tool/x", b"{}")]
    assert hearing.said == [*expected, ("item", "tool/x", None)]
    assert follower.position == b"7-0"
    assert not follower.apply([(b"9-0", change(b"gone", b"pool", b"", b"t9", b"t8"))])
    assert follower.position == b"7-0"
    assert not follower.apply([(b"9999999999999999-0", change(b"gone", b"pool", b"", b"t8", b"t7"))])
    assert isinstance(RegisterAnswer(1, b"", b""), tuple)


async def test_each_registration_again_is_under_the_last_start(registering: Registering) -> None:
    """The server names another one when it has forgotten the first; the instance is the same."""
    registering.bench.link.answers["register"] = lambda keys, args: [b"ok", 7, *FENCE]
    for _ in range(2):
        await registering.registration.register_again(["pool"])
    assert registering.starts == [0, 4, 7]
    assert {args[5] for args in registering.bench.link.args("register")} == {"mine"}


async def test_a_whole_registration_is_left_as_it_is(registering: Registering) -> None:
    """Its parts are read where a registration writes them, and the worker's sessions are not doubted."""
    registering.holds()
    await registering.registration.register_missing()
    assert registering.doubts == 0
    link, stream = registering.bench.link, registering.bench.stream
    assert link.args("HGET") == [(KEYS.services, "pool"), (KEYS.meta, "start")]
    shared = ("owner", "queue", "scale_to_zero", "current")
    assert link.args("HMGET") == [
        (KEYS.instances("pool"), "i:mine", "d:digest", "n:digest", *shared),
        (stream.fence, "generation", "c:mine", "l:mine"),
    ]
    assert link.args("EXISTS") == [(KEYS.names, stream.key)]
    registering.holds(service=None, instance=None)
    registering.registration.active = False
    await registering.registration.register_missing()
    assert registering.doubts == 0, "a worker that leaves looks, and does nothing"


async def test_a_worker_that_was_away_does_not_come_back_to_a_version_that_it_does_not_speak(registering: Registering) -> None:
    """It would take requests that it can't read; so it ends, and says what to do."""
    before = len(registering.starts)
    registering.bench.link.answers["HMGET"] = [b"2", None]
    await registering.registration.register_again(["pool"])
    assert len(registering.starts) == before
    [error] = registering.refusals
    assert str(error) == "the namespace 'unit' is of version 2 of the protocol, and this process speaks version 1: upgrade it"


async def test_a_worker_that_can_not_ask_for_the_version_looks_again_later(registering: Registering) -> None:
    """A lost connection ends no worker, and registers none."""
    before = len(registering.starts)
    registering.bench.link.answers["HMGET"] = BrokerUnavailable("gone")
    await registering.registration.register_again(["pool"])
    assert (len(registering.starts), registering.refusals) == (before, [])


async def test_a_service_that_is_withdrawn_is_not_published_again(registering: Registering) -> None:
    """A withdrawn service is not registered by a later beat; while the server could not be asked, it counts as published."""
    registration, link = registering.registration, registering.bench.link
    assert (registration.digest("pool"), registration.digest("other")) == ("digest", "")
    link.answers["unregister"] = BrokerUnavailable("gone")
    with pytest.raises(BrokerUnavailable):
        await registration.withdraw("pool")
    assert registration.digest("pool") == "digest"
    del link.answers["unregister"]
    await registration.withdraw("pool")
    await registration.withdraw("other")
    assert registration.digest("pool") == ""
    assert [args[-1] for args in link.args("unregister")] == [b"pool/mine", b"pool/mine", b"other/mine"]
    await registration.register_again(["pool"])
    assert registering.starts == [0]


async def test_a_worker_can_step_behind_others(registering: Registering) -> None:
    """A worker that steps back registers under the earliest start of all, and keeps it at its next registration."""
    registering.bench.link.answers["register"] = lambda keys, args: [b"ok", 1, *FENCE]
    await registering.registration.step_back("pool")
    await registering.registration.register_again(["pool"])
    assert registering.starts == [0, 1, 1]


@pytest.mark.parametrize("again", ["register", "step_back", "register_again"])
async def test_whoever_registers_is_listed(registering: Registering, again: str) -> None:
    """Also by a new revision, or behind others."""
    registering.bench.stream.unlisted = "its lease was lost there"
    what: Any = {"register": PUBLICATION, "step_back": "pool", "register_again": ["pool"]}[again]
    await getattr(registering.registration, again)(what)
    assert registering.bench.stream.unlisted == ""
