"""``doctor``: check what toolbus needs, and say what to fix."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, NamedTuple

from toolbus.bus.support.display import one_line
from toolbus.bus.values.results import BrokerError, ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.operations.cli.command import Output, command, option
from toolbus.operations.cli.common import settings_with_server
from toolbus.operations.cli.output import fail, show

if TYPE_CHECKING:
    from toolbus.bus.broker.admin import ServerHealth
    from toolbus.bus.broker.versions import NamespaceVersion, SpokenBy
    from toolbus.platform.records import RecordedTool

_SLOW_MS = 5.0
_SKEWED = 5.0
# Seconds for the attempt without a password.
_ATTEMPT = 5.0
_SERVICE = "the service {0!r}, which no worker has served yet: start one that serves it, or `toolbus operate items rm tool/{1}`"


class Finding(NamedTuple):
    """The result of one check; ``state`` is ok, warn or fail."""

    check: str
    state: str
    found: str


@command("doctor")
def doctor_command(
    deep: Annotated[bool, option("Also try calls, a stream, a cancellation and a worker's death, with a service of its own.")],
    output: Output,
) -> None:
    """Check the server and say what to fix. Memory policy, persistence and latency are checked, too.

    --deep needs the rights of an agent and a worker (`toolbus secure acl agent worker`), takes some seconds, and leaves nothing behind.
    """
    settings = settings_with_server()
    findings = asyncio.run(_examine(settings))
    if deep and not any(finding.state == "fail" for finding in findings):
        findings += asyncio.run(_try(settings))
    columns = {"CHECK": "check", "STATE": "state", "FOUND": "found"}
    show(output, findings, columns, empty="", document=[finding._asdict() for finding in findings])
    if any(finding.state == "fail" for finding in findings):
        fail("something must be fixed, see above")


async def _try(settings: Settings) -> list[Finding]:
    from toolbus.operations.diagnosis import Trials

    return [Finding(each.name, each.state, each.found) async for each in Trials(settings).run()]


async def _examine(settings: Settings) -> list[Finding]:
    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.client.tools.catalogue import catalogue_of
    from toolbus.bus.values.urls import redact
    from toolbus.operations.cli.secure import pending, refused, title
    from toolbus.platform.store import Reader

    findings = [Finding("url", "ok", redact(settings.url))]
    try:
        async with Admin(settings) as admin:
            health = await admin.health()
            roles = await admin.roles()
            snapshot = await admin.snapshot()
            catalogue = catalogue_of(snapshot, require_approval=settings.require_approval)
            protocol = _protocol(await admin.versions.read(), await admin.versions.workers())
    except BrokerError as error:
        return [*findings, Finding("server", "fail", str(error))]
    except ToolbusError as error:
        return [Finding("url", "fail", str(error))]
    records = Reader().snapshot(catalogue.documents.by_key)
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
        _replicas(health, settings.wait_replicas),
        Finding("latency", "warn" if slow else "ok", f"{health.latency_ms:.2f} ms (median of 50)"),
        Finding(
            "clock",
            "warn" if skewed else "ok",
            f"server is {round(health.skew, 1) + 0.0:+.1f} s from here" + ("; harmless if it stays so" if skewed else ""),
        ),
        _role(roles),
        *await _nobody(settings),
        protocol,
        Finding("registry", "ok", f"{len(snapshot[0])} services in namespace {settings.namespace!r}"),
        *(
            Finding("tool" if tool.service else "preset", "fail", f"{title(tool)} can't be used: {one_line(tool.reason, 300)}")
            for tool in refused(catalogue)
        ),
        # Groups that can't be read are among what agents refuse.
        *(
            Finding("record", "fail", f"a recorded tool or its label can't be used: {one_line(each.reason, 300)}")
            for each in records.refused
            if not each.key.startswith("group/")
        ),
        *(Finding("tool", "warn", f"{tool.name} waits for {_SERVICE.format(tool.service, tool.name)}") for tool in pending(catalogue)),
        await asyncio.to_thread(_confinement, records.tools.values(), confine=settings.confine),
        Finding("owner", "ok" if settings.owner else "warn", owner),
    ]


def _confinement(tools: Iterable[RecordedTool], *, confine: bool) -> Finding:
    """Say how a host of this machine would run the programs that models wrote."""
    from toolbus.platform.backends.confinement import why_not

    named = ", ".join(tool.tool_id for tool in tools if tool.by_model and any(source.type == "local" for source in tool.sources))
    programs = f"programs that models wrote ({one_line(named, 200)})" if named else "programs that models write"
    if not confine:
        return Finding("confinement", "warn", f"{programs} have all rights of a host here: TOOLBUS_CONFINE is off")
    if reason := why_not():
        said = f"{programs} are refused by a host here: this machine can't confine them ({reason})"
        return Finding("confinement", "warn" if named else "ok", said)
    return Finding("confinement", "ok", f"{programs} are confined by a host here")


def _protocol(namespace: NamespaceVersion, workers: list[SpokenBy]) -> Finding:
    """Say which versions of the protocol were seen, and what keeps the namespace from the newest."""
    from toolbus.bus.broker.versions import OURS, speaks, spoken
    from toolbus.bus.values.envelope import VERSION

    seen = Counter(spoken(each.versions) for each in workers)
    found = "; ".join(
        [
            f"the namespace is of version {namespace.written}",
            f"this process speaks {spoken(OURS)}",
            *(f"{count} instance{'s speak' if count > 1 else ' speaks'} {versions}" for versions, count in sorted(seen.items())),
        ]
    )
    try:
        namespace.check()
    except BrokerError as error:
        return Finding("protocol", "fail", str(error))
    if namespace.raising:
        return Finding(
            "protocol", "warn", f"{found}; it is being raised to version {namespace.raising}: run `toolbus operate migrate` again"
        )
    if namespace.written < VERSION:
        behind = [each for each in workers if not speaks(each.versions, VERSION)]
        advice = f"upgrade {behind[0].service}/{behind[0].instance} and all like it" if behind else "`toolbus operate migrate` raises it"
        return Finding("protocol", "warn", f"{found}; {advice}")
    return Finding("protocol", "ok", found)


def _role(roles: list[str] | None) -> Finding:
    if roles is None:
        return Finding(
            "role", "warn", "this user may do everything on the server; `toolbus secure acl ROLE` prints the least rights of each role"
        )
    if not roles:
        return Finding("role", "warn", "this user has none of the roles of `toolbus secure acl` in this namespace")
    return Finding("role", "ok", " and ".join(roles))


async def _nobody(settings: Settings) -> list[Finding]:
    """Try once whether the server lets in users without a password; nothing is tried when this process is such a user."""
    from msgspec.structs import replace

    from toolbus.bus.broker.admin import Admin
    from toolbus.bus.values.urls import without_credentials

    anonymous = replace(settings, url=without_credentials(settings.url), password_file="")
    if anonymous == settings:
        return []
    check = "no password"
    try:
        async with asyncio.timeout(_ATTEMPT), Admin(anonymous) as admin:
            roles = await admin.roles()
    except ToolbusError:
        return [Finding(check, "ok", "the server refuses users without a password")]
    except TimeoutError:
        return [Finding(check, "warn", f"the server did not say within {_ATTEMPT:g} s whether it refuses users without a password")]
    if roles == []:
        return [Finding(check, "ok", "users without a password have no role in this namespace")]
    may = "may do everything" if roles is None else f"have the rights of {' and '.join(roles)}"
    advice = "make a user for administrators, then `ACL SETUSER default off` (docs/how-to/roles.md)"
    return [Finding(check, "warn", f"users without a password {may} on the server: {advice}")]


def _replicas(health: ServerHealth, waited_for: int) -> Finding:
    if waited_for > health.replicas:
        found = f"{health.replicas} connected, and TOOLBUS_WAIT_REPLICAS is {waited_for}: no `once` call runs until there are as many"
        return Finding("replicas", "fail", found)
    if not health.replicas:
        return Finding("replicas", "ok", "none connected")
    if not health.needs_replicas:
        advice = "a master that was cut off or replaced takes writes that will be lost; set `min-replicas-to-write 1`"
        return Finding("replicas", "warn", f"{health.replicas} connected: {advice}")
    return Finding("replicas", "ok", f"{health.replicas} connected, and writes need some of them")
