"""Read the recent calls of a namespace."""

from __future__ import annotations

import msgspec

from toolbus.broker.keys import Keys
from toolbus.broker.reading import document, skip
from toolbus.broker.recent.records import RecentCall
from toolbus.broker.transport.replies import fields_of
from toolbus.broker.transport.transport import Transport
from toolbus.envelope import is_ident
from toolbus.results import EnvelopeError

_MOST_DOCUMENT = 65_536
_LAST_SECOND = 253_402_300_799
_PAGE = 256

_records = msgspec.json.Decoder(RecentCall)


async def newest(link: Transport, keys: Keys, limit: int) -> list[RecentCall]:
    """Return the newest records, the newest first; those that can't be read are left out.

    Raises:
        BrokerError: the server could not be asked.
    """
    return _read(keys, await link.execute("XREVRANGE", keys.recent, "+", "-", "COUNT", limit))


async def after(link: Transport, keys: Keys, entry: str, limit: int = _PAGE) -> tuple[list[RecentCall], str]:
    """Return the records after an entry, the oldest first, and the entry to go on after.

    Raises:
        BrokerError: the server could not be asked.
    """
    found = await link.execute("XRANGE", keys.recent, f"({entry}" if entry else "-", "+", "COUNT", limit)
    return _read(keys, found), found[-1][0].decode("ascii", "replace") if found else entry


def _read(keys: Keys, entries: list[tuple[bytes, list[bytes]]]) -> list[RecentCall]:
    found: list[RecentCall] = []
    for entry, flat in entries:
        try:
            record = document(fields_of(flat).get(b"c", b""), _records, most=_MOST_DOCUMENT)
            _check(record)
        except EnvelopeError as error:
            skip(keys.recent, error)
            continue
        record.entry = entry.decode("ascii", "replace")
        found.append(record)
    return found


def _check(record: RecentCall) -> None:
    """Refuse a record that no worker could have written.

    Raises:
        EnvelopeError: it is one.
    """
    if not is_ident(record.id):
        raise EnvelopeError("its call has no id")
    if not 0 < record.attempt < 10**9:
        raise EnvelopeError("its attempt has no number")
    if not all(0 <= at <= _LAST_SECOND for at in (record.queued, record.taken, record.first, record.ended)):
        raise EnvelopeError("one of its times is no date")
