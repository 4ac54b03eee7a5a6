"""``Documents``: stored documents that the catalogue keeps for others to read."""

from __future__ import annotations

KINDS = ("recorded", "pending", "group", "backend-runtime")
"""The first parts of their keys; ``toolbus.platform`` reads them."""

KEYS = ", ".join(f"{kind}/ID" for kind in KINDS)
"""Their keys, for people."""


class Documents:
    """Stored documents by key.

    Attributes:
        version: counts the changes, so that what was read can be kept until the next one.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, bytes] = {}
        self.version = 0

    def take(self, key: str, document: bytes | None) -> None:
        """Take in that a document changed, or was deleted (None)."""
        self.version += 1
        if document is None:
            self.by_key.pop(key, None)
        else:
            self.by_key[key] = document

    def clear(self) -> None:
        """Forget all of them."""
        self.version += 1
        self.by_key.clear()
