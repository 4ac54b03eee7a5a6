"""A real Prometheus with the shipped rules, whose times are divided."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.chart import VALUES
from tests.deploy.monitoring import ALERTS
from toolbus.bus.broker.transport.embedded import free_port

FASTER = 30
"""Every time of the rules is divided by this: five minutes are ten seconds."""
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def seconds(text: str) -> int:
    """Return the seconds of a time such as ``5m``."""
    return int(text[:-1]) * _SECONDS[text[-1]]


SCRAPE = seconds(VALUES["monitoring"]["serviceMonitor"]["interval"])
"""Seconds between two scrapes, as the chart asks for."""


def rules(faster: int) -> str:
    """Return the shipped rules with their times divided, and nothing else changed."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{max(1, seconds(found[2]) // faster)}s"

    return re.sub(r"(for: |interval: |offset |\[)(\d+[smh])\b", shorter, ALERTS.read_text())


class Prometheus:
    """A Prometheus that scrapes what it is told to.

    Args:
        folder: for its files.
        faster: what the times of the rules are divided by.
        scrape: seconds between two scrapes.
    """

    def __init__(self, folder: Path, faster: int = FASTER, scrape: int = 2) -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is not installed (Debian: prometheus)")
        self._targets = folder / "targets.json"
        self._groups: dict[str, list[str]] = {}
        self._targets.write_text("[]")
        (folder / "rules.yaml").write_text(rules(faster))
        config = {
            "global": {"scrape_interval": f"{scrape}s", "scrape_timeout": f"{min(scrape, 10)}s"},
            "rule_files": [str(folder / "rules.yaml")],
            "scrape_configs": [{"job_name": "toolbus", "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self._port = free_port()
        words = [
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{self._port}",
        ]
        self._process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(30)

    def scrape(self, name: str, ports: list[int]) -> None:
        """Scrape these ports under a name; none of them ends it."""
        self._groups[name] = [f"127.0.0.1:{port}" for port in ports]
        fresh = self._targets.with_suffix(".new")
        fresh.write_text(json.dumps([{"targets": targets} for targets in self._groups.values() if targets]))
        fresh.replace(self._targets)

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer; None while it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20
            ) as got:
                return json.loads(got.read())["data"]
        except OSError:
            return None

    def up(self, name: str) -> bool:
        """Return whether everything under a name was scraped."""
        found = {
            each["scrapeUrl"].split("/")[2]: each["health"] for each in (self.ask("targets") or {"activeTargets": []})["activeTargets"]
        }
        return all(found.get(target) == "up" for target in self._groups[name])

    def firing(self, namespace: str) -> dict[str, dict[str, str]]:
        """Return the labels of the alerts that fire for a namespace, by name; those of a check have it after a colon."""
        alerts = (self.ask("alerts") or {"alerts": []})["alerts"]
        found = [each for each in alerts if each["state"] == "firing" and each["labels"].get("toolbus_namespace") == namespace]
        names = [each["labels"]["alertname"] + (f":{check}" if (check := each["labels"].get("check")) else "") for each in found]
        return {name: {**each["labels"], **each["annotations"]} for name, each in zip(names, found, strict=True)}
