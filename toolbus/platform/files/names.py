"""Names of the files, and the fields in them that are toolbus's own."""

from __future__ import annotations

REGISTRY = "registry.json"
SOURCES = "sources.json"
GROUPS = "groups.json"
RUNTIMES = "backend_runtimes.json"

OWN = "x-toolbus"
"""The object in an entry that holds toolbus's own fields, which readers of the files from elsewhere leave out."""

SOURCE_FIELDS = ("type", "host_dir", "endpoint_path", "http_method", "internal_port")
"""The fields of a source that are not toolbus's own."""

ROUTE_FIELDS = ("tool_id", "active_source", "state", "pid", "port")
"""Fields beside ``sources`` that tell where a tool ran when the file was written; they are not read."""

IMPORTED = "import"
"""Says in ``made_by`` that a record came from these files."""

MOST_FILE = 64 * 1024 * 1024
"""Most bytes of one file."""
