"""Choose the recorded tools that a host serves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from toolbus.platform.records import RecordedTool, ToolSource


def may_run(source: ToolSource, labels: Collection[str]) -> bool:
    """Return whether a host with these labels may run a source."""
    return not source.hosts or not set(source.hosts).isdisjoint(labels)


def may_serve(record: RecordedTool, labels: Collection[str]) -> bool:
    """Return whether a host with these labels may serve a tool: it is active, and one of its sources may run there."""
    return record.meta.status == "active" and any(may_run(source, labels) for source in record.sources)


def to_serve(records: Mapping[str, RecordedTool], labels: Collection[str]) -> dict[str, RecordedTool]:
    """Return the tools that a host with these labels may serve, by id."""
    return {tool: record for tool, record in records.items() if may_serve(record, labels)}
