"""Checks for what may be wrong with a deployment: a table, over what its server and its workers answer.

``toolbus doctor`` prints the faults, ``/metrics`` has them as ``toolbus_fault``, for which there are alerts, and the page shows them.
"""

from __future__ import annotations

import difflib
import functools
import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from toolbus.bus.broker.admin import Admin, ServerHealth, ServiceOverview
from toolbus.bus.broker.protocols import is_of_toolbus
from toolbus.bus.broker.statistics.answers import BOUNDS, ToolStatistics, added
from toolbus.bus.broker.statistics.asking import Statistics, merged
from toolbus.bus.support.display import one_line
from toolbus.bus.support.grouping import grouped
from toolbus.bus.values.results import CredentialsRefused, ToolbusError
from toolbus.bus.values.secrets import TokenRecord
from toolbus.bus.values.settings import PREFIX, Settings

State = Literal["fail", "warn"]

RUNBOOKS = "https://toolbus.github.io/toolbus/latest/how-to/runbooks/"
"""The page of runbooks; a fault's anchor follows ``#``."""

_DAY = 86_400.0


class Seen(msgspec.Struct, kw_only=True):
    """A deployment as it was looked at; what this user may not ask for is empty.

    Attributes:
        settings: of who looks.
        health: of the server.
        services: those of the namespace.
        lapsed: workers whose leases have ended, as ``service/instance``.
        statistics: what workers answered; nothing when they were not asked.
        tokens: of gateways.
        others: namespaces on this server, if this one is empty.
        now: seconds since 1970, by the clock of who looks.
    """

    settings: Settings
    health: ServerHealth
    services: Sequence[ServiceOverview] = ()
    lapsed: Sequence[str] = ()
    statistics: Statistics = Statistics({}, {})
    tokens: Sequence[TokenRecord] = ()
    others: Sequence[str] = ()
    now: float = 0.0


class Check(NamedTuple):
    """One thing that may be wrong.

    Attributes:
        name: of the check, and the label of its metric; two of one name are two degrees of one thing.
        state: how bad it is: ``fail`` when calls fail or wait because of it.
        lines: return a line for everything that is wrong, with what to do.
        runbook: the heading of its runbook, as an anchor.
        asks: whether workers must have been asked.
        leases: whether it follows from leases, which say nothing of workers while the server lets nobody renew them.
    """

    name: str
    state: State
    lines: Callable[[Seen], Iterable[str]]
    runbook: str
    asks: bool = False
    leases: bool = False


class Fault(NamedTuple):
    """Something that is wrong: which check found it, how bad it is, what was found and what to do, and the anchor of its runbook."""

    check: str
    state: State
    found: str
    runbook: str


# -- the server ---------------------------------------------------------------------------------------


def _memory(seen: Seen) -> Iterable[str]:
    health = seen.health
    if _code(health) == "OOM":
        yield (
            f"the server's memory is full ({_megabytes(health.used_memory)} of {_megabytes(health.max_memory)}): it takes no new calls; "
            "purge what nobody needs, or raise maxmemory"
        )


_REFUSALS = {
    "MISCONF": ("it can't write to its disk", "free its disk"),
    "NOREPLICAS": ("too few replicas follow it", "start them again, or lower `min-replicas-to-write`"),
}


def _refused_writes(seen: Seen) -> Iterable[str]:
    code, _, message = seen.health.refusal.partition(" ")
    if code not in {"", "OOM"}:
        why, advice = _REFUSALS.get(code, ("it says why", "mend what it says"))
        yield f"the server refuses every write: {why} ({one_line(f'{code} {message}', 300)}), so that nobody works; {advice}"


def _unsaved(seen: Seen) -> Iterable[str]:
    if seen.health.unsaved and not seen.health.refusal:
        lost = f"the server could not write {seen.health.unsaved}: what it takes from now on is lost with it"
        yield f"{lost}; free its disk, or let it write to its folder"


def _missing_replicas(seen: Seen) -> Iterable[str]:
    connected, waited_for = seen.health.replicas, seen.settings.wait_replicas
    if waited_for > connected:
        missing = f"{connected} replicas connected, and {PREFIX}WAIT_REPLICAS is {waited_for}: no `once` call runs until there are as many"
        yield f"{missing}; start them, or lower {PREFIX}WAIT_REPLICAS"


def _evicting(seen: Seen) -> Iterable[str]:
    if seen.health.policy not in {"noeviction", "unknown"}:
        found = f"maxmemory-policy is {seen.health.policy}: a full server deletes keys, and each is a lost call"
        yield f"{found}; set `maxmemory-policy noeviction`"


def _unsynced(seen: Seen) -> Iterable[str]:
    if seen.health.append_only and seen.health.appendfsync == "no":
        yield "appendfsync is no: a crash of the machine loses the calls of half a minute; set `appendfsync everysec`"


def _cut_off(seen: Seen) -> Iterable[str]:
    if seen.health.cut_off:
        found = f"the server has cut off {seen.health.cut_off} connections since its start that read too slowly for its output buffers"
        yield f"{found}; raise `client-output-buffer-limit`"


def _skewed(seen: Seen) -> Iterable[str]:
    if abs(seen.health.skew) > SKEWED:
        yield f"the server's clock is {round(seen.health.skew, 1) + 0.0:+.1f} s from here; let both machines follow one time server"


def _certificates(seen: Seen) -> Iterable[str]:
    ends = {"the server's certificate": seen.health.certificate_ends}
    ends |= {path: _ends(path) for path in (seen.settings.tls_cert, seen.settings.tls_ca) if path}
    for name, end in ends.items():
        if end is not None and end - seen.now < _CERTIFICATE_DAYS * _DAY:
            yield f"{name} {_until(end, seen.now)}; renew it"


def _tokens(seen: Seen) -> Iterable[str]:
    for token in seen.tokens:
        if token.expires is not None and 0 < token.expires - seen.now < _TOKEN_DAYS * _DAY:
            yield f"the token {token.name!r} ({token.id}) {_until(token.expires, seen.now)}; make another with `toolbus secure tokens add`"


# -- workers and services -----------------------------------------------------------------------------


_BRING_BACK = "let one that stands still go on (`kill -CONT PID`), or start workers of it and look why they end"
_LOOK_AT_IT = (
    "it was killed, stands still (`kill -CONT PID` lets it go on), is blocked, or can't reach the server; look at its process and its log"
)


def _troubled(seen: Seen) -> Iterable[str]:
    for answer in seen.statistics.answers.values():
        if answer.trouble:
            services = one_line(", ".join(each.id for each in answer.services), 200)
            allow = "; give its user the rights of `toolbus secure acl worker`" if "NOPERM" in answer.trouble else ""
            yield f"the worker {answer.instance} of {services} can take no requests: {one_line(answer.trouble, 300)}{allow}"
            continue
        for each in answer.services:
            if each.unlisted:
                why = one_line(each.unlisted, 300)
                yield f"the worker {answer.instance} can take no requests of {one_line(each.id, 200)}, which is not in the registry: {why}"


def _silent(seen: Seen) -> dict[str, list[str]]:
    """Return the workers of each service that do not answer, although their leases have not ended."""
    # Workers can't answer a server that takes no writes.
    asked = {} if seen.health.refusal else seen.statistics.silent
    return grouped((service, instance) for instance, services in asked.items() for service in services)


def _mute(seen: Seen) -> dict[str, list[str]]:
    """Return the services of which no worker answers, with those."""
    heard = {service.id for answer in seen.statistics.answers.values() for service in answer.services}
    # Other implementations need not answer.
    return {service: names for service, names in _silent(seen).items() if service not in heard and all(map(is_of_toolbus, names))}


def _nobody_answers(seen: Seen) -> Iterable[str]:
    services = grouped((", ".join(sorted(names)), service) for service, names in sorted(_mute(seen).items()))
    for workers, theirs in services.items():
        served = one_line(", ".join(theirs), 200)
        yield f"no worker of {served} answers, and their leases have not ended yet ({one_line(workers, 200)}): {_LOOK_AT_IT}"


def _stopped(seen: Seen) -> Iterable[str]:
    mute, names = _mute(seen), set(seen.lapsed)
    for service, silent in _silent(seen).items():
        names |= {f"{service}/{name}" for name in silent if service not in mute and is_of_toolbus(name)}
    for name in sorted(names)[:_MOST_LINES]:
        service, _, instance = name.rpartition("/")
        why = "its lease has ended" if name in seen.lapsed else "it does not answer, and its lease has not ended yet"
        yield f"the worker {instance} of {service} gives no sign of life ({why}): {_LOOK_AT_IT}"


def _nobody_serves(seen: Seen) -> Iterable[str]:
    for each in seen.services:
        if each.queued and not each.live and not each.paused:
            yield f"{_calls_wait(each)} for {_id(each)}, and no worker serves it{_last_worker(each)}; {_BRING_BACK}"


def _down(seen: Seen) -> Iterable[str]:
    for each in seen.services:
        if each.down and not each.queued:
            forgetting = f"if none is to come back, forget it with `toolbus operate items rm --force tool-service/{_id(each)}`"
            found = f"{_id(each)} has no worker, and was not withdrawn{_last_worker(each)}"
            yield f"{found}: what comes for it waits or ends as `unavailable`; {_BRING_BACK}; {forgetting}"


def _withdrawn(seen: Seen) -> Iterable[str]:
    for each in seen.services:
        if each.state == "withdrawn" and not each.queued:
            yield f"{_id(each)} was withdrawn{_last_worker(each)}: calls of it end as `unavailable`; start workers of it if they are to run"


def _paused_and_waiting(seen: Seen) -> Iterable[str]:
    for each in seen.services:
        if each.queued and each.paused:
            yield f"{_id(each)} is paused, and {_calls_wait(each)}; `toolbus operate resume {_id(each)}` lifts the pause"


def _backlog(seen: Seen) -> Iterable[str]:
    silent = _silent(seen)
    for each in seen.services:
        # More workers help only those that answer.
        if each.queued > LONG_BACKLOG * each.workers and not each.paused and each.workers > len(silent.get(_id(each), ())):
            serve = f"{_number(each.workers, 'worker')} serve{'s' if each.workers == 1 else ''} it"
            yield f"{_calls_wait(each)} for {_id(each)}, and {serve}; start more workers"


def _dead_letters(seen: Seen) -> Iterable[str]:
    for each in seen.services:
        if each.dead:
            yield f"{_number(each.dead, 'call')} of {_id(each)} set aside as dead letters; `toolbus operate dead list` shows why"


def _paused(seen: Seen) -> Iterable[str]:
    for each in seen.services:
        if each.paused and not each.queued:
            yield f"{_id(each)} is paused: what comes for it waits; `toolbus operate resume {_id(each)}` lifts it"


def _failures(seen: Seen, *, all_of_them: bool) -> Iterable[str]:
    """Return a line for each tool of which all runs failed, or for each of which many did."""
    for (service, tool), counts in _tools(seen).items():
        failed = merged(each.failed for each in counts)
        ended, failures = sum(sum(each.buckets) for each in counts), sum(failed.values())
        if ended >= _FEW and failures > FAILING * ended and (failures == ended) == all_of_them:
            worst = max(failed, key=lambda kind: failed[kind])
            found = f"{failures} of {ended} runs of {tool or service} have failed, most of them as {worst}"
            yield f"{found}; `toolbus see calls --failed` shows their errors"


def _slow(seen: Seen) -> Iterable[str]:
    declared = {(_id(each), tool.name): tool.timeout for each in seen.services for tool in each.publication.tools}
    for (service, tool), counts in _tools(seen).items():
        buckets = added(each.buckets for each in counts)
        ended, slow = sum(buckets), sum(buckets[_FAST:])
        # One whose author has given it the time is meant to be so.
        if ended >= _FEW and slow > _SLOW_SHARE * ended and declared.get((service, tool), 0.0) <= SLOW:
            yield f"{tool or service} is slow: {slow} of {ended} runs took over {SLOW:g} s; `toolbus see stats` shows its times"


def _lost_lines(seen: Seen) -> Iterable[str]:
    for answer in seen.statistics.answers.values():
        if answer.lines_lost:
            found = f"{answer.lines_lost} log lines of the worker {answer.instance} are lost: who reads its log stands still"
            yield f"{found}; look at who reads its output"


def _mistyped(seen: Seen) -> Iterable[str]:
    if not seen.others:
        return
    namespace = seen.settings.namespace
    near = difflib.get_close_matches(namespace, seen.others, n=3) or seen.others[:3]
    yield f"the namespace {namespace!r} is empty, and this server has {', '.join(map(repr, near))}; set {PREFIX}NAMESPACE"


SKEWED = 5.0
"""Seconds between two clocks from which on it is said."""

LONG_BACKLOG, FAILING, SLOW = 10, 0.1, 10.0
"""Waiting calls a worker, the share of failures, the seconds of a slow run: what is above is a fault."""

_CERTIFICATE_DAYS, _TOKEN_DAYS = 14, 7
_FEW, _MOST_LINES = 10, 20
# The buckets of what is not slow, and the share of slow runs above which a tool is.
_FAST, _SLOW_SHARE = BOUNDS.index(SLOW * 1000) + 1, 0.05

CHECKS: tuple[Check, ...] = (
    Check("memory", "fail", _memory, "the-servers-memory-is-full"),
    Check("writes", "fail", _refused_writes, "the-server-refuses-writes"),
    Check("disk", "fail", _unsaved, "the-server-refuses-writes"),
    Check("replicas", "fail", _missing_replicas, "the-server-refuses-writes"),
    Check("worker", "fail", _troubled, "nobody-serves-a-service", asks=True),
    Check("worker", "fail", _nobody_answers, "nobody-serves-a-service", asks=True, leases=True),
    Check("worker", "warn", _stopped, "nobody-serves-a-service", leases=True),
    Check("paused", "fail", _paused_and_waiting, "a-service-is-slow-or-answers-overloaded"),
    Check("service", "fail", _nobody_serves, "nobody-serves-a-service", leases=True),
    Check("failures", "fail", functools.partial(_failures, all_of_them=True), "calls-of-a-tool-fail", asks=True),
    Check("down", "fail", _down, "nobody-serves-a-service", leases=True),
    Check("failures", "warn", functools.partial(_failures, all_of_them=False), "calls-of-a-tool-fail", asks=True),
    Check("dead letters", "warn", _dead_letters, "calls-end-as-dead-letters"),
    Check("backlog", "warn", _backlog, "a-service-is-slow-or-answers-overloaded", leases=True),
    Check("slow tool", "warn", _slow, "a-service-is-slow-or-answers-overloaded", asks=True),
    Check("memory policy", "warn", _evicting, "the-servers-memory-is-full"),
    Check("appendfsync", "warn", _unsynced, "the-server-refuses-writes"),
    Check("clock", "warn", _skewed, "a-clock-was-set"),
    Check("forgotten pause", "warn", _paused, "a-service-is-slow-or-answers-overloaded"),
    Check("withdrawn", "warn", _withdrawn, "nobody-serves-a-service", leases=True),
    Check("certificate", "warn", _certificates, "change-a-password-or-a-key"),
    Check("token", "warn", _tokens, "change-a-password-or-a-key"),
    Check("output buffers", "warn", _cut_off, "connections-are-lost-again-and-again"),
    Check("log", "warn", _lost_lines, "log-lines-are-lost", asks=True),
    Check("namespace", "warn", _mistyped, "nobody-serves-a-service"),
)
"""Every check; a cause stands before what follows from it."""

SERVER, SERVER_RUNBOOK = "server", "the-server-is-gone"
"""The check that the server can be asked at all, and its runbook."""

CREDENTIALS_RUNBOOK = "change-a-password-or-a-key"
"""The runbook of a server that refuses the user or the password."""


async def look(
    admin: Admin,
    settings: Settings,
    *,
    services: Sequence[ServiceOverview] | None = None,
    statistics: Statistics | None = None,
    ask: bool = False,
    trips: int = 1,
    roles: Sequence[str] | None,
) -> Seen:
    """Look at a deployment, as far as this user may.

    Args:
        admin: an open connection.
        settings: its settings.
        services: what goes on in the services, if it is known.
        statistics: what the workers have answered.
        ask: whether to ask the workers, if it is not known.
        trips: see ``Admin.health``.
        roles: of this user, as ``Admin.roles`` returns them.

    Raises:
        BrokerError: the server can't be asked.
    """

    def may(*names: str) -> bool:
        return roles is None or not set(names).isdisjoint(roles)

    seen = Seen(
        settings=settings,
        health=await admin.health(trips=trips, configuration=roles is None),
        services=() if services is None else services,
        statistics=statistics or Statistics({}, {}),
        now=time.time(),
    )
    if may("gateway", "operator", "monitor"):
        if services is None:
            seen.services = await admin.services()
        seen.lapsed = await admin.lapsed()
        # Workers can't answer a server that takes no writes.
        if ask and not seen.health.refusal:
            seen.statistics = await admin.statistics()
    if may("gateway", "operator"):
        seen.tokens = await admin.tokens.all()
    if may("operator") and not seen.services and not await admin.revision():
        seen.others = await admin.namespaces()
    return seen


def can_renew(health: ServerHealth) -> bool:
    """Return whether workers can renew their leases: a server whose memory is full takes their beats, one that refuses all writes none."""
    return _code(health) in {"", "OOM"}


def lines_of(check: Check, seen: Seen) -> list[str]:
    """Return what a check finds; nothing when it follows from a fault of the server."""
    return list(check.lines(seen)) if can_renew(seen.health) or not check.leases else []


def faults_of(seen: Seen) -> list[Fault]:
    """Return what is wrong, the causes first, each with what to do."""
    return [Fault(check.name, check.state, line, check.runbook) for check in CHECKS for line in lines_of(check, seen)]


def unreachable(error: ToolbusError | TimeoutError) -> Fault:
    """Return the fault of a server that could not be asked."""
    runbook = CREDENTIALS_RUNBOOK if isinstance(error, CredentialsRefused) else SERVER_RUNBOOK
    return Fault(SERVER, "fail", str(error) or "the server did not answer in time", runbook)


# -- words --------------------------------------------------------------------------------------------


def _code(health: ServerHealth) -> str:
    return health.refusal.partition(" ")[0]


def _megabytes(count: int) -> str:
    return f"{count / 1_000_000:.1f} MB"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _calls_wait(service: ServiceOverview) -> str:
    return f"{_number(service.queued, 'call')} wait{'s' if service.queued == 1 else ''}"


def _last_worker(service: ServiceOverview) -> str:
    """Say when and how the last worker of a service went, if it is known."""
    if not service.gone:
        return ""
    how = "left by itself" if service.state == "withdrawn" else "was killed, stood still or lost its server"
    return f" (its last worker {how} {datetime.fromtimestamp(service.gone, UTC):at %Y-%m-%d %H:%M:%S UTC})"


def _id(service: ServiceOverview) -> str:
    return service.publication.service.id


def _until(end: float, now: float) -> str:
    date = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d")
    return f"ended on {date}" if end <= now else f"ends on {date}, in {_number(int((end - now) / _DAY), 'day')}"


def _tools(seen: Seen) -> Mapping[tuple[str, str], list[ToolStatistics]]:
    return grouped(((tool.service, tool.tool), tool) for answer in seen.statistics.answers.values() for tool in answer.tools)


# The times of a certificate's validity, as DER writes them: a sequence of two.
_VALIDITY = re.compile(rb"\x30.(?:\x17\x0d|\x18\x0f)(\d{12,14})Z(?:\x17\x0d|\x18\x0f)(\d{12,14})Z", re.DOTALL)
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def _ends(path: str) -> float | None:
    """Return when the first certificate of a file ends that does, in seconds since 1970; None when none can be read."""
    try:
        blocks = _PEM.findall(Path(path).read_text("ascii", "replace"))
        found = [_VALIDITY.search(ssl.PEM_cert_to_DER_cert(block)) for block in blocks]
        times = [match[2].decode() for match in found if match is not None]
        # Of years with two digits, those from 50 on are of the last century.
        full = [each if len(each) == 14 else ("19" if each >= "50" else "20") + each for each in times]
        return min((datetime.strptime(each, "%Y%m%d%H%M%S").replace(tzinfo=UTC).timestamp() for each in full), default=None)
    except (OSError, ValueError):
        return None
