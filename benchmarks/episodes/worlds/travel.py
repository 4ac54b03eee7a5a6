"""A trip booking: a budget, flights, rooms and an itinerary."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from benchmarks.episodes.worlds.world import Move, World, refuse

Place = Literal["AMS", "BER", "LIS", "OSL", "ROM", "ZRH"]
_PLACES = ("AMS", "BER", "LIS", "OSL", "ROM", "ZRH")
_PRICES = {"economy": 90, "business": 260}


class Traveller(TypedDict):
    """A person who flies."""

    name: str
    born: Annotated[int, Meta(ge=1900, le=2026)]


class Travel(World):
    """Bookings with increasing numbers, paid from one budget."""

    name = "travel"

    def _prepare(self, chance: random.Random) -> None:
        self.budget = chance.randint(2_000, 9_000)
        self.at = chance.choice(_PLACES)
        self.travellers: list[dict[str, Any]] = []
        self.bookings: list[dict[str, Any]] = []
        self.card = ""

    def _pay(self, cost: int) -> None:
        if not self.card:
            raise refuse("register a card first")
        if cost > self.budget:
            raise refuse(f"it costs {cost}, and {self.budget} are left")
        self.budget -= cost

    def _booked(self, kind: str, cost: int, where: str) -> dict[str, Any]:
        self._pay(cost)
        booking = {"number": len(self.bookings) + 1, "kind": kind, "cost": cost, "where": where, "cancelled": False}
        self.bookings.append(booking)
        return {"booking": booking["number"], "cost": cost, "left": self.budget}

    def _booking(self, number: int) -> dict[str, Any]:
        if not 1 <= number <= len(self.bookings) or self.bookings[number - 1]["cancelled"]:
            raise refuse(f"there is no booking {number}")
        return self.bookings[number - 1]

    def register_card(self, number: Annotated[str, Meta(pattern="^[0-9]{4}$", description="the last four digits")]) -> str:
        """Register the card that pays."""
        before, self.card = self.card, number
        return f"card {number}" + (f" instead of {before}" if before else "")

    def add_traveller(self, traveller: Traveller) -> dict[str, Any]:
        """Add a person to the trip."""
        self.travellers.append(dict(traveller))
        return {"travellers": [each["name"] for each in self.travellers]}

    def price(self, to: Place, cabin: Literal["economy", "business"] = "economy") -> dict[str, Any]:
        """Tell the price of a flight from the present place for all travellers."""
        hop = abs(_PLACES.index(self.at) - _PLACES.index(to)) + 1
        return {"from": self.at, "to": to, "price": hop * _PRICES[cabin] * max(1, len(self.travellers))}

    def fly(self, to: Place, cabin: Literal["economy", "business"] = "economy") -> dict[str, Any]:
        """Book a flight from the present place, which is the target afterwards."""
        if to == self.at:
            raise refuse(f"the trip is in {to} already")
        if not self.travellers:
            raise refuse("add a traveller first")
        booked = self._booked("flight", self.price(to, cabin)["price"], f"{self.at}-{to}")
        self.at = to
        return booked

    def room(self, nights: Annotated[int, Meta(ge=1, le=30)], stars: Literal[2, 3, 4] = 3) -> dict[str, Any]:
        """Book a room where the trip is."""
        return self._booked("room", nights * stars * 20, self.at)

    def insure(self, booking: int) -> dict[str, Any]:
        """Insure a booking for a tenth of its cost."""
        return self._booked("insurance", self._booking(booking)["cost"] // 10 + 1, f"booking {booking}")

    def cancel(self, booking: int) -> dict[str, Any]:
        """Cancel a booking; half of its cost comes back."""
        found = self._booking(booking)
        found["cancelled"] = True
        self.budget += found["cost"] // 2
        return {"back": found["cost"] // 2, "left": self.budget}

    def invoice(self, booking: int) -> dict[str, Any]:
        """Show a booking."""
        return self._booking(booking)

    def itinerary(self) -> list[str]:
        """List what is booked, in order."""
        return [f"{each['number']} {each['kind']} {each['where']}" for each in self.bookings if not each["cancelled"]]

    def where(self) -> str:
        """Tell where the trip is, and what is left of the budget."""
        return f"in {self.at} with {self.budget}"

    def _propose(self, chance: random.Random) -> Move:
        to = chance.choice([place for place in _PLACES if place != self.at])
        cabin = chance.choice(["economy", "business"])
        options: list[Move] = [
            ("price", {"to": to, "cabin": cabin}),
            ("where", {}),
            ("itinerary", {}),
            ("add_traveller", {"traveller": {"name": f"person {len(self.travellers) + 1}", "born": chance.randint(1950, 2010)}}),
        ]
        if not self.card or chance.random() < 0.1:
            options += [("register_card", {"number": f"{chance.randint(0, 9999):04}"})] * 2
        else:
            options += [("fly", {"to": to}), ("fly", {"to": to, "cabin": cabin}), ("room", {"nights": chance.randint(1, 5), "stars": 3})]
        valid = [each["number"] for each in self.bookings if not each["cancelled"]]
        if valid:
            booking = chance.choice(valid)
            options += [("insure", {"booking": booking}), ("cancel", {"booking": booking}), ("invoice", {"booking": booking})]
        return chance.choice(options)
