"""A stand-in for what exists only while a broker is open."""

from __future__ import annotations

from typing import NoReturn

from toolbus.results import BrokerUnavailable


class NotOpen:
    """Takes the place of a broker's steps before ``open``; every use of it is an error.

    The brokers need no check before each use this way, which would cost time in every call.
    """

    def __getattr__(self, name: str) -> NoReturn:
        raise BrokerUnavailable("the broker is not open")
