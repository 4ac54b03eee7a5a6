"""A ticket system whose tickets are numbered in the order in which they were opened."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from benchmarks.episodes.worlds.world import Move, World, refuse

Priority = Annotated[int, Meta(ge=1, le=5)]
_TOPICS = ("printer", "login", "invoice", "backup", "network", "licence")
_PEOPLE = ("ann", "bo", "cem", "dana")
_LABELS = ("bug", "question", "urgent", "hardware", "billing")


class Query(TypedDict, total=False):
    """Conditions on tickets; one that is left out does not matter."""

    status: Literal["open", "resolved", "closed"]
    assignee: str
    least_priority: int


class Tickets(World):
    """Tickets by their number."""

    name = "tickets"

    def _prepare(self, chance: random.Random) -> None:
        self.user = ""
        self.last = chance.randint(100, 900)
        self.tickets: dict[str, dict[str, Any]] = {}
        self._open(chance.choice(_TOPICS), 2)

    def _open(self, title: str, priority: int) -> dict[str, Any]:
        self.last += 1
        ticket = {"number": self.last, "title": title, "priority": priority, "status": "open", "assignee": None, "labels": [], "notes": []}
        self.tickets[str(self.last)] = ticket
        return ticket

    def _found(self, number: int) -> dict[str, Any]:
        if str(number) not in self.tickets:
            raise refuse(f"there is no ticket {number}")
        return self.tickets[str(number)]

    def login(self, user: str) -> str:
        """Log a person in, in whose name tickets are changed."""
        before, self.user = self.user, user
        return f"{user} is logged in" + (f" instead of {before}" if before else "")

    def logout(self) -> str:
        """Log the person out who is logged in."""
        if not self.user:
            raise refuse("nobody is logged in")
        before, self.user = self.user, ""
        return f"{before} is logged out"

    def open(self, title: str, priority: Priority = 3, labels: list[str] | None = None) -> dict[str, Any]:
        """Open a ticket; somebody must be logged in."""
        if not self.user:
            raise refuse("log in before you open a ticket")
        ticket = self._open(title, priority)
        ticket["labels"] = sorted(set(labels or []))
        return {"number": ticket["number"], "by": self.user}

    def show(self, number: int) -> dict[str, Any]:
        """Show a ticket with its notes."""
        return self._found(number)

    def assign(self, number: int, person: Literal["ann", "bo", "cem", "dana"]) -> dict[str, Any]:
        """Give a ticket to a person."""
        ticket = self._found(number)
        before, ticket["assignee"] = ticket["assignee"], person
        return {"number": number, "from": before, "to": person}

    def note(self, number: int, text: str) -> dict[str, Any]:
        """Add a note to a ticket."""
        ticket = self._found(number)
        ticket["notes"].append(f"{self.user or 'anonymous'}: {text}")
        return {"number": number, "notes": len(ticket["notes"])}

    def label(self, number: int, add: list[str] | None = None, remove: list[str] | None = None) -> list[str]:
        """Change the labels of a ticket and return them."""
        ticket = self._found(number)
        ticket["labels"] = sorted((set(ticket["labels"]) | set(add or [])) - set(remove or []))
        return list(ticket["labels"])

    def escalate(self, number: int) -> dict[str, int]:
        """Raise the priority of a ticket by one."""
        ticket = self._found(number)
        if ticket["priority"] == 5:
            raise refuse(f"ticket {number} has the highest priority already")
        ticket["priority"] += 1
        return {"number": number, "priority": ticket["priority"]}

    def resolve(self, number: int, answer: str) -> str:
        """Resolve an open ticket."""
        ticket = self._found(number)
        if ticket["status"] != "open":
            raise refuse(f"ticket {number} is {ticket['status']}")
        ticket["status"] = "resolved"
        ticket["notes"].append(f"answer: {answer}")
        return f"resolved {number} with {len(ticket['notes'])} notes"

    def close(self, number: int) -> str:
        """Close a resolved ticket."""
        ticket = self._found(number)
        if ticket["status"] != "resolved":
            raise refuse(f"ticket {number} is {ticket['status']}, not resolved")
        ticket["status"] = "closed"
        return f"closed {number}"

    def search(self, query: Query) -> list[int]:
        """List the numbers of the tickets that fit."""
        found = []
        for ticket in self.tickets.values():
            fits = all(ticket[key] == value for key, value in query.items() if key != "least_priority")
            if fits and ticket["priority"] >= query.get("least_priority", 1):
                found.append(ticket["number"])
        return found

    def _propose(self, chance: random.Random) -> Move:
        if not self.user:
            return "login", {"user": chance.choice(_PEOPLE)}
        number = int(chance.choice(sorted(self.tickets)))
        status = self.tickets[str(number)]["status"]
        wanted: Query = {"status": chance.choice(["open", "resolved"]), "least_priority": chance.randint(1, 4)}
        options: list[Move] = [
            ("open", {"title": f"{chance.choice(_TOPICS)} trouble", "priority": chance.randint(1, 5), "labels": chance.sample(_LABELS, 2)}),
            ("open", {"title": f"the {chance.choice(_TOPICS)} again"}),
            ("show", {"number": number}),
            ("assign", {"number": number, "person": chance.choice(_PEOPLE)}),
            ("note", {"number": number, "text": f"looked at it {self.served} times"}),
            ("label", {"number": number, "add": chance.sample(_LABELS, 1), "remove": chance.sample(_LABELS, 1)}),
            ("escalate", {"number": number}),
            ("search", {"query": dict(wanted)}),
        ]
        options += [("resolve", {"number": number, "answer": "restarted"})] * 2 if status == "open" else [("close", {"number": number})] * 2
        if chance.random() < 0.2:
            options.append(("logout", {}))
        return chance.choice(options)
