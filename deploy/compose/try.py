"""Try the compose stack: bring it up, call a tool, and find the call in Prometheus and in Grafana.

python3 deploy/compose/try.py            up, try, down; it needs docker with its compose plugin
python3 deploy/compose/try.py --keep     leave it running
python3 deploy/compose/try.py --running  try one that is up already
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
COMPOSE = FOLDER.parent / "compose.yaml"
SECONDS = 180.0
CALL = {"tool_id": "calculator", "params": {"expression": "6*7"}}
# Nothing is refused or cancelled here, so these have no sample.
QUIET = ("toolbus_worker_refused_total", "toolbus_worker_cancelled_total", "toolbus_worker_failures_total")


class Failed(Exception):
    """A step failed; the message says what to do."""


def main(words: list[str] | None = None) -> int:
    """Run the steps; return the exit code."""
    options = _parser().parse_args(words)
    began = time.monotonic()
    deadline = began + options.seconds

    def told(step: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {step}", flush=True)

    try:
        if not options.running:
            _compose("up", "--build", "--wait", within=deadline - time.monotonic())
            told("the stack is up")
        _steps(options, deadline, told)
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if not (options.running or options.keep):
            _down()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the stack running")
    parser.add_argument("--running", action="store_true", help="the stack is up already; leave it so")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the most that all steps may take (%(default)g)")
    parser.add_argument("--gateway", default="http://127.0.0.1:8001", metavar="URL", help="%(default)s")
    parser.add_argument("--prometheus", default="http://127.0.0.1:9090", metavar="URL", help="%(default)s")
    parser.add_argument("--grafana", default="http://127.0.0.1:3000", metavar="URL", help="%(default)s")
    return parser


def _compose(*words: str, within: float) -> None:
    if shutil.which("docker") is None:
        raise Failed("docker is not on PATH; install it, or give --running with the URLs of a stack that is up")
    try:
        done = subprocess.run(["docker", "compose", "-f", str(COMPOSE), *words], check=False, timeout=max(within, 1.0))
    except subprocess.TimeoutExpired:
        raise Failed("the stack was not up in time; give more --seconds where images are not there yet") from None
    if done.returncode != 0:
        raise Failed(f"`docker compose {' '.join(words)}` ended with {done.returncode}; see its messages above")


def _down() -> None:
    if shutil.which("docker") is not None:
        subprocess.run(["docker", "compose", "-f", str(COMPOSE), "down", "--volumes"], check=False)


def _steps(options: argparse.Namespace, deadline: float, told: Callable[[str], None]) -> None:
    answer = _until(deadline, "the gateway does not answer the call", lambda: _ask(f"{options.gateway}/run_tool", CALL))
    if "42" not in json.dumps(answer):
        raise Failed(f"the gateway answered {json.dumps(answer)[:300]} instead of 42")
    told("the gateway answered 42")

    def calls(base: str) -> float:
        found = _query(base, 'sum(toolbus_worker_attempts_total{gen_ai_tool_name="calculator"})')
        return float(found[0]["value"][1]) if found else 0.0

    _until(deadline, "the call is not in Prometheus", lambda: calls(options.prometheus) >= 1)
    told("Prometheus has the call")
    board = _until(deadline, "Grafana has no dashboard `toolbus`", lambda: _ask(f"{options.grafana}/api/dashboards/uid/toolbus"))
    panels = [panel["title"] for panel in board["dashboard"]["panels"]]
    proxy = f"{options.grafana}/api/datasources/proxy/uid/prometheus"
    _until(deadline, "the call is not in Grafana's data source", lambda: calls(proxy) >= 1)
    told(f"Grafana has the call and the dashboard of {len(panels)} panels")
    # A rate needs two samples, between which there is another call.
    _ask(f"{options.gateway}/run_tool", CALL)
    watched = _until(deadline, "no process says that it is up", lambda: _query(proxy, "toolbus_up"))
    for title, query in _queries(board["dashboard"], watched[0]["metric"]["toolbus_namespace"]):
        _until(deadline, f"the panel {title!r} shows nothing: {query}", lambda query=query: _query(proxy, query))
    told("every panel shows something")


def _queries(board: dict[str, Any], namespace: str) -> list[tuple[str, str]]:
    """Return the title and each query of a dashboard, with its variables filled in."""
    values = {"namespace": namespace, "service": ".*", "__rate_interval": "1m"}
    found = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", ())]
    filled = [(title, re.sub(r"\$\{?(\w+)\}?", lambda name: values[name[1]], query)) for title, query in found]
    return [(title, query) for title, query in filled if not any(name in query for name in QUIET)]


def _query(base: str, query: str) -> list[Any]:
    answer = _ask(f"{base}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    return [] if answer is None else answer["data"]["result"]


def _ask(url: str, body: dict[str, Any] | None = None) -> Any:
    """Return the JSON of an answer, or None while there is none."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError):
        return None


def _until(deadline: float, failure: str, ask: Callable[[], Any]) -> Any:
    while not (found := ask()):
        if time.monotonic() > deadline:
            raise Failed(f"{failure}; `docker compose -f {COMPOSE.name} ps` and `logs` say more")
        time.sleep(0.5)
    return found


if __name__ == "__main__":
    sys.exit(main())
