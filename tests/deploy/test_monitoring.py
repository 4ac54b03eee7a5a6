"""Dashboards and alerts: every metric is one of ours, the rules do what they say, and a real Prometheus answers every query."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell
from tests.deploy.monitoring import ALERTS, DASHBOARDS, labels_in, metrics_in, panels, queries
from tests.forking import ForkServer
from tests.servers import eventually_sync
from toolbus.bus.broker.transport.embedded import free_port
from toolbus.bus.telemetry.metrics import EXPOSED

# Of the metrics themselves, and what Prometheus adds.
LABELS = {
    "toolbus_namespace",
    "check",
    "runbook",
    "messaging_destination_name",
    "gen_ai_tool_name",
    "error_type",
    "state",
    "version",
    "python",
    "le",
    "job",
    "instance",
}
# Metrics that have no sample until something goes wrong.
QUIET = {"toolbus_worker_refused_total"}
TOOLS = '''
"""Tools that succeed and fail."""

from toolbus import tool


@tool(effect="read")
async def fine(text: str) -> str:
    """Give a text back."""
    return text


@tool(effect="read")
async def broken() -> str:
    """Fail."""
    raise ValueError("broken")
'''
SELECTOR = re.compile(r"\b((?:toolbus|gen_ai|process)_\w+)(\{[^}]*\})?")
PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")


def test_every_metric_and_label_is_one_of_ours() -> None:
    """A query that names another one would show nothing, and nobody would notice."""
    every = list(queries())
    for place, query in every:
        assert metrics_in(query), place
        assert metrics_in(query) <= EXPOSED.keys(), place
        assert labels_in(query) <= LABELS, place
    used = {name for _, query in every for name in metrics_in(query)}
    assert used == EXPOSED.keys()


def test_counters_are_rated_and_gauges_are_not() -> None:
    """The rate of a gauge, and a bare counter, say nothing."""
    for place, query in queries():
        for name in metrics_in(query):
            rated = any(f"{function}({name}" in query for function in ("rate", "increase", "resets"))
            assert rated == (EXPOSED[name][0] != "gauge"), (place, name)


def test_dashboards_can_be_loaded_by_every_grafana() -> None:
    """They name no data source of their own, their panels have ids and do not overlap, and each says what it shows."""
    assert DASHBOARDS
    for file in DASHBOARDS:
        board = json.loads(file.read_text())
        assert board["uid"] == file.stem
        ids = [panel["id"] for panel in board["panels"]]
        assert len(set(ids)) == len(ids)
        cells: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            taken = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            assert not taken & cells, panel["title"]
            assert place["x"] + place["w"] <= 24
            cells |= taken
    for title, panel in panels():
        assert panel["description"], title
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_dashboards_show_one_installation() -> None:
    """Each metric of a panel, and each variable but the namespace, is asked for the namespace that was chosen."""
    for file in DASHBOARDS:
        variables = {each["name"]: each.get("definition", "") for each in json.loads(file.read_text())["templating"]["list"]}
        assert variables.pop("namespace") == "label_values(toolbus_up, toolbus_namespace)"
        asked = [(title, target["expr"]) for title, panel in panels() for target in panel["targets"]]
        for place, query in [*asked, *((name, query) for name, query in variables.items() if query)]:
            selectors = [each for each in SELECTOR.findall(query) if each[0] not in LABELS]
            assert selectors, place
            assert all('toolbus_namespace="$namespace"' in chosen for _, chosen in selectors), place


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
@pytest.mark.parametrize("words", [("check", "rules", str(ALERTS)), ("test", "rules", str(Path(__file__).parent / "alerts.yaml"))])
def test_alerts_fire_when_they_should(words: tuple[str, ...]) -> None:
    """Each of them fires for its cause, and not for what looks like it."""
    done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Prometheus:
    """A real one, which is asked over HTTP."""

    def __init__(self, port: int, namespace: str) -> None:
        self._namespace = namespace
        self._url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer, or None while it does not answer."""
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}", timeout=20) as answer:
                return json.loads(answer.read())["data"]
        except OSError:
            return None

    def query(self, query: str) -> list[Any]:
        """Return the samples that a query finds now; with the variables of Grafana filled in."""
        filled = query.replace("$__rate_interval", "1m").replace("$service", ".*").replace("$namespace", self._namespace)
        found = self.ask("query", query=filled)
        return [] if found is None else found["result"]


@pytest.fixture
def prometheus(slow: None, tmp_path: Path, forks: ForkServer, server: str, namespace: str) -> Iterator[Prometheus]:
    """Return a Prometheus that scrapes a worker and a gateway of the test's namespace, which have served some calls."""
    shell = Shell(forks, tmp_path, server, namespace)
    (tmp_path / "watched.py").write_text(TOOLS)
    ports = {"worker": free_port(), "gateway": free_port()}
    http, own = free_port(), free_port()
    scrapes = [{"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for job, port in ports.items()]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "rule_files": [str(ALERTS)], "scrape_configs": scrapes}
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    process: subprocess.Popen[bytes] | None = None
    try:
        shell.start_anew("worker", "watched.py", "--processes", "2", "--health-port", str(ports["worker"]))
        shell.start_anew("serve", "--port", str(http), "--health-port", str(ports["gateway"]))
        assert shell.run("call", "fine", "text=x", "--wait", "30").returncode == 0
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={tmp_path / 'prometheus.yml'}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{own}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        made = Prometheus(own, namespace)

        def scraped() -> bool:
            targets = made.ask("targets") or {"activeTargets": []}
            return [each["health"] for each in targets["activeTargets"]] == ["up", "up"]

        eventually_sync(scraped, timeout=60)
        for body in ({"tool_id": "fine", "params": {"text": "x"}}, {"tool_id": "broken", "params": {}}, {"tool_id": "fine", "params": {}}):
            _post(f"http://127.0.0.1:{http}/run_tool", body)
        yield made
    finally:
        if process is not None:
            process.terminate()
            process.wait(timeout=30)
        shell.close()


def _post(url: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def answered() -> bool:
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return bool(answer.read())
        except urllib.error.HTTPError as error:
            return error.code != 503
        except OSError:
            return False

    eventually_sync(answered, timeout=60)


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: prometheus)")
def test_a_prometheus_answers_every_query(prometheus: Prometheus) -> None:
    """Every panel shows something while a worker and a gateway serve; every alert has been evaluated and is quiet or waits."""
    for place, query in queries():
        if not place.startswith("Toolbus") and not metrics_in(query) & QUIET:
            eventually_sync(lambda query=query: prometheus.query(query), timeout=60)
    groups = eventually_sync(lambda: (prometheus.ask("rules") or {}).get("groups"), timeout=60)
    assert {rule["name"]: rule.get("lastError") for group in groups for rule in group["rules"] if rule.get("lastError")} == {}
    said = {each["metric"]["__name__"] for each in prometheus.query('{job=~"worker|gateway"}')}
    assert {name for name in EXPOSED if EXPOSED[name][0] != "histogram"} - QUIET <= said
