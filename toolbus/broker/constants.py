"""The numbers of the protocol that another language needs, taken from the code that uses them."""

from __future__ import annotations

from typing import NamedTuple

from toolbus.broker.dead_letters import DEAD_LETTER_LIMIT, DEAD_LETTER_TTL
from toolbus.broker.finish import MOST_BYTES, MOST_IDS
from toolbus.broker.publish import MEMO_TTL
from toolbus.broker.reading import MOST_INTEGER, MOST_TEXT
from toolbus.broker.recover import MAY_BE_ABANDONED_MS
from toolbus.broker.registry.pieces import MOST_BYTES as MOST_PUBLICATION
from toolbus.broker.registry.registry import TTL
from toolbus.broker.replies import LEAST_TTL
from toolbus.broker.sessions import OWNER_TTL, SNAPSHOT_TTL
from toolbus.envelope import OLDEST, VERSION
from toolbus.settings import LONGEST_LEASE, Settings


class Constant(NamedTuple):
    """A number of the protocol, with its unit and the place where it counts."""

    name: str
    value: float
    unit: str
    meaning: str


def constants(settings: Settings) -> list[Constant]:
    """Return the numbers of the protocol; those that are settings have this process's values."""
    return [
        Constant("version", VERSION, "", "the newest version of the protocol that this release speaks: `v` of a request"),
        Constant("oldest_version", OLDEST, "", "the oldest one that it reads"),
        Constant("lease", settings.lease, "s", "argument of `beat.lua` and `register.lua`; renewed three times in it (setting)"),
        Constant("longest_lease", LONGEST_LEASE, "s", "that any process of a namespace may have; argument of `sweep.lua`"),
        Constant("max_deliveries", settings.max_deliveries, "", "attempts of a request; beyond them it is a dead letter (setting)"),
        Constant("alone_from", settings.alone_from, "", "attempt from which a request runs alone; argument of `reap.lua`"),
        Constant("cooldown", settings.cooldown, "s", "for which a name stays its owner's after its last worker left (setting)"),
        Constant("registry_ttl", TTL, "s", "of the registry's tables and of a service's keys; argument of the registry's scripts"),
        Constant("queue_limit", settings.queue_limit, "", "requests queued and running; argument of `publish.lua` (setting)"),
        Constant("max_request", settings.max_request, "bytes", "of a request's document (setting)"),
        Constant("max_frame", settings.max_frame, "bytes", "of a piece of text in UTF-8 (setting)"),
        Constant("max_output", settings.max_output, "bytes", "of all text of a call (setting)"),
        Constant("max_script_bytes", MOST_BYTES, "bytes", "of the frames that one script writes"),
        Constant("max_script_ids", MOST_IDS, "", "entries that one script finishes"),
        Constant("max_publication", MOST_PUBLICATION, "bytes", "of a publication"),
        Constant("max_name", MOST_TEXT, "characters", "of a name in a frame or a request"),
        Constant("max_integer", MOST_INTEGER, "", "that a number must stay below"),
        Constant("memo_ttl", MEMO_TTL, "s", "of the verdicts of an agent's flushes; argument of `publish.lua`"),
        Constant("reply_ttl", max(LEAST_TTL, settings.lease * 2 / 3), "s", "of an agent's reply stream; argument of `listen.lua`"),
        Constant("reply_limit", settings.reply_limit, "entries", "of a reply stream; beyond them a call ends as `slow_consumer` (setting)"),
        Constant("reply_bytes", settings.reply_bytes, "bytes", "of a reply stream; the same (setting)"),
        Constant("old_request", MAY_BE_ABANDONED_MS / 1000, "s", "of waiting after which a worker looks whether the caller is there"),
        Constant("retention", settings.retention, "s", "for which the answer of a shared call is kept (setting)"),
        Constant("session_ttl", OWNER_TTL, "s", "of a session's owner, unless it is renewed"),
        Constant("snapshot_ttl", SNAPSHOT_TTL, "s", "of a session's snapshot"),
        Constant("dead_letters", DEAD_LETTER_LIMIT, "", "that a service keeps; argument of `bury.lua`"),
        Constant("dead_letter_ttl", DEAD_LETTER_TTL, "s", "after the last one; argument of `bury.lua`"),
    ]
