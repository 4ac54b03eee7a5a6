"""``GivenUp``: the calls at one instance that nobody waits for any more, and at which its program goes on."""

from __future__ import annotations

import asyncio

from toolbus.host.pool.member import Member

_NEVER = float("inf")
_FIRST, _MOST = 0.02, 1.0


class GivenUp:
    """Looks whether a program has let go of calls that were cancelled, or had reached their deadlines.

    Args:
        member: the instance.
        within: seconds in which it has to let go of one, when no other call runs in it.

    Attributes:
        due: when to look next, in the loop's time.
    """

    def __init__(self, member: Member, within: float) -> None:
        self._member = member
        self._within = within
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._count = 0
        self._pause = _FIRST
        self.due = _NEVER

    async def look(self) -> bool:
        """Look if it is time; return whether places have become free."""
        member = self._member
        if not member.held and self.due == _NEVER:
            return False
        before = member.held
        count = await member.instance.unfinished()
        # Calls that were given up meanwhile are looked for the next time.
        member.held += count - before
        now = self._loop.time()
        if not count or count < self._count or not self._count:
            self._since, self._pause = now, _FIRST
        self._count = count
        self.due = now + self._pause if member.held else _NEVER
        self._pause = min(_MOST, self._pause * 2)
        return count < before

    @property
    def is_stuck(self) -> bool:
        """True if it has not let go of one in time, and no other call would be lost with it."""
        return self._count > 0 and not self._member.calls and self._loop.time() >= self._since + self._within
