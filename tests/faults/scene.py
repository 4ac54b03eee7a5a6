"""A namespace in which every kind of key exists, and a run of each script in it."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from redis.crc import key_slot

from toolbus.bus.broker.held.document import Change, Listing, Shape, packed
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys

LATER = 10_000_000_000


class Run(NamedTuple):
    """A script with what it is given, in the scene; ``before`` is what the scene has besides."""

    script: scripts.Script
    keys: tuple[str, ...]
    args: tuple[Any, ...]
    before: tuple[tuple[Any, ...], ...] = ()


class Scene:
    """A namespace in which every kind of key exists: a worker ``mine`` that lives, one that is dead, and work in every state."""

    def __init__(self, namespace: str) -> None:
        self.keys = Keys(namespace)
        self.slot = key_slot(self.keys.live.encode())

    def build(self, now: int) -> list[tuple[Any, ...]]:
        """The commands that make it."""
        keys = self.keys
        queue, fence = keys.queue("pool"), keys.fence("pool")
        tables = [
            ("HSET", keys.services, "pool", "+{}"),
            ("HSET", keys.names, *(word for name in ("s:pool", "q:pool", "t:tool") for word in (name, "owner\npool\n0"))),
            ("HSET", keys.meta, "token", "t.1", "start", 3),
            ("HSET", keys.items, "toolkit/x", "{}"),
            ("HSET", keys.recorded, "recorded/x", "{}"),
            ("HSET", keys.instances("pool"), "owner", "owner", "queue", "pool", "scale_to_zero", 0, "d:dg", "{}", "n:dg", "tool"),
            ("HSET", keys.instances("pool"), "i:mine", "1:dg", "i:dead", "2:dg"),
            ("XADD", keys.log, "1-0", "op", "up"),
            ("SADD", keys.paused, "other"),
            ("ZADD", keys.live, now + LATER, "pool/mine", 1, "pool/dead"),
            ("SET", keys.pulse, f"{now} 1"),
            ("HSET", fence, "generation", "0.x", "c:mine", 5, "l:mine", LATER, "c:dead", 5, "l:dead", 1000),
        ]
        queued = [
            ("XGROUP", "CREATE", queue, "g", "0", "MKSTREAM"),
            ("XGROUP", "CREATE", keys.queue("side"), "g", "0", "MKSTREAM"),
            ("XADD", keys.queue("side"), "1-0", "r", "{}", "d", now + LATER),
            *(("XADD", queue, f"{number}-0", "r", "{}", "d", now + LATER) for number in range(1, 7)),
            *(
                ("XREADGROUP", "GROUP", "g", consumer, "COUNT", count, "STREAMS", queue, ">")
                for consumer, count in (("mine", 2), ("dead", 1), ("~back", 1), ("~to:mine", 1))
            ),
        ]
        streams = [keys.replies("a1"), keys.replies("a2"), keys.call("c1"), keys.call("c3"), keys.dead_letters("pool")]
        strings = [keys.started("c1"), *(keys.pause("pool", f"{number}-0") for number in (3, 4, 5))]
        return [
            *tables,
            *queued,
            *(("XADD", stream, "1-0", "o", "1") for stream in streams),
            *(("SET", key, "1 0 0") for key in strings),
            ("SET", keys.session("pool", "one"), "mine"),
            ("SET", keys.session("pool", "two"), "dead"),
            ("ZADD", keys.cancelled("pool"), 1, "expired"),
            ("HSET", keys.shared("digest"), "id", "c1", "digest", "d", "entry", "6-0", "c:c1", "a1", "c:c2", "a2"),
            ("HSET", keys.confirmation("r1"), "doc", "{}", "to", "agent a1", "asked", 1, "expires", now + LATER),
            ("ZADD", keys.confirmations, 1, "r1"),
            ("HSET", keys.conversation("cd"), "name", '["u","c"]', "born", "b", "first", 0, "next", 2, "m:0", "1 {}", "m:1", "1 {}"),
            ("ZADD", keys.conversations, now + LATER, "cd"),
            ("HSET", keys.creation("w"), "token", "t", "spec", "s", "about", "", "status", "queued", "created", 1),
            ("HSET", keys.creation("r"), "token", "t", "spec", "s", "status", "running", "claim", "mine", "until", 1, "lease", 1),
            ("ZADD", keys.creations_queued, 1, "w"),
            ("ZADD", keys.creations_running, 1, "r"),
            ("ZADD", keys.creations_ended, now + LATER, "e"),
            ("HSET", keys.order("pool"), "one", "1-0 2-0"),
            ("HSET", keys.snapshot("pool", "one"), "t", "t", "c", "c0", "d", "{}"),
            ("HSET", keys.flushes("a1"), 63, "63 -"),
            ("XADD", keys.recent, "1-0", "c", "{}"),
            ("XADD", keys.ended, "1-0", "c", "{}"),
            ("XADD", keys.answers("q1"), "1-0", "a", "{}"),
            ("SET", keys.rate("u"), now),
            ("HSET", keys.quota("u"), "period", 1, "used", 1),
            ("HSET", keys.usage("today"), "calls", 1),
        ]

    def runs(self, now: int) -> list[Run]:
        """Every script, in the cases that go different ways."""
        keys = self.keys
        queue, fence, cancelled, wake = keys.queue("pool"), keys.fence("pool"), keys.cancelled("pool"), keys.wake("pool")
        instances, record, letters = keys.instances("pool"), keys.shared("digest"), keys.dead_letters("pool")
        one, two, request = keys.replies("a1"), keys.replies("a2"), keys.confirmation("r1")
        mark = keys.started("c1")
        owners = (keys.session("pool", "one"), keys.session("pool", "two"))
        kept = (queue, fence, owners[0], keys.snapshot("pool", "one"))
        tables = (keys.services, keys.names, keys.meta, keys.items, keys.live, keys.log)
        service = (*tables, instances, queue, fence, cancelled)
        common = (keys.prefix, "token", 60_000, 0)
        known = ("mine", "0.x", 5)
        last = (("HDEL", instances, "i:dead"), ("HDEL", keys.names, "t:tool"))
        share = (record, queue, keys.call("c3")), ("c3", "d", "a1", 100, 60_000, "{}", 1000, "", keys.prefix)
        leave = (queue, cancelled, record), ("1-0", "c1", 60_000, wake, "cancelled", "c2", keys.prefix, 0)
        ended = (*common, "pool/dead", "ended", now, LATER, LATER)
        return [
            Run(scripts.PUBLISH, (keys.flushes("a1"), queue), (0, 1000, "", 2, 100, 60_000, "{}")),
            Run(scripts.CANCEL, (queue, cancelled), ("1-0", "c1", 60_000, wake)),
            Run(scripts.CANCEL, (queue, cancelled), ("6-0", "c1", 60_000, wake)),
            Run(scripts.SHARE, *share),
            Run(scripts.SHARE, *share, (("DEL", keys.call("c1")),)),
            Run(scripts.CANCEL, *leave),
            Run(scripts.CANCEL, *leave, (("HDEL", record, "c:c1"), ("HSET", record, "entry", "1-0"))),
            Run(scripts.SEND, (keys.live,), (one, "[]", two, "[]")),
            Run(scripts.FINISH, (queue, fence), (*known, 2, "1-0", "2-0", one, "[]", two, "[]")),
            Run(
                scripts.FINISH_EACH,
                (queue, fence, record, mark),
                (*known, 2, "1-0", 1, "2-0", 1, "!3", 2, 1, "c1", 1, "1 0 0", one, 1, 1, "{}", two, 1, 2, "{}"),
            ),
            Run(scripts.RENEW, (queue, fence), (*known, "1-0", 1)),
            Run(scripts.REAP, (queue, fence, keys.live, keys.pulse), ("mine", "pool", 10, LATER, 0, 0, 99, 0, keys.pause("pool", ""))),
            Run(scripts.START, (queue, fence, mark), (*known, "1-0", 1, "run", 1000)),
            Run(
                scripts.BURY,
                (queue, fence, letters, record, mark),
                (*known, "1-0", "r", 1, "e", "{}", 100, 1000, one, "[]", "c1", "1 0 0"),
            ),
            Run(scripts.TAKE, (queue, keys.queue("side")), ("mine", 5)),
            Run(scripts.REDRIVE, (letters, queue), ("1-0", 100, 1000, "{}")),
            Run(scripts.COUNT, (queue, fence), (*known, "1-0", 2)),
            Run(scripts.HAND_BACK, (queue, fence, keys.pause("pool", "1-0")), (*known, wake, "pool", "1-0", 1, 60_000, "2-0", 1, "")),
            Run(scripts.HAND_OVER, (queue, fence, keys.live, instances), ("mine", "pool", "0.x", wake, "1-0", 1, "dg")),
            Run(
                scripts.HAND_OVER,
                (queue, fence, keys.live, instances),
                ("mine", "pool", "0.x", wake, "1-0", 1, "dg"),
                (("HSET", instances, "i:next", "3:dg"), ("ZADD", keys.live, now + LATER, "pool/next")),
            ),
            Run(scripts.OUTLIVE, (queue, fence, keys.live, instances), ("mine", "pool", "dg", "1-0")),
            Run(scripts.RETIRE, (queue, fence, cancelled, instances, keys.live), ("mine", "pool")),
            Run(scripts.RETIRE, (queue, fence, cancelled, instances, keys.live), ("dead", "pool"), (("HDEL", instances, "i:dead"),)),
            Run(
                scripts.OWN,
                (queue, fence, keys.live, keys.pulse, instances, *owners),
                ("mine", "pool", "0.x", 1000, 1000, wake, 6, "1-0", 1, 0, 7, "2-0", 1, 1),
            ),
            Run(scripts.DISOWN, owners, ("mine", "closed")),
            Run(scripts.HAND_BACK, (queue, fence), ("mine", "", "", wake, "pool", "", 10, "")),
            Run(scripts.REGISTER, service, (*common, "pool", "mine", "owner", "dg2", "{}", 1000, "new", 0, "pool", 0, "tool")),
            Run(
                scripts.REGISTER,
                (*service, keys.instances("gone")),
                (*common, "pool", "mine", "owner", "dg2", "{}", 1000, "new", 0, "pool", 0, "tool"),
                (("HSET", keys.names, "t:tool", "evil\ngone\n0"),),
            ),
            Run(scripts.UNREGISTER, service, (*common, "pool/mine")),
            Run(scripts.UNREGISTER, service, (*common, "pool/mine"), last),
            Run(scripts.UNREGISTER, service, ended),
            Run(scripts.UNREGISTER, service, ended, (("HDEL", instances, "i:mine"), ("ZREM", keys.live, "pool/mine"))),
            Run(scripts.BEAT, (keys.live, keys.paused, keys.pulse, queue, fence), (1000, 60_000, "pool/mine")),
            Run(scripts.CHANGE, (*tables, keys.items), (*common, "", 1, 1, "toolkit/x", "*", "")),
            Run(
                scripts.CHANGE,
                (*tables, keys.pending, keys.recorded),
                (*common, "", 2, 1, "pending/x", "=", "{}", 2, "recorded/x", "={}", "{ }"),
            ),
            Run(scripts.CHANGE, (*tables, keys.items), (*common, "owner", 1, 1, "toolkit/y", "*", "{}")),
            Run(
                scripts.CHANGE,
                (*tables, keys.items),
                (*common, "", 1, 1, "tool-service/pool", "!", ""),
                (("HDEL", keys.names, "t:tool"),),
            ),
            Run(scripts.OVERVIEW, (queue, letters, keys.paused, instances, keys.live, fence), ("pool",)),
            Run(
                scripts.OVERVIEW,
                2 * (queue, letters, keys.paused, instances, keys.live, fence),
                ("pool", "pool"),
            ),
            Run(scripts.PROBE, (), ()),
            Run(scripts.APPEND, (keys.recent,), (100, 60_000, 2, "c", "{}")),
            Run(scripts.APPEND, (keys.ended,), (100, 60_000, 2, "c", "{}")),
            Run(scripts.APPEND, (keys.answers("q1"),), (100, 60_000, 2, "a", "{}")),
            Run(scripts.ROUTES, (keys.hosts, keys.routes("h1"), keys.single("one")), ("h1", 2_000, 1, "one", "{}", "two")),
            Run(scripts.ROUTES, (keys.hosts, keys.routes("h1"), keys.single("one")), ("h1", 0, 0)),
            Run(scripts.ROUTES, (keys.hosts, keys.routes("h1"), keys.single("one")), ("h1", "", 0)),
            Run(scripts.APPEND, (keys.output("one"),), (100, 60_000, 4, "h", "h1", "l", "a line")),
            Run(scripts.APPEND, (keys.results("d1"),), (64, 60_000, 0, 1_000_000, "{}")),
            Run(scripts.PAUSE, (keys.paused,), ("pool", 1000)),
            Run(scripts.BURY, (queue, fence, letters), ("", "", "", "6-0", *6 * ("",), one, "[]", "", "")),
            Run(scripts.COUNT_USES, (keys.rate("u"),), ("rate", 10, 1000)),
            Run(scripts.COUNT_USES, (keys.quota("u"),), ("quota", 10, 100_000)),
            Run(scripts.COUNT_USES, (keys.usage("today"),), ("usage", 100, 60_000, '["",""]', '["u","t"]', 1, 0, 5, 5)),
            Run(scripts.ASK, (request, keys.confirmations), ("r1", "{}", "agent a1", 60_000, 60_000, 100, keys.confirmed)),
            Run(scripts.ANSWER, (request, keys.confirmations), ("r1", "yes", "token", keys.prefix, 1000, keys.confirmed)),
            Run(scripts.ASK, (request, keys.confirmations), ("r1", "", "", 0, 60_000, 100, keys.confirmed)),
            Run(scripts.EXTEND, (keys.pause("pool", "3-0"), keys.started("c1")), ("1 0 0", 1000, 1000)),
            Run(scripts.LISTEN, (one,), (1000,)),
            Run(scripts.MEND, (queue, fence, keys.live, keys.paused), ("stream", "string", "zset", "string")),
            *self._held(),
            Run(scripts.RESCUE, (queue,), ("", 1, "wake", "pool")),
            Run(scripts.LINE, (queue, keys.order("pool")), ("one", "6-0", "1-0")),
            Run(scripts.SAVE, kept, (*known, "1-0", 1, 1, "t", "c1", "{}", 60_000)),
            Run(scripts.SAVE, kept, (*known, "1-0", 1, 0, "", "", "", 60_000)),
            Run(scripts.LOAD, kept[3:], (1000, 64)),
            Run(scripts.LINE, (queue, keys.order("pool"), fence, keys.live), ("one", "", "", "other", "pool")),
        ]

    def _held(self) -> list[Run]:
        """The changes of held documents."""
        keys = self.keys
        conversation, listing = (keys.conversation("cd"), "cd"), Listing(keys.conversations, 60_000, most=100)
        held = (("HSET", keys.conversation("cd"), "holder", "me"),)
        conversations, tasks = Shape("holder", "next", "m:", 100, timed=True), Shape("claim", "lines", "l:", 5, gaps=True)
        queued, running = Listing(keys.creations_queued, 0, 60_000), Listing(keys.creations_running, 1000, 60_000)
        off = Listing(keys.creations_queued), Listing(keys.creations_running)
        waits, runs = (keys.creation("w"), "w"), (keys.creation("r"), "r")
        told = {"tells": (keys.creations_told, "ended w")}
        used = {"lease": 1000, "ttl": 60_000, "stamps": ("used",), "listings": (listing,)}
        end = Change(by="anyone", lease=0, ttl=60_000, values={"status": "done"}, stamps=("ended",), **told)
        ended = msgspec.structs.replace(end, listings=(Listing(keys.creations_ended, 0, 60_000, 100), *off))
        begins = {"name": '["u","c"]', "born": "me", "first": 0, "next": 0}
        take = Change(token="me", by="next", lease=1000, ttl=60_000, listings=(running, off[0]), **told)
        made: list[tuple[scripts.Script, Shape, tuple[str, str], Change, tuple[tuple[Any, ...], ...]]] = [
            (scripts.WRITE, conversations, conversation, Change(token="me", by="next", begins=begins, told=("born",), **used), ()),
            (scripts.WRITE, conversations, (keys.conversation("new"), "new"), Change(token="me", by="next", begins=begins, **used), ()),
            (scripts.WRITE, conversations, conversation, Change(token="me", records=("{}",), number=2, keep=1, **used), held),
            (scripts.SETTLE, conversations, conversation, Change(token="me", lease=1000, ttl=60_000), held),
            (scripts.SETTLE, conversations, conversation, Change(token="me", lease=0, ttl=60_000), held),
            (scripts.SETTLE, conversations, conversation, Change(by="anyone", ttl=0, listings=(Listing(keys.conversations),)), ()),
            (scripts.SETTLE, conversations, (keys.conversation("none"), "cd"), Change(by="anyone", ttl=0, listings=(listing,)), ()),
            (
                scripts.WRITE,
                tasks,
                (keys.creation("n"), "n"),
                Change(by="new", ttl=60_000, values={"token": "t"}, listings=(queued, off[1]), room=100, **told),
                (),
            ),
            (scripts.WRITE, tasks, waits, take, ()),
            (scripts.WRITE, tasks, runs, take, ()),
            (
                scripts.WRITE,
                tasks,
                runs,
                Change(token="mine", values={"price": 5}, records=("a line",), lease=1000, ttl=60_000, listings=(running,)),
                (),
            ),
            (scripts.SETTLE, tasks, runs, msgspec.structs.replace(ended, by="holder", token="mine"), ()),
            (scripts.SETTLE, tasks, runs, Change(token="mine", lease=0, ttl=60_000, listings=(queued, off[1]), **told), ()),
            (scripts.SETTLE, tasks, waits, ended, ()),
            (scripts.SETTLE, tasks, runs, Change(by="anyone", values={"cancel": 1}, **told), ()),
        ]
        return [Run(script, *packed(shape, *place, change), before) for script, shape, place, change, before in made]


CASES = [f"{at}-{run.script.name}" for at, run in enumerate(Scene("x").runs(0))]
"""The names of the runs, in their order."""
