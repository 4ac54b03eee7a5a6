"""Held documents on a server: who may change one, what a change does to it, and when nothing is changed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, get_args

import msgspec
import pytest
import redis

from tests.servers import eventually
from toolbus.bus.broker.held.document import By, Change, HeldDocuments, Listing, Outcome, Shape, Word
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.links import ShortLink

pytestmark = pytest.mark.anyio

LONG = 60_000
SHAPE = Shape("holder", "next", "r:", 4)
MEMBER = "d"

# Who may change and delete a document: that nobody has begun, that nobody holds, that "me" holds, that another process holds, and in whose
# place a stranger has put something else.
STATES = ("absent", "free", "mine", "held", "strange")
WRITTEN: dict[By, tuple[Word, ...]] = {
    "holder": ("gone", "lost", "kept", "lost", "damaged"),
    "next": ("kept", "kept", "kept", "held", "damaged"),
    "new": ("kept", "other", "other", "other", "damaged"),
    "anyone": ("gone", "kept", "kept", "kept", "damaged"),
}
DELETED: dict[By, tuple[Word, ...]] = {
    "holder": ("gone", "lost", "kept", "lost", "lost"),
    "next": ("gone", "kept", "kept", "held", "kept"),
    "new": ("gone", "other", "other", "other", "other"),
    "anyone": ("gone", "kept", "kept", "kept", "kept"),
}


class Place:
    """A document of a namespace, and a set that lists it."""

    def __init__(self, client: redis.Redis, namespace: str, link: ShortLink) -> None:
        self.redis = client
        self.key, self.list = Keys(namespace).conversation(MEMBER), Keys(namespace).conversations
        self.listing = Listing(self.list, LONG)
        self._link = link

    def documents(self, **shape: Any) -> HeldDocuments:
        """Return the documents of a shape."""
        return HeldDocuments(self._link, SHAPE._replace(**shape))

    async def write(self, **change: Any) -> Outcome:
        """Write to the document."""
        return await self.documents().write(self.key, MEMBER, Change(**change))

    async def settle(self, **change: Any) -> Outcome:
        """Make a change that a full server makes, too."""
        return await self.documents().settle(self.key, MEMBER, Change(**change))

    async def take(self, token: str, lease: int = LONG) -> Outcome:
        """Hold the document, or begin it."""
        return await self.write(token=token, by="next", lease=lease, ttl=LONG, listings=(self.listing,))

    async def bring(self, state: str) -> None:
        """Bring the document into one of the states."""
        if state == "strange":
            self.redis.set(self.key, "a stranger's", px=LONG)
        elif state != "absent":
            assert (await self.take("me" if state == "mine" else "other", 0 if state == "free" else LONG)).kept

    def shown(self) -> dict[str, str]:
        """Return the fields of the document."""
        return {field.decode(): value.decode() for field, value in self.redis.hgetall(self.key).items()}

    def log(self) -> dict[str, str]:
        """Return the records of its log, by name."""
        return {field: value for field, value in self.shown().items() if field.startswith(SHAPE.record)}

    def dumps(self) -> tuple[bytes | None, float | None]:
        """Return all that a change can change here."""
        return self.redis.dump(self.key), self.redis.zscore(self.list, MEMBER)


@pytest.fixture
async def held(server: str, namespace: str) -> AsyncIterator[Place]:
    """A document that is not there yet, on every kind of server."""
    link = ShortLink(Connector(server))
    await link.connect()
    with redis.Redis.from_url(server) as client:
        yield Place(client, namespace, link)
    link.close()
    await link.wait_closed()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("by", get_args(By))
async def test_a_document_is_written_by_who_may_change_it_alone(held: Place, by: By, state: str) -> None:
    """Each of those who may ask, in each state of the document; what is refused changes nothing."""
    await held.bring(state)
    before = held.dumps()
    found = await held.write(token="me", by=by, ttl=LONG, values={"v": 1}, listings=(held.listing,))
    assert found.word == WRITTEN[by][STATES.index(state)]
    assert found.kept or found.word == "held" or (found.first, found.next) == (0, 0)
    assert (held.dumps() == before) is not found.kept
    assert not found.kept or held.shown()["v"] == "1"


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("by", get_args(By))
async def test_a_document_is_deleted_by_who_may_change_it_alone(held: Place, by: By, state: str) -> None:
    """One that is gone is listed no longer; a stranger's value is deleted in its place."""
    await held.bring(state)
    before = held.dumps()
    found = await held.settle(token="me", by=by, ttl=0, listings=(Listing(held.list),))
    assert found.word == DELETED[by][STATES.index(state)]
    assert held.dumps() == ((None, None) if found.kept else before)


@pytest.mark.parametrize("script", [scripts.WRITE, scripts.SETTLE])
def test_the_script_knows_the_words_of_the_table(script: scripts.Script) -> None:
    """The script answers with the words that its users know, and with no others."""
    answers = re.findall(r"(?:answer|take_off)\(([^)]*'[^)]*)\)", script.source)
    assert {word for answer in answers for word in re.findall(r"'(\w+)'", answer)} == set(get_args(Word))


async def test_a_lease_is_renewed_by_its_holder_and_ends_by_itself(held: Place) -> None:
    """Until it ends nobody else takes the document, and is told when it ends; afterwards the one before may not write, renew or let go."""
    begun = await held.take("one")
    refused = await held.take("two")
    assert (refused.word, refused.first) == ("held", begun.now + LONG)
    renewed = await held.settle(token="one", lease=2 * LONG)
    assert (await held.take("two")).first == renewed.now + 2 * LONG
    held.redis.hset(held.key, "until", renewed.now)
    assert (await held.take("two")).kept
    after = held.dumps()
    assert (await held.write(token="one", values={"v": "late"}, records=("late",))).word == "lost"
    assert (await held.settle(token="one", lease=LONG)).word == "lost"
    assert (await held.settle(token="one", ttl=0)).word == "lost"
    assert held.dumps() == after


async def test_a_document_that_is_let_go_of_is_free_at_once(held: Place) -> None:
    """Its values stay for the next process, and nothing was written but what was asked for."""
    await held.take("one")
    await held.write(token="one", values={"v": "kept"})
    assert held.shown().keys() == {"holder", "until", "lease", "v"}
    held.documents().settle_soon(held.key, MEMBER, Change(token="one", lease=0))
    assert (await held.write(token="two", by="next", told=("v", "none"))).told == [b"kept", None]


@pytest.mark.parametrize(("ahead", "length"), [(LONG, 1_000), (LONG, -1), (LONG, "x")], ids=["clock", "negative", "no number"])
async def test_a_lease_that_ends_later_than_it_is_long_holds_nothing(held: Place, ahead: int, length: object) -> None:
    """It was written before the server's clock was set back, or by a stranger: nobody waits for its end."""
    found = await held.take("one")
    held.redis.hset(held.key, mapping={"until": found.now + ahead, "lease": length})
    assert (await held.take("two")).kept


async def test_a_change_waits_for_what_it_expects(held: Place) -> None:
    """A field that another version of the document has is told as it is, and nothing is written; one that is missing is empty."""
    await held.write(token="one", by="next", ttl=LONG, values={"version": 1})
    before = held.dumps()
    found = await held.write(token="one", expected={"version": 2}, values={"version": 3}, told=("version",))
    assert (found.word, found.told, held.dumps()) == ("other", [b"1"], before)
    assert (await held.write(token="one", expected={"version": 1, "none": ""}, values={"version": 2})).kept
    assert held.shown()["version"] == "2"


async def test_what_a_document_begins_with_stays_as_it_became(held: Place) -> None:
    """Only who makes it sets its first values; the server's time is set each time."""
    begin = {"by": "next", "ttl": LONG, "begins": {"born": "first", "name": "n"}, "stamps": ("used",), "told": ("born", "name")}
    first = await held.write(token="one", **begin)
    await held.settle(token="one", lease=0)
    second = await held.write(token="two", **begin | {"begins": {"born": "second", "name": "m"}})
    assert (first.told, second.told) == ([b"first", b"n"], [b"first", b"n"])
    assert held.shown()["used"] == str(second.now)


async def test_a_log_grows_at_its_end_and_is_cut_at_its_beginning(held: Place) -> None:
    """Records that are there already stay as they are, those before the first kept one go, and numbers are never used again."""
    await held.take("one")
    assert (await held.write(token="one", records=("a", "b"), number=0))[2:4] == (0, 2)
    again = await held.write(token="one", records=("x", "y", "c"), number=0, keep=1)
    assert (again.word, again.first, again.next) == ("kept", 1, 3)
    assert held.log() == {"r:1": "b", "r:2": "c"}
    assert (await held.write(token="one", keep=9))[2:4] == (3, 3)
    assert held.log() == {}


async def test_a_log_has_no_holes_unless_its_shape_allows_them(held: Place) -> None:
    """A writer that lost records in between is told the number to go on with; a shape may allow numbers to be left out."""
    await held.take("one")
    before = held.dumps()
    found = await held.write(token="one", records=("late",), number=2, values={"v": 1})
    assert (found.word, found.first, found.next, held.dumps()) == ("behind", 0, 0, before)
    change = Change(token="one", records=("late",), number=2)
    assert (await held.documents(gaps=True).write(held.key, MEMBER, change)).next == 3


async def test_a_log_of_a_process_that_counts_its_end_alone_begins_where_it_may(held: Place) -> None:
    """An older process writes no number of the first record: as many are there as the shape allows."""
    await held.take("one")
    for following, first in ((6, 2), (3, 0)):
        held.redis.hdel(held.key, "first")
        held.redis.hset(held.key, "next", following)
        assert (await held.write(token="one"))[2:4] == (first, following)


async def test_a_log_that_claims_more_than_it_may_have_is_damaged(held: Place) -> None:
    """Nobody goes through numbers that a stranger wrote: the document can be deleted only."""
    await held.take("one")
    for first, following in (("0", "1000"), ("5", "4"), ("x", "1"), ("0", "x"), ("0", "-1")):
        held.redis.hset(held.key, mapping={"first": first, "next": following})
        assert (await held.write(token="one", records=("a",))).word == "damaged"
    assert (await held.settle(token="one", ttl=0)).kept


async def test_a_record_has_the_servers_time_where_the_shape_says_so(held: Place) -> None:
    """Its readers tell by it when it was written."""
    await held.take("one")
    found = await held.documents(timed=True).write(held.key, MEMBER, Change(token="one", records=("{}",)))
    assert held.log() == {"r:0": f"{found.now} {{}}"}


async def test_a_document_and_its_lists_end_by_themselves(held: Place) -> None:
    """Each change that says so sets the time to live anew; a list lives as long as what it lists, and no shorter than before."""
    await held.take("one")
    await held.write(token="one", ttl=2 * LONG, listings=(held.listing,))
    assert LONG < held.redis.pttl(held.key) <= 2 * LONG
    await held.write(token="one", ttl=LONG, values={"v": 1}, listings=(held.listing,))
    await held.write(token="one", values={"v": 2})
    assert 0 < held.redis.pttl(held.key) <= LONG < held.redis.pttl(held.list) <= 2 * LONG


async def test_a_list_is_bounded_in_members_and_in_age(held: Place) -> None:
    """The oldest beyond the bound go, and those whose score has passed long ago."""
    now = (await held.take("one")).now
    held.redis.zadd(held.list, {"old": now - 3 * LONG, "past": now - 2 * LONG, "later": now + 2 * LONG})
    await held.write(token="one", ttl=LONG, listings=(Listing(held.list, LONG, past=int(2.5 * LONG)),))
    assert held.redis.zrange(held.list, 0, -1) == [b"past", b"d", b"later"]
    await held.write(token="one", ttl=LONG, listings=(Listing(held.list, LONG, past=int(2.5 * LONG), most=2),))
    assert held.redis.zrange(held.list, 0, -1) == [b"d", b"later"]


async def test_a_document_moves_from_list_to_list_in_one_change(held: Place) -> None:
    """Each list has its own score and bounds, and one that it leaves forgets it."""
    other = f"{held.list}:other"
    now = (await held.take("one")).now
    held.redis.zadd(other, {"x": now, "y": now})
    held.redis.pexpire(other, LONG)
    found = await held.write(token="one", ttl=LONG, listings=(Listing(held.list), Listing(other, LONG, past=LONG, most=2)))
    assert held.redis.zrange(held.list, 0, -1) == []
    assert held.redis.zrange(other, 0, -1, withscores=True) == [(b"y", now), (b"d", found.now + LONG)]


async def test_a_list_of_another_type_is_made_anew(held: Place) -> None:
    """A stranger's value in its place hinders no change."""
    held.redis.set(held.list, "a stranger's")
    assert (await held.take("one")).kept
    assert held.redis.zrange(held.list, 0, -1) == [b"d"]


async def test_a_new_document_needs_room_in_its_lists(held: Place) -> None:
    """With all that its lists have, it is told how many there are; who goes on with one needs no room."""
    other = held.key.removesuffix(MEMBER) + "e"
    change = Change(token="one", by="new", ttl=LONG, values={"v": 1}, listings=(held.listing,), room=1)
    assert (await held.documents().write(held.key, MEMBER, change)).kept
    full = await held.documents().write(other, "e", change)
    assert (full.word, full.first, held.redis.exists(other)) == ("full", 1, 0)
    assert (await held.documents().write(held.key, MEMBER, msgspec.structs.replace(change, by="holder"))).word == "lost"
    assert (await held.documents().write(held.key, MEMBER, msgspec.structs.replace(change, by="next"))).kept


async def test_a_change_is_told_when_it_is_made(held: Place) -> None:
    """A listener to the channel hears of no change that was refused."""
    await held.take("one")
    with held.redis.pubsub() as told:
        told.subscribe(held.list)
        await eventually(told.get_message)
        for token in ("two", "one"):
            await held.write(token=token, values={"v": 1}, tells=(held.list, f"by {token}"))
        heard = await eventually(told.get_message)
        assert heard["data"] == b"by one"


async def test_a_change_that_is_made_again_changes_nothing(held: Place) -> None:
    """An answer that was lost is asked for again: the values, the log and the holder stay as they are."""
    changes = (
        Change(token="one", by="next", expected={"status": ""}, values={"status": "held"}, lease=LONG, ttl=LONG),
        Change(token="one", values={"v": 1}, records=("a", "b"), keep=1, ttl=LONG, listings=(held.listing,)),
        Change(token="one", lease=0),
    )
    for change in changes:
        first = await held.documents().write(held.key, MEMBER, change)
        before = held.shown()
        second = await held.documents().write(held.key, MEMBER, change)
        assert (first.kept, first.first, first.next) == (second.kept, second.first, second.next) == (True, first.first, first.next)
        assert {**held.shown(), "until": ""} == {**before, "until": ""}
