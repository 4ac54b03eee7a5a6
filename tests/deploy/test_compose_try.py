"""The compose stack without its images: the same commands, the same configuration of Prometheus, and the same program that tries it.

Workers, gateway, Valkey and Prometheus are real. Grafana is the only part that can't be had without its image: in its place stands a
server that reads the provisioning files as Grafana does, serves the dashboard, and hands queries on to the data source.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.shell import Shell
from tests.deploy.chart import DEPLOY
from tests.forking import ForkServer
from tests.servers import eventually_sync, put_down
from toolbus.bus.broker.transport.embedded import free_port

FOLDER = DEPLOY / "compose"
TRY = FOLDER / "try.py"
PROMETHEUS = shutil.which("prometheus")


class Stack:
    """The services of the compose file as processes of this machine; where a name and a port stand there, a port stands here."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        self.services: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        self._shell = shell
        self._folder = folder
        self._prometheus: subprocess.Popen[bytes] | None = None
        self._grafana: ThreadingHTTPServer | None = None
        self.ports = {name: free_port() for name in ("worker-1", "worker-2", "gateway", "prometheus", "http")}

    def url(self, name: str) -> str:
        """The URL of a service."""
        return f"http://127.0.0.1:{self.ports[name]}"

    def start(self) -> None:
        """Start all of it, with the commands and files of the compose file."""
        for name in ("worker-1", "worker-2", "gateway"):
            self._shell.start_anew(*self._command(name))
        self._start_prometheus()
        self._start_grafana()

    def _command(self, name: str) -> list[str]:
        """The command of a service, which listens on loopback only, at a port of its own."""
        words = ["127.0.0.1" if word == "0.0.0.0" else word for word in self.services[name]["command"]]
        words[words.index("--health-port") + 1] = str(self.ports[name])
        return [*words, "--port", str(self.ports["http"])] if name == "gateway" else words

    def _start_prometheus(self) -> None:
        text = (FOLDER / "prometheus.yaml").read_text()
        for name in ("worker-1", "worker-2", "gateway"):
            assert f"{name}:8080" in text
            text = text.replace(f"{name}:8080", f"127.0.0.1:{self.ports[name]}")
        (self._folder / "prometheus.yml").write_text(text)
        shutil.copy(DEPLOY / "monitoring" / "alerts.yaml", self._folder)
        words = [f"--config.file={self._folder / 'prometheus.yml'}", f"--storage.tsdb.path={self._folder / 'data'}"]
        words.append(f"--web.listen-address=127.0.0.1:{self.ports['prometheus']}")
        with (self._folder / "prometheus.log").open("wb") as log:
            self._prometheus = subprocess.Popen([str(PROMETHEUS), *words], stdout=log, stderr=log)

    def _start_grafana(self) -> None:
        [source] = yaml.safe_load((FOLDER / "datasources.yaml").read_text())["datasources"]
        [provider] = yaml.safe_load((FOLDER / "dashboards.yaml").read_text())["providers"]
        configs = {config["source"]: config["target"] for config in self.services["grafana"]["configs"]}
        files = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["configs"]
        assert configs["dashboard"].startswith(f"{provider['options']['path']}/")
        board = json.loads((DEPLOY / files["dashboard"]["file"]).read_text())
        assert source["url"] == "http://prometheus:9090"
        self._grafana = ThreadingHTTPServer(("127.0.0.1", 0), _provisioned(source["uid"], self.url("prometheus"), board))
        self.ports["grafana"] = self._grafana.server_port
        threading.Thread(target=self._grafana.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Stop all of it."""
        if self._grafana is not None:
            self._grafana.shutdown()
            self._grafana.server_close()
        if self._prometheus is not None:
            put_down(self._prometheus)  # type: ignore[arg-type]
        self._shell.close()


def _provisioned(uid: str, prometheus: str, board: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    """Return what answers at Grafana's paths for one data source and one dashboard."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            proxy = f"/api/datasources/proxy/uid/{uid}/"
            if self.path == f"/api/dashboards/uid/{board['uid']}":
                self._answer(200, json.dumps({"dashboard": board}).encode())
            elif self.path.startswith(proxy):
                try:
                    with urllib.request.urlopen(f"{prometheus}/{self.path.removeprefix(proxy)}", timeout=20) as answer:
                        self._answer(200, answer.read())
                except OSError:
                    self._answer(502, b"{}")
            else:
                self._answer(404, b"{}")

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


@pytest.fixture
def stack(tmp_path: Path, forks: ForkServer, valkey_server: str, namespace: str) -> Iterator[Stack]:
    """Return the stack, started."""
    shell = Shell(forks, tmp_path, valkey_server, namespace)
    made = Stack(shell, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(300)
@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed (Debian: prometheus)")
def test_a_call_is_shown_by_every_panel(stack: Stack) -> None:
    """From nothing to a call that Prometheus has, and that all panels of the dashboard show, within three minutes."""
    urls = {"gateway": "http", "prometheus": "prometheus", "grafana": "grafana"}
    words = [word for option, name in urls.items() for word in (f"--{option}", stack.url(name))]
    done = subprocess.run([sys.executable, str(TRY), "--running", *words], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("every panel shows something")
    health = eventually_sync(lambda: _targets(stack), timeout=60)
    assert health == {"worker": ["up", "up"], "gateway": ["up"]}


def _targets(stack: Stack) -> dict[str, list[str]]:
    with urllib.request.urlopen(f"{stack.url('prometheus')}/api/v1/targets", timeout=20) as answer:
        targets = json.loads(answer.read())["data"]["activeTargets"]
    found: dict[str, list[str]] = {}
    for target in targets:
        found.setdefault(target["labels"]["job"], []).append(target["health"])
    return found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "docker is not on PATH"),
        (["--running", "--seconds", "0.1", "--gateway", "http://127.0.0.1:1"], "the gateway does not answer the call"),
    ],
)
def test_what_is_missing_is_told_in_one_line(words: list[str], told: str) -> None:
    """No docker, and no stack; nothing is started or stopped then."""
    environment = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run([sys.executable, str(TRY), *words], capture_output=True, text=True, timeout=100, check=False, env=environment)
    assert done.returncode == 1
    assert told in done.stderr
    assert done.stderr.count("\n") == 1


def test_its_urls_are_those_of_the_compose_file() -> None:
    """Without options it asks the ports that the compose file opens."""
    program = runpy.run_path(str(TRY))
    options = program["_parser"]().parse_args([])
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name in ("gateway", "prometheus", "grafana"):
        [port] = services[name]["ports"]
        assert getattr(options, name) == f"http://{port.rpartition(':')[0]}"
    assert program["COMPOSE"] == DEPLOY / "compose.yaml"
