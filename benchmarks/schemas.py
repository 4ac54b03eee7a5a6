"""Measure definitions of many tools for models, and the repair of arguments by their length."""

from __future__ import annotations

import contextlib
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.limits import Limit, spread
from benchmarks.snapshot import fetch, search
from toolbus import Settings, ToolError
from toolbus.bus.broker.protocols import ServiceRecord
from toolbus.bus.client.tools.catalogue import Catalogue
from toolbus.bus.client.tools.definitions import FORMATS, Format
from toolbus.bus.client.tools.view import ToolView
from toolbus.bus.schema.repair import parse
from toolbus.bus.values.descriptors import Publication, ToolDescriptor
from toolbus.bus.worker.collect import collect

MOST_MS = 50.0
# Memory for more text is slower; a repair that tries things twice grows sixteenfold.
MOST_GROWTH = 4.0
# Formats of which strict mode changes nothing are measured once.
_STRICT: tuple[Format, ...] = ("openai", "responses", "anthropic")
_SHORT = 32_768
_LONG = 524_288
# Shorter times are too short to compare.
_LEAST = 0.001
# Starts, repeated parts and ends of texts that would be slow if the repair tried anything twice.
_STARTS = ("{", '{"a": "', "{'a': '", '{"a": [', '{"a": 1}', '```{"a": "x')
_PARTS = ("\\", "\\w", '\\"', '"', "'", "{", "[", ",]", '"a":', '"a":1,', "True,", " ", "\n", "1", "```")
_ENDS = ("", '"}', "]}")


def measure(tools: int, runs: int) -> tuple[list[Limit], dict[str, Any]]:
    """Make definitions of many tools anew in each format, and repair hostile texts of two lengths."""
    catalogue = _catalogue(tools)
    limits: list[Limit] = []
    figures: dict[str, Any] = {"tools": tools}
    for kind in FORMATS:
        for strict in (True, False) if kind in _STRICT else (False,):
            took = [1000 * _seconds(lambda: ToolView(catalogue).definitions(kind, strict=strict)) for _ in range(runs)]  # noqa: B023
            name = f"{tools:,} definitions, {kind}{', strict' if strict else ''}"
            figures[name] = took
            # The quickest run is the one that other programs disturbed least.
            limits.append(Limit(name, min(took), MOST_MS if strict else 2 * MOST_MS, "ms CPU", detail=spread(took, 1)))
    growth = {text: _growth(*text) for text in ((start, part, end) for start in _STARTS for part in _PARTS for end in _ENDS)}
    worst = max(growth, key=growth.__getitem__)
    figures["growth"] = {"".join(text): each for text, each in growth.items()}
    detail = f"{worst!r}; median {statistics.median(growth.values()):.2f}"
    limits.append(
        Limit(f"repair per character, {_LONG:,} against {_SHORT:,} characters", growth[worst], MOST_GROWTH, "times", detail=detail)
    )
    return limits, figures


def _catalogue(tools: int) -> Catalogue:
    """Return a catalogue of tools as a publication brings them, each with its own schema."""
    one = collect([search, fetch], Settings.load({}))[0].publication
    made: list[ToolDescriptor] = []
    for number in range(tools):
        tool = one.tools[number % len(one.tools)]
        named = msgspec.structs.replace(tool, name=f"{tool.name}_{number:05}", description=f"{tool.description} This is number {number}.")
        made.append(msgspec.json.decode(msgspec.json.encode(named), type=ToolDescriptor))
    catalogue = Catalogue()
    catalogue.on_service(one.service.id, ServiceRecord(Publication(one.service, tuple(made), one.owner).with_digest(), live=True))
    return catalogue


def _seconds(action: Callable[[], object]) -> float:
    """Return the processor time that an action takes."""
    gc.collect()
    began = time.process_time()
    kept = action()
    took = time.process_time() - began
    del kept
    return took


def _growth(start: str, part: str, end: str) -> float:
    """Return how many times as long a character takes in a long text as in a shorter one."""
    short, long = (start + part * (length // len(part)) + end for length in (_SHORT, _LONG))
    return (_repairing(long) / len(long)) / (max(_repairing(short), _repairing(short), _LEAST) / len(short))


def _repairing(text: str) -> float:
    """Return the processor time that the repair of a text takes."""
    began = time.process_time()
    with contextlib.suppress(ToolError):
        parse(text)
    return time.process_time() - began
