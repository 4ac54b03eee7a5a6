"""Measure a large registry: the cost of ten thousand services for an agent that opens its bus, and for the server.

Tools come in two forms: with a list of arguments, as service classes have it, and with the JSON Schema derived from a
function. Each form has its own namespace, and each run its own agent process.

    python -m benchmarks.snapshot --url redis://127.0.0.1:6379 --namespace n --tools 20000     (an agent's process)
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import redis

from benchmarks import scripttimes
from benchmarks.adapters.contract import run
from benchmarks.limits import Limit, spread
from benchmarks.processes import child, resident
from toolbus import Settings, ToolService, tool
from toolbus.bus.broker.registry.registry import Registry
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.broker.transport.connection import Connector
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.bus.broker.transport.links import ShortLink
from toolbus.bus.values.descriptors import Publication
from toolbus.bus.worker.collect import collect

MEGABYTE = 1024 * 1024
EMPTY = "empty"
TOOLS_EACH = 2
_AT_ONCE = 256
_LEASE = 3600.0
_OPEN_SECONDS = 60.0


class Weather(ToolService):
    """Publishes tools in the two-tier form."""

    id = "weather"
    description = "Weather reports and forecasts of one region, from the stations of the national service."
    config_params = ("region",)
    _arguments = (
        {"name": "place", "type": "string", "description": "Name of a town, or latitude and longitude.", "required": True},
        {"name": "day", "type": "string", "description": "Date as YYYY-MM-DD; today when it is left out."},
        {"name": "units", "type": "string", "description": "metric or imperial."},
    )
    tools = (
        {"name": "report", "description": "The latest report for a place.", "region": "north", "arguments": _arguments},
        {"name": "forecast", "description": "The forecast for a place and a day.", "region": "north", "arguments": _arguments},
    )

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        """Return nothing: only the publication is measured."""
        return ""


@tool(service="search", effect="read")
async def search(query: str, limit: int = 10, language: str = "en") -> str:
    """Search the documents of one collection and give the best passages.

    Args:
        query: words, or a question in full
        limit: the most passages to give
        language: two letters, as in ISO 639
    """
    return query


@tool(service="search", effect="read")
async def fetch(document: str, page: int = 1, width: int = 80) -> str:
    """Fetch one page of a document as plain text.

    Args:
        document: its id, as the search gives it
        page: counted from 1
        width: columns to wrap the text at
    """
    return document


FORMS: dict[str, list[Any]] = {"arguments": [Weather], "schema": [search, fetch]}


def measure(services: int, runs: int) -> tuple[list[Limit], dict[str, Any]]:
    """Fill a registry with services, and let agents open their buses on it, one after the other."""
    limits: list[Limit] = []
    figures: dict[str, Any] = {"services": services}
    with EmbeddedServer() as server, redis.Redis.from_url(server.url, socket_timeout=60) as client:
        client.config_set("slowlog-max-len", 100_000)
        idle = [_opened(server.url, EMPTY, 0) for _ in range(runs)]
        figures[EMPTY] = idle
        for form, served in FORMS.items():
            rate = services / run(register(server.url, form, publications(served, services)))
            print(f"{services:,} services with tools by {form}: registered at {rate:,.0f}/s", flush=True)
            opened, held = [], []
            for _ in range(runs):
                _log_everything(client)
                opened.append(_opened(server.url, form, TOOLS_EACH * services))
                held.append(_longest(client))
            limits += _limits(form, opened, held, idle)
            figures[form] = {"registered_per_s": rate, "opened": opened, "longest_ms": held}
    return limits, figures


def publications(served: list[Any], services: int) -> Iterator[Publication]:
    """Yield the publications of services with the same tools under different names and descriptions."""
    one = collect(served, Settings.load({}))[0].publication
    for number in range(services):
        service = f"{one.service.id}-{number:05}"
        tools = tuple(
            msgspec.structs.replace(
                tool, name=f"{tool.name}-{number:05}", service=service, description=f"{tool.description} This is number {number}."
            )
            for tool in one.tools
        )
        yield Publication(msgspec.structs.replace(one.service, id=service), tools, one.owner).with_digest()


async def register(url: str, namespace: str, publications: Iterator[Publication]) -> float:
    """Register as a worker does, and let the leases run on; return the seconds it took."""
    link = ShortLink(Connector(url))
    await link.connect()
    registry = Registry(link, Keys(namespace), Settings.load({}, url=url, namespace=namespace, lease=_LEASE))
    began = time.perf_counter()
    while batch := list(itertools.islice(publications, _AT_ONCE)):
        await asyncio.gather(*(registry.register(publication, "registrar", 0) for publication in batch))
    took = time.perf_counter() - began
    link.close()
    await asyncio.sleep(0)
    return took


def _opened(url: str, namespace: str, tools: int) -> dict[str, float]:
    """Let an agent open its bus in its own process."""
    command = [sys.executable, "-P", "-m", "benchmarks.snapshot", "--url", url, "--namespace", namespace, "--tools", str(tools)]
    with child("the agent", command) as agent:
        return json.loads(agent.line(_OPEN_SECONDS))


def _log_everything(client: redis.Redis) -> None:
    """Let the server's slow log record every command from now on."""
    client.config_set("slowlog-log-slower-than", 0)
    client.slowlog_reset()


def _longest(client: redis.Redis) -> tuple[float, str]:
    """Return the longest command since then, in milliseconds, and its name."""
    entries = client.slowlog_get(100_000)
    client.config_set("slowlog-log-slower-than", -1)
    return max((entry["duration"] / 1000, scripttimes.name_of(entry["command"])) for entry in entries)


def _limits(form: str, opened: list[dict[str, float]], held: list[tuple[float, str]], idle: list[dict[str, float]]) -> list[Limit]:
    grown = [one["grown"] / MEGABYTE for one in opened]
    seconds = [one["seconds"] for one in opened]
    nothing = statistics.median(one["grown"] for one in idle) / MEGABYTE
    longest, command = max(held)
    return [
        Limit(
            f"an agent's growth when it opens, tools by {form}",
            statistics.median(grown),
            60,
            "MB",
            detail=f"{spread(grown, 1)}; {nothing:.1f} on an empty registry",
        ),
        Limit(f"opening until all tools are known, by {form}", statistics.median(seconds), 1, "s", detail=spread(seconds, 2)),
        Limit(f"longest command during the snapshot, by {form}", longest, 10, "ms", detail=command),
    ]


# -- the agent's process ------------------------------------------------------------------------------


async def _agent(url: str, namespace: str, tools: int) -> dict[str, float]:
    """Open a bus; return the seconds until all tools are known, and the bytes of resident memory that this added."""
    from toolbus import ToolBus

    gc.collect()
    before, began = resident(), time.monotonic()
    async with ToolBus(url, namespace=namespace) as bus, asyncio.timeout(_OPEN_SECONDS):
        while len(bus.tools) < tools:  # noqa: ASYNC110 - the public catalogue is measured, which a snapshot fills at once
            await asyncio.sleep(0.001)
        seconds = time.monotonic() - began
        gc.collect()
        return {"seconds": seconds, "grown": resident() - before}


def main() -> None:
    """Run the process of an agent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--tools", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps(run(_agent(options.url, options.namespace, options.tools))))


if __name__ == "__main__":
    main()
