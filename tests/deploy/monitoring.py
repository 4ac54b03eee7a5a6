"""The queries of the dashboards and the alerts, and the names that are in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.chart import DEPLOY
from toolbus.bus.telemetry.metrics import EXPOSED

MONITORING = DEPLOY / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))

_TEXTS = re.compile(r'"[^"]*"')
_LABELS = re.compile(r"\{([^}]*)\}|\b(?:by|on|without) \(([^)]*)\)")
_METRIC = re.compile(r"\b(?:toolbus|gen_ai|process)_\w+")


def panels() -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the title and each panel that has queries."""
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            if panel["type"] != "row":
                yield panel["title"], panel


def queries() -> Iterator[tuple[str, str]]:
    """Return each query of the dashboards and the alerts, with its place."""
    for title, panel in panels():
        for target in panel["targets"]:
            yield title, target["expr"]
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def metrics_in(query: str) -> set[str]:
    """Return the metrics of a query, without the suffixes of histograms."""
    bare = _TEXTS.sub('""', query)
    names = set(_METRIC.findall(_LABELS.sub("", bare)))
    histograms = {name for name, (kind, _) in EXPOSED.items() if kind == "histogram"}
    return {next((each for each in histograms if name.removeprefix(each) in {"_bucket", "_sum", "_count"}), name) for name in names}


def labels_in(query: str) -> set[str]:
    """Return the labels of a query."""
    found = [inner or outer for inner, outer in _LABELS.findall(_TEXTS.sub('""', query))]
    return set(re.findall(r"(?:^|,)\s*(\w+)", ",".join(found)))
