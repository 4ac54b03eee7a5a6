"""``demo``: show everything toolbus does, with real processes, in under half a minute."""

from __future__ import annotations

import asyncio
import sys
import time

import click

from toolbus.cli.common import fail


@click.command("demo")
def demo_command() -> None:
    """Run and check the main features.

    These are discovery, calls, streams, a killed worker and a plugged-in service. The demo starts its own server on a free
    port, and exits with 0 only if every check passed.
    """
    try:
        from toolbus.demo.conductor import Demo
    except ImportError as error:
        fail(f"the demo needs more packages ({error}): pip install 'toolbus[demo]'")
    started = time.monotonic()
    demo = Demo(lambda line: click.echo(f"{time.monotonic() - started:6.2f} s  {line}"))
    checks = asyncio.run(demo.run())
    click.echo("\nchecks")
    for check in checks:
        mark = click.style("held  ", fg="green") if check.held else click.style("BROKEN", fg="red")
        click.echo(f"  {mark}  {check.name}: {check.evidence}")
    click.echo("\nsummary")
    for name, value in demo.summary.items():
        click.echo(f"  {name:12} {value}")
    click.echo(f"  {'seconds':12} {time.monotonic() - started:.1f}")
    if not all(check.held for check in checks):
        sys.exit(1)
