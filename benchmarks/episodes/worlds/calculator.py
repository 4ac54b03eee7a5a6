"""A calculator with an accumulator, named registers and a history."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from msgspec import Meta

from benchmarks.episodes.worlds.world import Move, World, refuse

Number = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
_MOST = 10**15


class Calculator(World):
    """Whole numbers only, so that every process agrees on the digits."""

    name = "calculator"

    def _prepare(self, chance: random.Random) -> None:
        self.value = chance.randint(1, 100)
        self.registers: dict[str, int] = {}
        self.history: list[list[Any]] = []

    def _set(self, what: str, value: int) -> dict[str, Any]:
        if abs(value) > _MOST:
            raise refuse(f"{what} goes past {_MOST}")
        self.history.append([what, self.value])
        self.value = value
        return {"step": len(self.history), "value": value}

    def add(self, numbers: Annotated[list[Number], Meta(min_length=1, max_length=10)]) -> dict[str, Any]:
        """Add numbers to the value."""
        return self._set("add", self.value + sum(numbers))

    def multiply(self, by: Number) -> dict[str, Any]:
        """Multiply the value."""
        return self._set("multiply", self.value * by)

    def divide(self, by: Number, rounding: Literal["down", "up"] = "down") -> dict[str, Any]:
        """Divide the value and round."""
        if by == 0:
            raise refuse("nothing can be divided by 0")
        return self._set("divide", self.value // by if rounding == "down" else -(-self.value // by))

    def negate(self) -> dict[str, Any]:
        """Change the sign of the value."""
        return self._set("negate", -self.value)

    def modulo(self, by: Annotated[int, Meta(ge=2, le=1000)]) -> dict[str, Any]:
        """Keep the remainder of a division."""
        return self._set("modulo", self.value % by)

    def store(self, register: Annotated[str, Meta(pattern="^[a-z]$")]) -> dict[str, int]:
        """Copy the value to a register, and show all registers."""
        self.registers[register] = self.value
        return dict(sorted(self.registers.items()))

    def recall(self, register: Annotated[str, Meta(pattern="^[a-z]$")]) -> dict[str, Any]:
        """Make a register's content the value."""
        if register not in self.registers:
            raise refuse(f"register {register} is empty")
        return self._set(f"recall {register}", self.registers[register])

    def undo(self) -> dict[str, Any]:
        """Take the last step back."""
        if not self.history:
            raise refuse("there is no step to take back")
        what, self.value = self.history.pop()
        return {"undone": what, "value": self.value, "steps": len(self.history)}

    def show_history(self, last: Annotated[int, Meta(ge=1, le=10)] = 5) -> list[list[Any]]:
        """List the last steps with the value before each."""
        return self.history[-last:]

    def show(self) -> int:
        """Show the value."""
        return self.value

    def _propose(self, chance: random.Random) -> Move:
        options: list[Move] = [
            ("add", {"numbers": chance.choices(range(-50, 100), k=chance.randint(1, 4))}),
            ("multiply", {"by": chance.randint(2, 9)}),
            ("divide", {"by": chance.randint(2, 9), "rounding": chance.choice(["up", "down"])}),
            ("divide", {"by": chance.randint(0, 3)}),
            ("negate", {}),
            ("modulo", {"by": chance.randint(50, 999)}),
            ("store", {"register": chance.choice("abc")}),
            ("show", {}),
            ("show_history", {"last": chance.randint(1, 4)}),
        ]
        if self.registers:
            options += [("recall", {"register": chance.choice(sorted(self.registers))})] * 2
        if self.history:
            options.append(("undo", {}))
        return chance.choice(options)
