"""A release after this one, as a program: it speaks versions 1 and 2 of the protocol.

There is no such release. It is this tree with a larger version, planted before anything else of toolbus is loaded. Its version 2 writes
requests in a form that this release can't read, and has a migration of stored groups. So this release is the older one of the pair.

Run: ``python -m tests.versions.next_release TOOLBUS-COMMAND…`` or ``python -m tests.versions.next_release load …``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from toolbus.bus.values import envelope
from toolbus.bus.values.envelope import Request

_encode, _decode = envelope.encode_request, envelope.decode_request


def encode_request(request: Request, *, limit: int) -> bytes:
    """Write version 2 with its arguments under another name."""
    document = _encode(request, limit=limit)
    if request.v != 2:
        return document
    fields = json.loads(document)
    fields["given"] = fields.pop("arguments", {})
    return json.dumps(fields).encode()


def decode_request(payload: bytes, *, limit: int) -> Request:
    """Read both forms, and note each request of version 2 in the file that ``PLANTED_NOTES`` names."""
    try:
        fields = json.loads(payload)
    except ValueError:
        fields = {}
    if fields.get("v") == 2 and "given" in fields:
        fields["arguments"] = fields.pop("given")
        payload = json.dumps(fields).encode()
        if notes := os.environ.get("PLANTED_NOTES"):
            with Path(notes).open("ab") as file:
                file.write(b".")
    return _decode(payload, limit=limit)


def convert_group(key: str, document: bytes) -> bytes | None:
    """Give a group the field that version 2 has."""
    fields = json.loads(document)
    return None if fields.get("form") == 2 else json.dumps({**fields, "form": 2}).encode()


envelope.VERSION = 2
envelope.encode_request, envelope.decode_request = encode_request, decode_request

if __name__ == "__main__":
    from toolbus.bus.broker.registry.versions import MIGRATIONS, Migration

    MIGRATIONS.append(Migration(2, "group-form", "groups say of which form they are", "group/", convert_group))
    if sys.argv[1] == "load":
        from tests.versions.load import main as load

        load()
    else:
        from toolbus.operations.cli import main

        main()
