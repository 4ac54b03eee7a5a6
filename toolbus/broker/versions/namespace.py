"""The version of the protocol that a namespace is of: in which requests are published, and records are stored."""

from __future__ import annotations

from typing import NamedTuple

from toolbus.broker.keys import Keys
from toolbus.broker.reading import integer, skip
from toolbus.broker.transport.command import ReplyError
from toolbus.broker.transport.replies import Executor
from toolbus.broker.versions.spoken import FIRST, OURS, spoken
from toolbus.envelope import OLDEST, VERSION
from toolbus.results import BrokerError, EnvelopeError

_MOST = 1_000_000


class NamespaceVersion(NamedTuple):
    """The version of a namespace; ``raising`` is the one to which an operator raises it now, or 0."""

    namespace: str
    written: int = FIRST
    raising: int = 0

    def check(self) -> None:
        """Refuse this process a namespace of a version that it does not speak, or soon will not.

        Raises:
            BrokerError: see there; the message says what is to be upgraded.
        """
        needed = max(self.written, self.raising)
        if needed > VERSION:
            state = "is being raised to" if needed > self.written else "is of"
            raise BrokerError(f"{self} {state} version {needed} of the protocol, and this process speaks {spoken(OURS)}: upgrade it")
        if self.written < OLDEST:
            raise BrokerError(
                f"{self} is of version {self.written} of the protocol, and this process speaks {spoken(OURS)}: "
                f"run `toolbus migrate` of a release that speaks versions {self.written} and {OLDEST} first"
            )

    def __str__(self) -> str:
        return f"the namespace {self.namespace!r}"


async def read_version(link: Executor, keys: Keys) -> NamespaceVersion:
    """Return the version of a namespace; one without a mark is of the first.

    Raises:
        BrokerError: the server could not be asked.
    """
    try:
        found = await link.execute("HMGET", keys.format, "version", "raising", repeatable=True)
    except ReplyError as error:
        if not str(error).startswith("WRONGTYPE"):
            raise
        skip(keys.format, "it is no hash")
        found = []
    fields = dict(zip(("version", "raising"), found, strict=False))
    written = _read(keys, "version", fields.get("version")) or FIRST
    raising = _read(keys, "raising", fields.get("raising"))
    return NamespaceVersion(keys.namespace, written, raising if raising > written else 0)


def _read(keys: Keys, field: str, value: bytes | None) -> int:
    if value is None:
        return 0
    try:
        return integer(value, least=FIRST, most=_MOST)
    except EnvelopeError as error:
        skip(keys.format, error, field=field)
        return 0
