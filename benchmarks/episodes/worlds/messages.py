"""A message service: contacts, threads and an inbox."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from msgspec import Meta

from benchmarks.episodes.worlds.world import Move, World, refuse

_PEOPLE = ("mira", "noel", "olga", "pete", "quin", "rosa")
_WORDS = ("hello", "meeting", "lunch", "tomorrow", "thanks", "invoice", "late")


class Messages(World):
    """Messages with increasing numbers, in the name of the person who is logged in."""

    name = "messages"

    def _prepare(self, chance: random.Random) -> None:
        self.me = chance.choice(_PEOPLE)
        self.contacts = sorted(chance.sample(_PEOPLE, 3))
        self.messages: list[dict[str, Any]] = []
        self.draft: dict[str, Any] | None = None
        self.muted: list[str] = []

    def _message(self, number: int) -> dict[str, Any]:
        if not 1 <= number <= len(self.messages) or self.messages[number - 1]["deleted"]:
            raise refuse(f"there is no message {number}")
        return self.messages[number - 1]

    def _known(self, person: str) -> None:
        if person not in self.contacts:
            raise refuse(f"{person} is no contact; contacts are {', '.join(self.contacts)}")

    def whoami(self) -> str:
        """Tell who is logged in."""
        return f"{self.me}, with {len(self.messages)} messages"

    def switch(self, person: str) -> str:
        """Go on as another person, who must be a contact."""
        self._known(person)
        self.contacts = sorted({*self.contacts, self.me} - {person})
        self.me = person
        return f"now {person}, whose contacts are {', '.join(self.contacts)}"

    def add_contact(self, person: str) -> list[str]:
        """Add a contact and return all."""
        if person in {*self.contacts, self.me}:
            raise refuse(f"{person} is there already")
        self.contacts = sorted([*self.contacts, person])
        return list(self.contacts)

    def send(self, to: str, text: str, urgency: Literal["low", "normal", "high"] = "normal") -> dict[str, Any]:
        """Send a message to a contact."""
        self._known(to)
        number = len(self.messages) + 1
        message = {"number": number, "from": self.me, "to": to, "text": text, "urgency": urgency, "read": False, "deleted": False}
        self.messages.append(message)
        return {"number": number, "to": to}

    def reply(self, number: int, text: str) -> dict[str, Any]:
        """Answer a message, to the other person in it."""
        message = self._message(number)
        other = message["to"] if message["from"] == self.me else message["from"]
        return self.send(other, f"re {number}: {text}", message["urgency"])

    def write_draft(self, to: str, text: str) -> dict[str, Any]:
        """Begin a draft, or go on with the one for the same person."""
        if self.draft is not None and self.draft["to"] == to:
            self.draft["text"] += f" {text}"
        else:
            self.draft = {"to": to, "text": text}
        return dict(self.draft)

    def send_draft(self) -> dict[str, Any]:
        """Send the draft."""
        if self.draft is None:
            raise refuse("there is no draft")
        sent = self.send(self.draft["to"], self.draft["text"])
        self.draft = None
        return sent

    def read(self, number: int) -> dict[str, Any]:
        """Show a message and mark it as read."""
        message = self._message(number)
        before, message["read"] = message["read"], True
        return {"text": message["text"], "from": message["from"], "read_before": before}

    def delete(self, numbers: Annotated[list[int], Meta(min_length=1, max_length=5)]) -> str:
        """Delete messages."""
        for each in [self._message(number) for number in numbers]:
            each["deleted"] = True
        return f"deleted {len(numbers)}, {sum(not each['deleted'] for each in self.messages)} are left"

    def unread(self, person: str | None = None) -> list[int]:
        """List the numbers of unread messages, of one sender or of all."""
        return [m["number"] for m in self.messages if not m["read"] and not m["deleted"] and person in {None, m["from"]}]

    def mute(self, person: str) -> list[str]:
        """Mute a contact and return all muted ones."""
        self._known(person)
        self.muted = sorted({*self.muted, person})
        return list(self.muted)

    def _propose(self, chance: random.Random) -> Move:
        text = " ".join(chance.choices(_WORDS, k=3))
        to = chance.choice(self.contacts)
        left = [each["number"] for each in self.messages if not each["deleted"]]
        options: list[Move] = [
            ("send", {"to": to, "text": text, "urgency": chance.choice(["low", "high"])}),
            ("send", {"to": to, "text": text}),
            ("write_draft", {"to": self.draft["to"] if self.draft else to, "text": text}),
            ("unread", {"person": chance.choice([to, None])}),
            ("mute", {"person": to}),
            ("switch", {"person": to}),
            ("whoami", {}),
        ]
        new = sorted({*_PEOPLE} - {*self.contacts, self.me})
        if new:
            options.append(("add_contact", {"person": chance.choice(new)}))
        if self.draft:
            options += [("send_draft", {})] * 2
        if left:
            number = chance.choice(left)
            options += [("read", {"number": number}), ("reply", {"number": number, "text": text}), ("delete", {"numbers": [number]})]
        return chance.choice(options)
