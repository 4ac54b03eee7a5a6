"""The script that registers a worker: what it writes, whose names it refuses, and which generations and starts it gives."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.broker.conftest import FakeServer, ScriptPlace
from toolbus.bus.broker.server import scripts

COOLDOWN = 50_000


class Registry:
    """An empty registry, and workers that are played by hand."""

    def __init__(self, place: ScriptPlace) -> None:
        self.redis, self.keys = place.redis, place.keys

    def register(
        self,
        *tools: str,
        service: str = "pool",
        instance: str = "mine",
        owner: str = "owner",
        digest: str = "d1",
        document: str = "{1}",
        random: str = "r1",
        sleeps: int = 0,
        queue: str = "",
        start: int = 0,
        holders: tuple[str, ...] = (),
    ) -> list[Any]:
        """Register; the script's answer. It is given the tables of the services ``holders``."""
        keys, queue = self.keys, queue or service
        own = (keys.instances(service), keys.queue(queue), keys.fence(queue), keys.cancelled(queue))
        holding = (keys.instances(holder) for holder in holders)
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log, *own, *holding)
        common = (keys.prefix, random, 60_000, COOLDOWN)
        args = (service, instance, owner, digest, document, 9_000, random, sleeps, queue, start, *tools)
        answer: list[Any] = self.redis.eval(scripts.REGISTER.source, len(tables), *tables, *common, *args)
        return answer

    def unregister(self, *members: str) -> None:
        """Take instances of services on their own queues out."""
        keys, services = self.keys, [member.partition("/")[0] for member in members]
        own = [key for name in services for key in (keys.instances(name), keys.queue(name), keys.fence(name), keys.cancelled(name))]
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log, *own)
        self.redis.eval(scripts.UNREGISTER.source, len(tables), *tables, keys.prefix, "out", 60_000, COOLDOWN, *members)

    def leave(self, service: str, queue: str, member: str) -> None:
        """Take an instance of a service on another queue out."""
        keys = self.keys
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log)
        own = (keys.instances(service), keys.queue(queue), keys.fence(queue), keys.cancelled(queue))
        self.redis.eval(scripts.UNREGISTER.source, 10, *tables, *own, keys.prefix, "out", 60_000, COOLDOWN, member)

    def sweep(self, *members: str) -> int:
        """Sweep members of services on their own queues; how many are out."""
        keys, services, now = self.keys, [member.partition("/")[0] for member in members], self.now()
        own = [key for name in services for key in (keys.instances(name), keys.queue(name), keys.fence(name), keys.cancelled(name))]
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log, *own)
        common, looks = (keys.prefix, "out", 60_000, COOLDOWN), ("ended", now, 9_000, 3_600_000)
        dropped: Any = self.redis.eval(scripts.UNREGISTER.source, len(tables), *tables, *common, *members, *looks)
        return int(dropped)

    def now(self) -> int:
        """The server's time in milliseconds."""
        seconds, micros = self.redis.time()
        return int(seconds * 1000 + micros // 1000)

    def name(self, field: str) -> tuple[str, str, int]:
        """Return the owner of a name, its service, and the end of its cooldown."""
        found: Any = self.redis.hget(self.keys.names, field)
        owner, service, free_at = found.decode().split("\n")
        return owner, service, int(free_at)

    def names(self) -> set[str]:
        """Every name that is known."""
        return {field.decode() for field in self.redis.hkeys(self.keys.names)}

    def hold(self, field: str, owner: str, service: str, free_at: int = 0) -> None:
        """Give a name to somebody."""
        self.redis.hset(self.keys.names, field, f"{owner}\n{service}\n{free_at}")
        self.redis.expire(self.keys.names, 60)

    def generation(self, queue: str = "pool") -> str:
        """The generation of a group."""
        found: Any = self.redis.hget(self.keys.fence(queue), "generation")
        return str(found.decode())


@pytest.fixture
def registry(script_place: ScriptPlace) -> Registry:
    """A registry without services."""
    return Registry(script_place)


def unstamped(text: bytes) -> bytes:
    """Return a generation or counter without the server process and its time before what is random."""
    return re.sub(rb"[0-9a-f]*[0-9]{16}(?=r[0-9])", b"", text)


def test_a_registration_writes_everything_that_others_read(registry: Registry) -> None:
    """The service's table, its names, its record, the lease, the group with its fence; and a TTL for each key."""
    before = registry.now()
    *answer, generation, counter = registry.register("echo", "sing", sleeps=1)
    assert (answer, unstamped(generation), unstamped(counter)) == ([b"ok", 1], b"0.r1", b"r1")
    after = registry.now()
    keys, redis = registry.keys, registry.redis
    assert redis.hgetall(keys.instances("pool")) == {
        b"owner": b"owner", b"queue": b"pool", b"scale_to_zero": b"1", b"i:mine": b"1:d1", b"d:d1": b"{1}", b"n:d1": b"echo\nsing",
        b"current": b"d1",
    }  # fmt: skip
    assert registry.names() == {"t:echo", "t:sing", "s:pool", "q:pool"}
    assert {registry.name(field) for field in registry.names()} == {("owner", "pool", 0)}
    assert redis.hgetall(keys.services) == {b"pool": b"+{1}"}
    assert before + 9_000 <= redis.zscore(keys.live, "pool/mine") <= after + 9_000
    assert redis.hgetall(keys.fence("pool")) == {b"generation": generation, b"c:mine": counter, b"l:mine": b"9000"}
    assert [group["name"] for group in redis.xinfo_groups(keys.queue("pool"))] == [b"g"]
    used = (keys.services, keys.names, keys.meta, keys.live, keys.log, keys.instances("pool"), keys.queue("pool"), keys.fence("pool"))
    assert all(50_000 < redis.pttl(key) <= 60_000 for key in used)
    [(_, change)] = redis.xrange(keys.log)
    assert (change[b"op"], change[b"key"], change[b"doc"]) == (b"up", b"pool", b"{1}")


def test_a_repeated_registration_keeps_the_generation_and_the_lives_of_keys(registry: Registry) -> None:
    """It fences nobody off, says nothing new to readers, and each key of the service lives on."""
    first = registry.register()
    keys, redis = registry.keys, registry.redis
    used = (keys.queue("pool"), keys.fence("pool"), keys.instances("pool"), keys.services, keys.names, keys.meta, keys.live)
    for key in used:
        redis.pexpire(key, 20_000)
    assert registry.register(random="r2", start=1) == first
    assert all(redis.pttl(key) > 20_000 for key in used)
    assert redis.xlen(keys.log) == 1


def test_each_worker_has_its_place_in_the_order_of_starts(registry: Registry) -> None:
    """The newest start's publication is the current one, whoever registers last; a start that is known is kept."""
    assert registry.register()[1] == 1
    assert registry.register(instance="second", digest="d2", document="{2}")[1] == 2
    assert registry.redis.hget(registry.keys.services, "pool") == b"+{2}"
    assert registry.register(start=1)[1] == 1
    assert registry.redis.hget(registry.keys.services, "pool") == b"+{2}"
    assert registry.redis.hget(registry.keys.meta, "start") == b"2"


def test_a_counter_of_starts_that_is_no_number_begins_with_the_time(registry: Registry) -> None:
    """The server's time, which is more than any count, replaces a counter of starts that is no number; the next is one more."""
    registry.redis.hset(registry.keys.meta, "start", "text")
    registry.redis.expire(registry.keys.meta, 60)
    before = registry.now()
    first = registry.register()[1]
    assert before <= first <= registry.now()
    assert registry.register(instance="second")[1] == first + 1


@pytest.mark.parametrize(
    ("found", "made"),
    [
        (None, "0.r2"),
        ("0.r1", "1.r2"),
        ("41.x", "42.r2"),
        ("999999999.x", "1000000000.r2"),
        ("1234567890.x", "1.r2"),
        ("nonsense", "1.r2"),
        ("-1.x", "0.r2"),
    ],
)
def test_a_group_that_is_made_anew_has_another_generation(registry: Registry, found: str | None, made: str) -> None:
    """Its number orders attempts, so it is one more than the last, unless nobody knows that."""
    registry.register()
    fence = registry.keys.fence("pool")
    registry.redis.delete(registry.keys.queue("pool"))
    registry.redis.hdel(fence, "generation")
    if found is not None:
        registry.redis.hset(fence, "generation", found)
    registry.register(random="r2", start=1)
    assert unstamped(registry.generation().encode()).decode() == made


def test_a_generation_names_the_newest_entry_that_was_there(registry: Registry) -> None:
    """An earlier group may have delivered it, and those before."""
    registry.register()
    queue = registry.keys.queue("pool")
    registry.redis.xadd(queue, {"r": "{}"}, "5-1")
    registry.redis.xadd(queue, {"r": "{}"}, "5-2")
    registry.redis.xgroup_destroy(queue, "g")
    assert unstamped(registry.register(random="r2", start=1)[2]) == b"1.r2.5-2"


def test_a_group_without_a_generation_gets_one(registry: Registry) -> None:
    """Its fence was lost, so nobody can tell what was delivered under it."""
    registry.register()
    registry.redis.hdel(registry.keys.fence("pool"), "generation")
    assert unstamped(registry.register(random="r2", start=1)[2]) == b"0.r2"


def test_a_registration_that_is_sent_again_after_a_loss_has_a_fence_of_its_own(registry: Registry) -> None:
    """Its random text is the same then, and others may have been told what the server has lost."""
    first = registry.register()
    registry.redis.delete(registry.keys.fence("pool"), registry.keys.queue("pool"))
    again = registry.register()
    assert again[2] != first[2]
    assert again[3] != first[3]


@pytest.mark.parametrize(
    ("field", "label"), [("s:pool", b"tool-service/pool"), ("q:pool", b"queue/pool"), ("t:echo", b"tool/echo"), ("t:sing", b"tool/sing")]
)
def test_names_of_another_owner_are_refused(registry: Registry, field: str, label: bytes) -> None:
    """While they are held, and within their cooldown; then they are free. A refusal writes nothing."""
    registry.hold(field, "another", "pool")
    assert registry.register("echo", "sing") == [b"refused", label, b"another"]
    registry.hold(field, "another", "pool", registry.now() + 10_000)
    assert registry.register("echo", "sing") == [b"refused", label, b"another"]
    assert registry.names() == {field}
    assert not registry.redis.exists(registry.keys.queue("pool"), registry.keys.services, registry.keys.live)
    registry.hold(field, "another", "pool", registry.now() - 1)
    assert registry.register("echo", "sing")[0] == b"ok"
    assert registry.name(field) == ("owner", "pool", 0)


def test_every_refused_name_is_told(registry: Registry) -> None:
    """With its owner, so that a person can decide."""
    registry.hold("s:pool", "one", "pool")
    registry.hold("q:pool", "two", "pool")
    registry.hold("t:sing", "three", "x")
    told = registry.register("echo", "sing")
    assert told == [b"refused", b"tool-service/pool", b"one", b"queue/pool", b"two", b"tool/sing", b"three"]


@pytest.mark.parametrize(("field", "label"), [("q:pool", b"queue/pool"), ("t:echo", b"tool/echo")])
def test_a_name_that_another_service_of_the_owner_holds_is_refused(registry: Registry, field: str, label: bytes) -> None:
    """Two services would take each other's calls; once it is given up its owner need not wait."""
    registry.hold(field, "owner", "other")
    assert registry.register("echo") == [b"refused", label, b"owner (service other)"]
    registry.hold(field, "owner", "other", registry.now() + 10_000)
    assert registry.register("echo")[0] == b"ok"


def test_a_tool_that_an_operator_published_is_refused(registry: Registry) -> None:
    """Its name means what the operator says."""
    registry.redis.hset(registry.keys.items, mapping={"tool/sing": "{}", "tool/unrelated": "{}"})
    registry.redis.expire(registry.keys.items, 60)
    assert registry.register("echo", "sing") == [b"refused", b"tool/sing", b"operator"]
    assert registry.register("echo")[0] == b"ok"


def test_a_queue_that_is_left_stays_its_owners_for_a_while(registry: Registry) -> None:
    """Requests may still wait in it; the new one is held."""
    registry.register()
    before = registry.now()
    registry.register(queue="elsewhere", start=1)
    owner, service, free_at = registry.name("q:pool")
    assert (owner, service) == ("owner", "pool")
    assert before + COOLDOWN <= free_at <= registry.now() + COOLDOWN
    assert registry.name("q:elsewhere") == ("owner", "pool", 0)
    assert registry.redis.hget(registry.keys.instances("pool"), "queue") == b"elsewhere"
    registry.register(queue="elsewhere", start=1)
    assert registry.name("q:elsewhere") == ("owner", "pool", 0)


def test_tools_that_no_worker_serves_any_more_are_given_up(registry: Registry) -> None:
    """When the last worker that had published them comes with another publication; those that both have stay."""
    registry.register("echo", "sing")
    registry.register("echo", digest="d2", document="{2}", start=1)
    assert registry.name("t:echo")[2] == 0
    assert registry.name("t:sing")[2] > registry.now()
    assert not registry.redis.hexists(registry.keys.instances("pool"), "d:d1")
    assert not registry.redis.hexists(registry.keys.instances("pool"), "n:d1")
    assert registry.redis.hget(registry.keys.instances("pool"), "current") == b"d2"


@pytest.mark.parametrize("field", ["s:pool", "q:pool", "t:echo"])
@pytest.mark.parametrize("owner", ["evil", "owner"])
def test_a_name_that_is_held_for_no_service_is_free(registry: Registry, field: str, owner: str) -> None:
    """A service with a row or a table holds its names, and nobody would ever give up those of one that does not exist."""
    registry.hold(field, owner, "nosuch")
    for key, name in ((registry.keys.services, "nosuch"), (registry.keys.instances("nosuch"), "owner")):
        registry.redis.hset(key, name, "-{}")
        assert registry.register("echo", holders=("nosuch",))[0] == b"refused"
        registry.redis.delete(key)
    assert registry.register("echo")[0] == b"refused", "the script can't look at tables that it was not given"
    assert registry.register("echo", holders=("other", "nosuch"))[0] == b"ok"
    assert registry.name(field) == ("owner", "pool", 0)


@pytest.mark.parametrize("key", ["tool/echo", "tool-service/pool"])
def test_a_document_takes_a_name_that_is_held_for_no_service(registry: Registry, key: str) -> None:
    """Like a registration; a service with a row or a table holds its names."""
    keys = registry.keys
    registry.hold("t:echo" if key == "tool/echo" else "s:pool", "evil", "nosuch")

    def put(*holders: str) -> Any:
        held = (keys.instances(holder) for holder in holders)
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log, keys.items, *held)
        return registry.redis.eval(
            scripts.CHANGE.source, len(tables), *tables, keys.prefix, "put", 60_000, COOLDOWN, "", 1, 1, key, "*", "{}"
        )

    for table, name in ((keys.services, "nosuch"), (keys.instances("nosuch"), "owner")):
        registry.redis.hset(table, name, "-{}")
        assert put("nosuch") == [b"refused", b"evil"]
        registry.redis.delete(table)
    assert put() == [b"refused", b"evil"], "the script can't look at tables that it was not given"
    assert put("other", "nosuch") == [b"ok", 1]
    assert registry.redis.hkeys(keys.items) == [key.encode()]


def test_a_cooldown_holds_after_its_service(registry: Registry) -> None:
    """A name that was given up stays its owner's for a while, though no service has it."""
    registry.hold("t:echo", "another", "nosuch", registry.now() + 10_000)
    assert registry.register("echo", holders=("nosuch",)) == [b"refused", b"tool/echo", b"another"]


@pytest.mark.parametrize("document", ['{"service":{"id":"pool"},"tools":[],"owner":"pool","digest":"evil"}', b"\xff\x00{junk"])
def test_an_instance_without_a_lease_counts_as_gone(registry: Registry, document: str | bytes) -> None:
    """Nothing would ever sweep it out, so the next registration does, with the publication and the names that it alone had."""
    registry.register("echo")
    table = registry.keys.instances("pool")
    registry.redis.hset(table, mapping={"i:ghost": "999999999999:evil", "d:evil": document, "n:evil": "echo\nsing"})
    registry.hold("t:sing", "owner", "pool")
    registry.register("echo", instance="second")
    assert registry.redis.hget(registry.keys.services, "pool") == b"+{1}"
    fields = {b"owner", b"queue", b"scale_to_zero", b"current", b"i:mine", b"i:second", b"d:d1", b"n:d1"}
    assert set(registry.redis.hkeys(table)) == fields
    assert registry.name("t:echo")[2] == 0
    assert registry.name("t:sing")[2] > registry.now(), "it is given up, as by a worker that leaves"


def test_a_publication_without_names_goes_with_its_last_instance(registry: Registry) -> None:
    """Though nothing says which tools it had."""
    registry.redis.hset(registry.keys.instances("pool"), mapping={"i:ghost": "9:evil", "d:evil": "{}", "d:other": "{}"})
    registry.register()
    assert not {b"d:evil", b"d:other"} & set(registry.redis.hkeys(registry.keys.instances("pool")))


def test_a_service_ends_with_its_last_living_instance(registry: Registry) -> None:
    """One without a lease does not keep it listed."""
    registry.register()
    registry.redis.hset(registry.keys.instances("pool"), "i:ghost", "9:d1")
    registry.unregister("pool/mine")
    assert not registry.redis.exists(registry.keys.services, registry.keys.instances("pool"))


def test_a_service_without_workers_is_remembered(registry: Registry) -> None:
    """With its queue and its owner, when its last worker went, and whether it left by itself; until a worker serves it again."""

    def told() -> list[str]:
        return (registry.redis.hget(registry.keys.meta, "gone") or b"").decode().split("\n")

    ours = ("left", "died", "swept")
    for service in ours:
        registry.register(service=service, queue="other" if service == "left" else "", owner=f"of {service}")
        registry.register(service=service, instance="second", queue="other" if service == "left" else "", owner=f"of {service}")
    registry.unregister(*(f"{service}/second" for service in ours if service != "left"))
    before = registry.now()
    assert told() == [""]
    registry.leave("left", "other", "left/mine")
    registry.leave("left", "other", "left/second")
    registry.unregister("died/mine", "died")
    registry.redis.zadd(registry.keys.live, {"swept/mine": 1})
    registry.sweep("swept/mine")
    words = [line.split(" ", 4) for line in told()]
    assert all(before <= int(each.pop(2)) <= registry.now() for each in words)
    assert words == [["left", "other", "1", "of left"], ["died", "died", "0", "of died"], ["swept", "swept", "0", "of swept"]]
    registry.unregister("died/", "forgotten")
    assert [line.split(" ")[0] for line in told()] == ["left", "swept"]
    for service in ours:
        registry.register(service=service, owner=f"of {service}")
    assert not registry.redis.hexists(registry.keys.meta, "gone")


def test_what_is_remembered_of_services_is_bounded(registry: Registry) -> None:
    """The newest 500 of the last day, and no line that can't be read."""
    now, day = registry.now(), 86_400_000
    times = {"old": now - day - 1, "future": now + day + 60_000}
    times |= {f"s{number}": now - 1_000 + number for number in range(499)}
    lines = ["", "junk", f"a b {'9' * 30} 1 x", f"no left {now} 2 x", *(f"{name} q {at} 1 owner" for name, at in times.items())]
    registry.register()
    registry.redis.hset(registry.keys.meta, "gone", "\n".join(lines))
    registry.unregister("pool/mine")
    found = registry.redis.hget(registry.keys.meta, "gone").decode().split("\n")
    assert [line.split(" ")[0] for line in found] == [*(f"s{number}" for number in range(499)), "pool"]
    registry.register(service="last")
    registry.unregister("last/mine")
    found = registry.redis.hget(registry.keys.meta, "gone").decode().split("\n")
    assert [line.split(" ")[0] for line in found] == [*(f"s{number}" for number in range(1, 499)), "pool", "last"]
    registry.register(service="long", owner="x" * 1024)
    registry.unregister("long/mine")
    assert b"long" not in registry.redis.hget(registry.keys.meta, "gone")


def test_a_service_without_a_queue_of_its_own_is_swept(registry: Registry) -> None:
    """A queue without a name is the service's, as for those who look up the keys."""
    registry.redis.hset(registry.keys.instances("pool"), mapping={"i:mine": "1:d1", "queue": ""})
    registry.redis.zadd(registry.keys.live, {"pool/mine": 1, "other/mine": 1})
    registry.hold("q:pool", "", "pool")
    assert registry.sweep("pool/mine", "other/mine") == 2
    assert not registry.redis.exists(registry.keys.live, registry.keys.instances("pool"))
    assert registry.name("q:pool")[2] > registry.now()


@pytest.mark.parametrize(("ahead", "stays"), [(7_100_000, True), (7_300_000, False), (float("inf"), False), (float("-inf"), False)])
def test_a_lease_that_no_worker_can_have_has_ended(registry: Registry, ahead: float, stays: bool) -> None:
    """Twice the longest lease from now is later than any beat sets it, and one without an end would stay for good."""
    registry.register()
    registry.redis.zadd(registry.keys.live, {"pool/mine": registry.now() + ahead})
    assert registry.sweep("pool/mine") == (not stays)
    assert registry.redis.hexists(registry.keys.services, "pool") is stays


def test_instances_that_lost_their_leases_come_back(registry: Registry) -> None:
    """A worker whose lease was lost with the others' registers again, and its publication has its place in the order of starts."""
    registry.register()
    registry.register(instance="second", digest="d2", document="{2}")
    registry.redis.delete(registry.keys.live)
    registry.register(start=1)
    registry.register(instance="second", digest="d2", document="{2}", start=2)
    assert registry.redis.hget(registry.keys.services, "pool") == b"+{2}"
    assert {b"i:mine", b"i:second"} <= set(registry.redis.hkeys(registry.keys.instances("pool")))


def test_a_name_is_free_from_the_end_of_its_cooldown_on_fakeredis(monkeypatch: pytest.MonkeyPatch, namespace: str) -> None:
    """To the millisecond, by a clock that stands still."""
    monkeypatch.setattr(time, "time", lambda: 1_800_000_000.0)
    registry = Registry(ScriptPlace(FakeServer(), namespace))
    registry.hold("s:pool", "another", "pool", 1_800_000_000_001)
    assert registry.register()[0] == b"refused"
    registry.hold("s:pool", "another", "pool", 1_800_000_000_000)
    assert registry.register()[0] == b"ok"
