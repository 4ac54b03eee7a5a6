"""The compose file: it is one, what it mounts is there, and what it starts is what the program takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart import DEPLOY
from toolbus.operations.cli import main

COMPOSE = DEPLOY / "compose.yaml"
FOLDER = DEPLOY / "compose"
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Return the services, with anchors filled in."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_it_is_a_compose_file() -> None:
    """The Compose Specification's own grammar accepts it, and every config, network, secret and volume that is used is declared."""
    merged = yaml.safe_dump(yaml.safe_load(COMPOSE.read_text()))
    import compose_spec  # a second of every collection

    compose = compose_spec.PyOptions().from_yaml(merged)
    for check in ("validate", "validate_configs", "validate_networks", "validate_secrets", "validate_volumes"):
        getattr(compose, check)()
    assert set(compose.service_names()) == {"valkey", "worker-1", "worker-2", "gateway", "collector", "prometheus", "grafana"}


def test_a_mistake_in_it_is_found() -> None:
    """The grammar is strict: a key that there is not is refused."""
    import compose_spec

    with pytest.raises(ValueError, match="imagee"):
        compose_spec.PyOptions().from_yaml("services:\n  a:\n    imagee: x\n")


def test_what_it_mounts_is_there(services: dict[str, Any]) -> None:
    """Each config is a file of this folder, and each is used."""
    configs = yaml.safe_load(COMPOSE.read_text())["configs"]
    for config in configs.values():
        assert (DEPLOY / config["file"]).is_file()
    used = {config["source"] for service in services.values() for config in service.get("configs", [])}
    assert used == configs.keys()
    for service in services.values():
        if "build" in service:
            assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"


def test_every_command_is_one_of_the_program(services: dict[str, Any]) -> None:
    """Workers and the gateway answer probes inside of the network, run without rights, and are asked for their health."""
    ours = [service for service in services.values() if service["image"] == "toolbus:local"]
    assert len(ours) == 3
    for service in ours:
        name, *words = service["command"]
        command = main.get_command(main.make_context("toolbus", ["--help"], resilient_parsing=True), name)
        assert command is not None
        given = command.make_context(name, words).params
        assert (given["health_host"], given["health_port"]) == ("0.0.0.0", 8080)
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert "8080/ready" in service["healthcheck"]["test"][-1]


def test_ports_are_for_this_machine_only(services: dict[str, Any]) -> None:
    """The gateway is open to whoever reaches it, so nobody else does."""
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_scrapes_what_runs(services: dict[str, Any]) -> None:
    """Each target is a service and the port at which it answers; traces go to the collector's receiver."""
    scrapes = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    targets = {target for scrape in scrapes for static in scrape["static_configs"] for target in static["targets"]}
    assert targets == {f"{name}:8080" for name, service in services.items() if service["image"] == "toolbus:local"}
    collector = yaml.safe_load((FOLDER / "collector.yaml").read_text())
    port = collector["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    assert services["gateway"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://collector:{port}"
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= collector[kind].keys()


def test_grafana_finds_the_dashboard(services: dict[str, Any]) -> None:
    """The provider's folder is that of the mounted file, and the data source leads to Prometheus."""
    [provider] = yaml.safe_load((FOLDER / "dashboards.yaml").read_text())["providers"]
    mounted = {config["source"]: Path(config["target"]) for config in services["grafana"]["configs"]}
    assert str(mounted["dashboard"].parent) == provider["options"]["path"]
    assert services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == str(mounted["dashboard"])
    [source] = yaml.safe_load((FOLDER / "datasources.yaml").read_text())["datasources"]
    assert (source["type"], source["url"]) == ("prometheus", "http://prometheus:9090")


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_reads_its_configuration(tmp_path: Path) -> None:
    """Beside the rules that it names."""
    shutil.copy(FOLDER / "prometheus.yaml", tmp_path)
    shutil.copy(DEPLOY / "monitoring" / "alerts.yaml", tmp_path)
    words = [str(PROMTOOL), "check", "config", "prometheus.yaml"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
