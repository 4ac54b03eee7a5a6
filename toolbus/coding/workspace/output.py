"""Keep a bounded part of what a program prints: its beginning and its end."""

from __future__ import annotations


class Output:
    """Takes in text, keeps at most so many characters.

    Args:
        most: characters that are kept; three quarters of them from the beginning.
    """

    def __init__(self, most: int) -> None:
        self._head_room = most - most // 4
        self._most_tail = most // 4
        self._head: list[str] = []
        self._tail = ""
        self._unseen = 0

    def add(self, text: str) -> str:
        """Take in text; return what of it belongs to the beginning, to be passed on at once."""
        begin = text[: self._head_room]
        if begin:
            self._head.append(begin)
            self._head_room -= len(begin)
        rest = self._tail + text[len(begin) :]
        cut = max(0, len(rest) - self._most_tail)
        self._unseen += cut
        self._tail = rest[cut:]
        return begin

    @property
    def rest(self) -> str:
        """The rest after the beginning: how much is left out, and the end."""
        gap = f"\n[… {self._unseen:,} characters left out …]\n" if self._unseen else ""
        return gap + self._tail

    def __str__(self) -> str:
        return "".join(self._head) + self.rest


class Unread:
    """The output of a program since it was last read; what is not read in time is left out from its beginning.

    Args:
        most: characters that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._text = ""
        self._lost = 0

    def add(self, text: str) -> None:
        """Take in text."""
        self._text += text
        cut = max(0, len(self._text) - self._most)
        self._lost += cut
        self._text = self._text[cut:]

    def take(self) -> str:
        """Return what came since the last time."""
        gap = f"[… {self._lost:,} characters left out …]\n" if self._lost else ""
        text, self._text, self._lost = gap + self._text, "", 0
        return text
