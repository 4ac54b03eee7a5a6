"""``python -m tests.outages``: break things as ``make chaos`` does, and list what a Prometheus with the shipped rules says of it."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import click

from tests.chaos.__main__ import judged
from tests.chaos.driver import Driver
from tests.chaos.options import Options
from tests.chaos.report import text
from tests.chaos.schedule import DEFAULT
from tests.outages.monitoring import SCRAPE, Prometheus
from tests.servers import eventually
from toolbus.bus.broker.transport.embedded import HOST, free_port

CAUSED = {
    "ToolbusDeadLetters": "poison kills its workers, and `malformed` writes requests that nobody can read",
    "ToolbusFailures": "the tools `flaky` and `stumble` fail in their first attempts",
    "ToolbusMalformed": "`malformed` writes requests that nobody can read",
    "ToolbusReconnects": "connections are cut more than twice a minute",
    "ToolbusSlowTool": "the tools `silent` and `deep` take up to 48 s",
    "ToolbusTakenOver": "forty workers a minute are killed",
    "ToolbusToolBroken": "the tools `flaky` and `stumble` fail in their first attempts",
    "ToolbusWorkersRestart": "forty workers a minute are killed",
}
"""What a run is meant to be told of, and why; anything else is a false alarm, since the pool heals by itself within seconds.

An alert about a tool is meant to be told only of those that its reason names.
"""


class Alarm(NamedTuple):
    """An alert that fired: its labels, and for which seconds of the run."""

    labels: dict[str, str]
    first: float
    last: float

    @property
    def caused(self) -> str:
        """Why the run is to be told of it; empty for a false alarm."""
        reason = CAUSED.get(self.labels["alertname"], "")
        tool = self.labels.get("gen_ai_tool_name", "")
        return reason if not tool or f"`{tool}`" in reason else ""

    def __str__(self) -> str:
        about = ", ".join(f"{name}={value}" for name, value in sorted(self.labels.items()) if name not in _PLAIN)
        return f"{self.first:5.0f} to {self.last:5.0f} s  {self.labels['alertname']}  {about}  {self.caused or 'FALSE ALARM'}"


_PLAIN = {"__name__", "alertname", "alertstate", "job", "severity", "toolbus_namespace", "runbook"}


def alarms(found: Iterable[dict[str, Any]], began: float) -> list[Alarm]:
    """Return the alarms of the series that Prometheus has, the first one first."""
    made = [Alarm(each["metric"], float(each["values"][0][0]) - began, float(each["values"][-1][0]) - began) for each in found]
    return sorted(made, key=lambda alarm: alarm.first)


async def watched(options: Options, folder: Path) -> tuple[float, list[Alarm], int]:
    """Run to the end; return for how long calls were made, which alerts fired meanwhile, and how many samples were scraped."""
    driver, exporter = Driver(options, folder / "chaos", click.echo), free_port()
    began = time.time()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(driver.run())
        await eventually(lambda: driver.server.running, timeout=60)
        url = f"redis://{HOST}:{driver.server.port}"
        words = ("-m", "toolbus", "operate", "exporter", "--port", f"{exporter}", "--url", url, "--namespace", options.namespace)
        with (folder / "exporter.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=log, stderr=log, env=os.environ)
        prometheus = Prometheus(folder, faster=1, scrape=SCRAPE)
        try:
            prometheus.scrape(options.namespace, [exporter, *options.health_ports])
            seconds = await running
            query = {"start": f"{began}", "end": f"{time.time()}", "step": f"{SCRAPE}"}
            found = prometheus.ask("query_range", query='ALERTS{alertstate="firing"}', **query)["result"]
            count = prometheus.ask("query", query=f"sum(sum_over_time(scrape_samples_scraped[{int(time.time() - began)}s])) or vector(0)")
        finally:
            prometheus.close()
            process.terminate()
            await process.wait()
    return seconds, alarms(found, began), int(float(count["result"][0]["value"][1]))


@click.command()
@click.option("--minutes", type=click.FloatRange(0.05, 600), default=60.0, show_default=True, help="How long faults are applied.")
@click.option("--seed", type=int, help="As of `make chaos`; drawn when left out, and told.")
@click.option("--calls", type=click.IntRange(1), default=1500, show_default=True, help="Calls a minute.")
@click.option("--workers", type=click.IntRange(1, 99), default=10, show_default=True, help="Worker processes.")
def main(minutes: float, seed: int | None, calls: int, workers: int) -> None:
    """Run agents and workers under the faults of `make chaos`, and watch them with a real Prometheus (Debian: prometheus).

    Exits with 1 when an alert fired that the run is not meant to be told of, or a promise of toolbus was broken.
    """
    if shutil.which("prometheus") is None:
        raise click.ClickException("prometheus is not installed (Debian: prometheus)")
    options = Options(
        seed=random.SystemRandom().randrange(1_000_000) if seed is None else seed,
        seconds=minutes * 60,
        calls=max(1, round(calls * minutes)),
        workers=workers,
        faults=DEFAULT,
        health_ports=tuple(free_port() for _ in range(workers)),
    )
    folder = Path(tempfile.mkdtemp(prefix="toolbus-alarms-"))
    click.echo(f"seed {options.seed}: {options.calls} calls in {options.seconds:g} s; {folder}")
    seconds, fired, samples = asyncio.run(watched(options, folder))
    found = judged(options, folder / "chaos", seconds)
    click.echo(text(found))
    false = [each for each in fired if not each.caused]
    click.echo("\n".join(map(str, fired)))
    click.echo(f"alerts: {len(fired)} fired in {seconds:.0f} s, of them {len(false)} false alarms; {samples} samples were scraped")
    # A Prometheus that saw nothing has no alarms, either.
    passed = found.passed and not false and samples > 0
    if passed:
        shutil.rmtree(folder)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
