"""A vehicle whose controls depend on one another."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from msgspec import Meta

from benchmarks.episodes.worlds.world import Move, World, refuse

Door = Literal["driver", "passenger", "rear_left", "rear_right"]
_DOORS = ("driver", "passenger", "rear_left", "rear_right")


class Vehicle(World):
    """An engine, doors, fuel, a gear and an odometer."""

    name = "vehicle"

    def _prepare(self, chance: random.Random) -> None:
        self.engine = False
        self.brake = False
        self.gear = "park"
        self.fuel = chance.randint(10, 30)
        self.km = chance.randint(1_000, 90_000)
        self.locked = {door: chance.random() < 0.5 for door in _DOORS}
        self.celsius = 20
        self.lights = "off"
        self.trip: list[str] = []

    def press_brake(self) -> str:
        """Press the brake, which starting the engine needs."""
        before, self.brake = self.brake, True
        return "the brake was pressed already" if before else "the brake is pressed"

    def release_brake(self) -> str:
        """Release the brake."""
        if not self.brake:
            raise refuse("the brake is not pressed")
        self.brake = False
        return "the brake is released"

    def lock(self, doors: Annotated[list[Door], Meta(min_length=1)], unlock: bool = False) -> dict[str, Any]:
        """Lock doors, or unlock them."""
        for door in doors:
            self.locked[door] = not unlock
        return {"locked": sorted(door for door, locked in self.locked.items() if locked)}

    def start(self) -> dict[str, Any]:
        """Start the engine: all doors are locked and the brake is pressed."""
        if self.engine:
            raise refuse("the engine runs already")
        open_doors = sorted(door for door, locked in self.locked.items() if not locked)
        if open_doors:
            raise refuse(f"lock first: {', '.join(open_doors)}")
        if not self.brake:
            raise refuse("press the brake first")
        self.engine = True
        return {"engine": True, "fuel": self.fuel}

    def stop(self) -> dict[str, Any]:
        """Stop the engine, in park."""
        if not self.engine or self.gear != "park":
            raise refuse(f"the engine can't be stopped now: it {'runs' if self.engine else 'stands'} in {self.gear}")
        self.engine = False
        return {"engine": False, "trip": self.trip}

    def shift(self, gear: Literal["park", "drive", "reverse", "neutral"]) -> str:
        """Shift the gear, with the engine on."""
        if not self.engine:
            raise refuse("the engine is off")
        before, self.gear = self.gear, gear
        return f"shifted from {before} to {gear}"

    def drive(self, km: Annotated[int, Meta(ge=1, le=200)], to: str) -> dict[str, Any]:
        """Drive somewhere; 20 km need a litre."""
        if self.gear != "drive" or self.brake:
            raise refuse(f"can't drive in {self.gear} with the brake {'pressed' if self.brake else 'released'}")
        need = -(-km // 20)
        if need > self.fuel:
            raise refuse(f"{need} litres are needed, there are {self.fuel}")
        self.fuel -= need
        self.km += km
        self.trip.append(to)
        return {"at": to, "fuel": self.fuel, "odometer": self.km}

    def refuel(self, litres: Annotated[int, Meta(ge=1, le=50)]) -> dict[str, int]:
        """Fill the tank, which holds 50 litres, with the engine off."""
        if self.engine:
            raise refuse("stop the engine before you refuel")
        added = min(litres, 50 - self.fuel)
        self.fuel += added
        return {"added": added, "fuel": self.fuel}

    def climate(self, celsius: Annotated[float, Meta(ge=15, le=30)], fan: Literal["low", "middle", "high"] = "low") -> dict[str, Any]:
        """Set the temperature."""
        before, self.celsius = self.celsius, round(celsius)
        return {"from": before, "to": self.celsius, "fan": fan}

    def headlights(self, mode: Literal["off", "on", "auto"]) -> str:
        """Switch the headlights."""
        before, self.lights = self.lights, mode
        return f"headlights {before} -> {mode}"

    def status(self, parts: list[Literal["engine", "gear", "fuel", "km", "lights", "brake"]]) -> dict[str, Any]:
        """Tell the state of parts."""
        return {part: getattr(self, part) for part in parts}

    def _propose(self, chance: random.Random) -> Move:
        options: list[Move] = [
            ("climate", {"celsius": chance.randint(15, 30), "fan": chance.choice(["low", "high"])}),
            ("headlights", {"mode": chance.choice(["off", "on", "auto"])}),
            ("status", {"parts": chance.sample(["engine", "gear", "fuel", "km", "lights", "brake"], 3)}),
        ]
        if not all(self.locked.values()):
            options += [("lock", {"doors": [door for door in _DOORS if not self.locked[door]]})] * 3
        elif not self.engine:
            options += [("start", {}), ("start", {}), ("refuel", {"litres": chance.randint(1, 20)})]
            options.append(("lock", {"doors": ["driver"], "unlock": True}))
        elif self.gear == "drive":
            options += [("drive", {"km": chance.randint(1, 90), "to": chance.choice(["lake", "city", "farm", "coast"])})] * 4
            options.append(("shift", {"gear": "park"}))
        else:
            options += [("shift", {"gear": "drive"}), ("shift", {"gear": chance.choice(["reverse", "neutral"])}), ("stop", {})]
        options.append(("release_brake", {}) if self.brake else ("press_brake", {}))
        return chance.choice(options)
