"""An agent's reader: replies, shared calls and the log of the registry in one read."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.broker.fakes import KEYS, SETTINGS, FakeLink
from toolbus.bus.broker.registry.follower import RegistryFollower
from toolbus.bus.broker.replies.reader import ReplyReader
from toolbus.bus.broker.transport.command import ReplyError
from toolbus.bus.values.envelope import Frame, encode, join_frames
from toolbus.bus.values.results import BrokerUnavailable

pytestmark = pytest.mark.anyio


class Reading:
    """The reader of one agent; it is its own listener, shared calls, confirmations and registry follower."""

    def __init__(self) -> None:
        self.link, self.blocking = FakeLink(), FakeLink()
        self.cast: Any = self
        self.position = b"7-0"
        self.said: list[Any] = []
        self.shared: list[tuple[bytes, bytes]] = []
        self.applies = True
        self.link.answers |= {"listen": 0, "DEL": 1}
        self.reader = ReplyReader(
            self.cast.link,
            self.cast.blocking,
            KEYS,
            SETTINGS,
            "agent",
            listener=self.cast,
            shared=self.cast,
            confirmations=self.cast,
            follower=self.cast,
            handed_over=lambda: self.said.append("handed over"),
        )

    @property
    def followed(self) -> bool:
        """Return whether shared calls are read."""
        return bool(self.shared)

    def positions(self) -> list[tuple[bytes, bytes]]:
        """Return the shared calls that are read."""
        return self.shared

    def passed(self, stream: bytes, entry: bytes) -> None:
        """Take note."""
        self.said.append(("passed", stream, entry))

    def addressed(self, stream: bytes, frames: list[Frame]) -> list[Frame]:
        """Pass frames on."""
        return frames

    def answered(self, id: str) -> None:
        """Take note."""
        self.said.append(("confirmed", id))

    async def follow(self, entries: list[Any]) -> bool:
        """Take note."""
        self.said.append(("log", len(entries)))
        return self.applies

    async def load(self) -> None:
        """Take note."""
        self.said.append("loaded")

    def on_frames(self, frames: list[Frame]) -> None:
        """Take note."""
        self.said.append([frame.id for frame in frames])

    def on_replies_lost(self) -> None:
        """Take note."""
        self.said.append("lost")

    async def read(self, answer: Any) -> list[Any]:
        """Read once; what came of it."""
        self.said.clear()
        self.blocking.answers["XREAD"] = lambda keys, args: answer
        await self.reader.read()
        return self.said


def frames(*calls: str) -> list[bytes]:
    """Return the fields of a reply entry."""
    return [b"f", join_frames([encode(Frame(call, "run")) for call in calls])]


async def test_one_read_brings_replies_shared_calls_and_changes() -> None:
    """Frames are handed over first; the next read goes on behind the entries, which are removed when nothing more comes."""
    reading = Reading()
    replies, log = KEYS.replies("agent").encode(), KEYS.log.encode()
    reading.shared = [(b"call", b"3-0")]
    answer = {replies: [[b"8-1", frames("one", "two")], [b"8-2", [b"o", b"1"]]], b"call": [[b"4-0", frames("three")]], log: [[b"1-0", []]]}
    expected = [["one", "two"], [], ("passed", b"call", b"4-0"), ["three"], "handed over", ("log", 1)]
    assert await reading.read(answer) == expected
    assert reading.blocking.args("XREAD") == [("COUNT", 512, "BLOCK", 2000, "STREAMS", replies, log, b"call", b"0-0", b"7-0", b"3-0")]
    assert reading.reader.frames == 3
    await reading.read(None)
    assert reading.blocking.args("XTRIM") == [(KEYS.replies("agent"), "MINID", b"8-3")]
    assert reading.blocking.names == ["XREAD", "XREAD", "XTRIM"]
    assert reading.blocking.args("XREAD")[1][8] == b"8-2"
    assert not reading.reader.resync


@pytest.mark.parametrize(
    ("each", "reads"), [(1, 64), (3, 22), (64, 1), (65_536, 1), (30_000, 3)], ids=["small", "few", "many", "large", "both"]
)
async def test_entries_that_were_read_are_removed_from_a_busy_stream_many_at_once(each: int, reads: int) -> None:
    """A command for each read would cost a lone call as much as its answer; what stays is bounded in number and in bytes."""
    reading = Reading()
    for number in range(1, reads + 1):
        assert "XTRIM" not in reading.blocking.names
        size = each if each > 64 else 1
        entries = [[b"%d-%d" % (number, at), [b"f", b"x" * size]] for at in range(each if each <= 64 else 1)]
        await reading.read({KEYS.replies("agent").encode(): entries})
    assert reading.blocking.names.count("XTRIM") == 1
    await reading.read(None)
    assert reading.blocking.names.count("XTRIM") == 1, "there is nothing left to remove"


@pytest.mark.parametrize("happened", ["disconnected", "resynchronised", "reconnected"])
async def test_another_server_s_entries_are_not_removed_by_a_position_of_the_last(happened: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position belongs to the connection over which its entry was read."""
    reading = Reading()
    await reading.read({KEYS.replies("agent").encode(): [[b"8-1", frames("one")]]})
    if happened == "disconnected":
        monkeypatch.setattr(reading.blocking, "connected", False)
    elif happened == "reconnected":
        reading.reader.resync = True
    else:
        await reading.reader._resynchronise()
    await reading.read(None)
    monkeypatch.undo()
    await reading.read(None)
    assert "XTRIM" not in reading.blocking.names


async def test_what_is_missing_or_unreadable_loads_again() -> None:
    """A gap in the log, or an error of the read; malformed frames and ids are left out."""
    reading = Reading()
    reading.applies = False
    await reading.read({KEYS.log.encode(): [[b"1-0", []]]})
    assert reading.reader.resync
    reading.reader.resync = False
    await reading.read(ReplyError("WRONGTYPE"))
    assert reading.reader.resync
    reading.reader.resync = False
    await reading.read(BrokerUnavailable("lost"))
    assert not reading.reader.resync, "a new connection says so itself"
    replies = KEYS.replies("agent").encode()
    said = await reading.read({replies: [[b"1-0", [b"f", b"nonsense"]], [b"2-0", [b"c", b"id-1"]], [b"3-0", [b"c", b"!"]]]})
    assert said == [[], ("confirmed", "id-1"), [], [], "handed over"]
    assert reading.reader.malformed == 1


async def test_a_stream_whose_ids_are_used_up_is_made_anew() -> None:
    """Otherwise nothing could be added behind it."""
    reading = Reading()
    said = await reading.read({KEYS.replies("agent").encode(): [[b"9999999999999999-0", frames("one")]]})
    assert said == [["one"], "handed over", "lost"]
    assert reading.link.names == ["DEL", "listen"]
    assert reading.reader.resync


async def test_a_stream_that_tells_of_lost_replies_is_read_again_once() -> None:
    """The entry that tells of it stays in the stream, which is read from its start; a stream that is lost once more has another one."""
    reading, replies = Reading(), KEYS.replies("agent").encode()
    for entry, again in ((b"1-0", True), (b"1-0", False), (b"2-0", True)):
        reading.said.clear()
        reading.reader.resync = False
        await reading.read({replies: [[entry, [b"o", b"lost"]], [b"3-0", frames("one")]]})
        assert (reading.said.count("lost"), reading.reader.resync) == (again, again)


async def test_a_bug_of_the_listener_does_not_stop_the_reader() -> None:
    """The entry would be read, and fail, again and again."""
    reading = Reading()

    def failing(frames: list[Frame]) -> None:
        raise RuntimeError("a bug")

    cast("Any", reading).on_frames = failing
    await reading.read({KEYS.replies("agent").encode(): [[b"1-0", frames("one")]]})
    await reading.read(None)
    assert reading.blocking.args("XREAD")[1][7] == b"1-0"


@pytest.mark.parametrize("missing", [0, 1])
async def test_after_a_gap_replies_are_read_from_their_start(missing: int) -> None:
    """With a stream that was missing, frames may be lost."""
    reading = Reading()
    await reading.read({KEYS.replies("agent").encode(): [[b"8-0", frames("one")]]})
    reading.said.clear()
    reading.link.answers["listen"] = missing
    await reading.reader._resynchronise()
    assert reading.said == (["lost"] if missing else []) + ["loaded"]
    reading.reader.listened(missing)
    assert reading.said.count("lost") == 2 * missing
    await reading.read(None)
    assert reading.blocking.args("XREAD")[-1][7] == b"0-0"
    assert reading.link.args("listen") == [(15_000, b"0-0")]


class Following:
    """A registry follower whose server has the token that the test says; it is its own listener."""

    def __init__(self) -> None:
        self.link = FakeLink()
        self.token: bytes | None = b"t1"
        self.meanwhile: list[Any] = []
        self.follower = RegistryFollower(cast("Any", self.link), KEYS, cast("Any", self))
        self.link.answers |= {"XREVRANGE": [[b"1-0", []]], "HSCAN": [b"0", []], "HGET": self._asked}

    def on_registry(self, services: Any, items: Any) -> None:
        """Take nothing in."""

    def brings(self, entry: bytes, token: bytes, before: bytes) -> bool:
        """Read one entry of the log; return whether it fits."""
        return self.follower.apply([(entry, [b"op", b"", b"token", token, b"prev", before])])

    def _asked(self, keys: Any, args: Any) -> bytes | None:
        for entry, token, before in self.meanwhile:
            assert self.brings(entry, token, before)
        self.meanwhile.clear()
        return self.token


async def test_a_follower_lags_when_a_change_is_not_told_between_two_looks() -> None:
    """An entry that is on its way gets as long, and entries that come during a look are looked at the next time."""
    following = Following()
    await following.follower.load()
    assert not await following.follower.lags()
    following.token = b"t2"
    assert [await following.follower.lags() for _ in range(4)] == [False, True, False, True]
    assert following.brings(b"2-0", b"t2", b"t1")
    assert not await following.follower.lags()
    # Changes come faster than looks.
    for number in range(3, 9):
        following.token = b"t%d" % number
        assert not await following.follower.lags()
        assert following.brings(b"%d-0" % number, following.token, b"t%d" % (number - 1))
    following.token = b"t9"
    assert not await following.follower.lags()
    following.meanwhile = [(b"9-0", b"forged", b"t8")]
    assert [await following.follower.lags() for _ in range(2)] == [False, True]
    await following.follower.load()
    assert not await following.follower.lags()
    assert following.brings(b"10-0", b"t10", b"t9"), "changes go on behind the token of the tables"


async def test_a_follower_does_not_lag_behind_tables_without_a_token() -> None:
    """The token comes with the next change."""
    following = Following()
    await following.follower.load()
    following.token = None
    assert not any([await following.follower.lags() for _ in range(3)])
