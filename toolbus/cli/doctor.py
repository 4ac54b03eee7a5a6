"""``doctor``: check what toolbus needs, and say what to mend."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import click

from toolbus.cli.common import fail, output_option, print_json, print_table, settings_of
from toolbus.results import BrokerError, ToolbusError
from toolbus.settings import Settings

_SLOW_MS = 5.0
_SKEWED = 5.0


class Finding(NamedTuple):
    """One check: ``state`` is ok, warn or fail."""

    check: str
    state: str
    found: str


@click.command("doctor")
@output_option
@click.pass_context
def doctor_command(ctx: click.Context, output: str) -> None:
    """Check the server, its memory policy, persistence and latency, and say what to mend."""
    settings = settings_of(ctx)
    findings = asyncio.run(_examine(settings))
    if output == "json":
        print_json([finding._asdict() for finding in findings])
    else:
        print_table(("CHECK", "STATE", "FOUND"), findings, empty="")
    if any(finding.state == "fail" for finding in findings):
        fail("something must be mended, see above")


async def _examine(settings: Settings) -> list[Finding]:
    from toolbus.broker.admin import Admin, ServerHealth
    from toolbus.broker.connection import redact

    findings = [Finding("url", "ok", redact(settings.url))]
    try:
        async with Admin(settings) as admin:
            health: ServerHealth = await admin.health()
            services = await admin.services()
    except BrokerError as error:
        return [*findings, Finding("server", "fail", str(error))]
    except ToolbusError as error:
        return [Finding("url", "fail", str(error))]
    evicts = health.policy not in {"noeviction", "unknown"}
    policy = f"{health.policy}: keys may be evicted; set `maxmemory-policy noeviction`" if evicts else health.policy
    kept = (
        "append-only file is on" if health.append_only else "append-only file is off: a restart forgets queued calls; set `appendonly yes`"
    )
    slow, skewed = health.latency_ms > _SLOW_MS, abs(health.skew) > _SKEWED
    owner = settings.owner or "unset: owners are derived from distributions and modules; set TOOLBUS_OWNER in production"
    return [
        *findings,
        Finding("server", "ok", str(health.server)),
        Finding("scripts", "ok", "all load"),
        Finding("memory policy", "warn" if evicts else "ok", policy),
        Finding("persistence", "ok" if health.append_only else "warn", kept),
        Finding("latency", "warn" if slow else "ok", f"{health.latency_ms:.2f} ms (median of 50)"),
        Finding(
            "clock",
            "warn" if skewed else "ok",
            f"server is {health.skew:+.1f} s from here" + ("; harmless if it stays so" if skewed else ""),
        ),
        Finding("registry", "ok", f"{len(services)} services in namespace {settings.namespace!r}"),
        Finding("owner", "ok" if settings.owner else "warn", owner),
    ]
