"""Write vectors, JSON Schemas of the messages, and what is required, for programs in other languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from toolbus.bus.values.confirmations import ConfirmationAnswer, ConfirmationRequest
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.values.envelope import Frame, Request
from toolbus.bus.values.pins import Pin
from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.worker_checks import WORKER

VECTORS = Path(__file__).with_name("vectors.json")
"""Inputs and what becomes of them: digests, keys, frames, deadlines, verdicts."""


class LogEntry(msgspec.Struct):
    """An entry of the registry's change log.

    Attributes:
        doc: a publication, a static document, or nothing when there is none any more.
        token, prev: of this change and of the one before it.
    """

    op: Literal["up", "down", "gone", "item"]
    key: str
    doc: str
    token: str
    prev: str


SCHEMAS: dict[str, Any] = {
    "request": Request,
    "frames": list[Frame],
    "publication": Publication,
    "log-entry": LogEntry,
    "pin": Pin,
    "confirmation": ConfirmationRequest,
    "answer": ConfirmationAnswer,
}
"""The documents that have a schema, and their types."""

# What types do not say.
_ID = {"pattern": "^[A-Za-z0-9_-]{1,64}$"}
_MORE: dict[str, dict[str, dict[str, Any]]] = {"Request": {"id": _ID, "agent": {"pattern": "^[A-Za-z0-9_-]{0,64}$"}}, "Frame": {"id": _ID}}


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a document that ``SCHEMAS`` names."""
    made: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(SCHEMAS[name])}
    for kind, fields in _MORE.items():
        for field, rules in fields.items() if kind in made.get("$defs", {}) else ():
            made["$defs"][kind]["properties"][field].update(rules)
    return made


def write(folder: Path) -> None:
    """Write vectors.json, requirements.json, and each schema as schemas/<document>.json.

    Raises:
        OSError: a file can't be written.
    """
    (folder / VECTORS.name).write_bytes(VECTORS.read_bytes())
    (folder / "schemas").mkdir(exist_ok=True)
    documents: dict[str, Any] = {f"schemas/{name}": schema_of(name) for name in SCHEMAS}
    documents["requirements"] = {
        "worker": [each.about for each in WORKER.requirements],
        "agent": [each.about for each in AGENT.requirements],
    }
    for name, document in documents.items():
        (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
