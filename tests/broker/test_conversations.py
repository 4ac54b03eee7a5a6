"""Conversations on a server, read while another process changes them."""

from __future__ import annotations

from typing import Any

import pytest

from toolbus.bus.broker.held.conversations import Conversations
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.results import ConversationError
from toolbus.bus.values.settings import Settings

pytestmark = pytest.mark.anyio


class Changing:
    """A server whose one conversation loses its oldest record after each look at its bounds, ``times`` times."""

    def __init__(self, times: int, *, damaged: bool = False) -> None:
        self.records = {f"m:{number}": b"1000 {}" for number in range(5)}
        self.looks = 0
        self._times = times
        self._damaged = damaged

    async def execute(self, command: str, key: str, *fields: str, repeatable: bool) -> list[bytes | None]:
        """Answer HMGET."""
        assert (command, repeatable) == ("HMGET", True)
        if fields != ("first", "next"):
            return [self.records.get(field) for field in fields]
        numbers = [int(name[2:]) for name in self.records]
        self.looks += 1
        if self.looks <= self._times:
            del self.records[f"m:{min(numbers)}"]
        if self._damaged:
            self.records.pop("m:4", None)
            return [b"0", b"5"]
        return [b"%d" % min(numbers), b"5"]


def conversations(server: Any) -> Conversations:
    """Return the conversations of a server."""
    return Conversations(server, Keys("n"), Settings.load({}))


@pytest.mark.parametrize("times", [0, 1, 3])
async def test_a_conversation_that_loses_records_meanwhile_is_read_again(times: int) -> None:
    """Its holder may drop the oldest records between two commands: nothing is damaged."""
    server = Changing(times)
    found = await conversations(server).read("", "c")
    assert [record.number for record in found] == [*range(times, 5)]
    assert server.looks == times + 1


async def test_a_conversation_without_one_of_its_records_is_damaged() -> None:
    """A record that stays missing although nothing changes is told, and not looked for forever."""
    server = Changing(0, damaged=True)
    with pytest.raises(ConversationError, match="record 4 is missing"):
        await conversations(server).read("", "c")
    assert server.looks == 2
