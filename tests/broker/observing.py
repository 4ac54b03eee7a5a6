"""The log events and counters of a step, as an operator sees them."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from toolbus.bus.telemetry.output import FIELDS


class Observed:
    """Log events and counters since the test began."""

    def __init__(self, caplog: pytest.LogCaptureFixture, reader: InMemoryMetricReader) -> None:
        self._caplog = caplog
        self._reader = reader

    @property
    def events(self) -> list[dict[str, Any]]:
        """The fields of each event in order, with its name as ``event`` and its level as ``level``."""
        return [{"level": record.levelname, **getattr(record, FIELDS)} for record in self._caplog.records if hasattr(record, FIELDS)]

    @property
    def counted(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """The attributes and sums of each counter."""
        data = self._reader.get_metrics_data()
        found = (
            [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics] if data else []
        )
        return {metric.name: [(dict(point.attributes), point.value) for point in metric.data.data_points] for metric in found}


def waits(coroutine: Coroutine[Any, Any, Any]) -> bool:
    """Return whether a coroutine has to wait for something; one that does is closed."""
    try:
        coroutine.send(None)
    except StopIteration:
        return False
    coroutine.close()
    return True
