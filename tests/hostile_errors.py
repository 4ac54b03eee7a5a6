"""Exceptions whose classes raise, or answer nonsense, when they are asked about themselves."""

from __future__ import annotations

from typing import Any


class Nameless(type):
    """A class of classes that can't tell their names."""

    def __getattribute__(cls, name: str) -> Any:
        match name:
            case "__name__":
                raise RuntimeError("no name")
            case "__qualname__":
                raise SystemExit(3)
            case "__module__":
                raise KeyboardInterrupt
        return super().__getattribute__(name)


class NoName(Exception, metaclass=Nameless):
    """Can't tell its name."""


class NoText(Exception):
    """Can't tell its text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class ExitingText(Exception):
    """Ends the program when it is asked for its text."""

    def __str__(self) -> str:
        raise SystemExit(4)

    __repr__ = __str__


class InterruptingText(Exception, metaclass=Nameless):
    """Interrupts the program, and has no name either."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__


class NumberText(Exception):
    """Has a number for its text."""

    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307 - as a user's may


class OddText(Exception):
    """Has a text of a class of its own."""

    def __str__(self) -> str:
        class Odd(str):
            __slots__ = ()

            def __len__(self) -> int:
                raise RuntimeError("no length")

            def __str__(self) -> str:
                raise RuntimeError("no text")

        return Odd("odd")


class NoClass(Exception):
    """Can't tell its class."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")


HOSTILE = (NoName, NoText, ExitingText, InterruptingText, NumberText, OddText, NoClass)

NAMES = dict(zip(HOSTILE, ("NoName", "NoText", "ExitingText", "InterruptingText", "NumberText", "OddText", "NoClass"), strict=True))
"""The names of the classes, since not all of them tell."""
