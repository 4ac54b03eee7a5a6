"""The table of checks: its runbooks, and files that no server is needed for."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.test_docs import anchors
from toolbus import Settings
from toolbus.bus.broker.admin import ServerHealth, ServiceOverview, ServiceState
from toolbus.bus.broker.statistics.answers import BOUNDS, InstanceAnswer, ServedService, ToolStatistics
from toolbus.bus.broker.statistics.asking import Statistics
from toolbus.bus.broker.transport.connection import ServerInfo
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor, ToolDescriptor
from toolbus.bus.values.results import BrokerError, CredentialsRefused
from toolbus.bus.watch.exporter import exposition
from toolbus.bus.watch.faults import CHECKS, Seen, faults_of, unreachable

RUNBOOKS = Path(__file__).parents[2] / "docs/how-to/runbooks.md"
NOT_RUNBOOKS = {"Which fault it is", "Plan capacity"}
HEALTHY = ServerHealth(ServerInfo("Valkey", "9", "r", 1), "noeviction", 1, 0, True, "everysec", "", "", 0.1, 0.0, 0, False, 0, None)


def test_every_runbook_of_a_check_exists() -> None:
    """A fault leads to a heading of the page."""
    found = {
        unreachable(BrokerError("away")).runbook,
        unreachable(CredentialsRefused("wrong")).runbook,
        *(check.runbook for check in CHECKS),
    }
    assert found <= anchors(RUNBOOKS)


def test_the_table_of_alerts_names_the_alert_of_each_check() -> None:
    """A person finds the runbook of an alert by its name, and by its check where one alert stands for several."""
    rows = re.findall(r"^\| \[.+\]\(#(.+)\) \| (.+) \|$", RUNBOOKS.read_text(), re.MULTILINE)
    shown = {(runbook, alert) for runbook, alerts in rows for alert in re.findall(r"`(Toolbus(?:Fault|Warning):.+?)`", alerts)}
    wanted = set()
    rules = Path(__file__).parents[2].joinpath("deploy/monitoring/alerts.yaml").read_text()
    for state, alert in (("fail", "ToolbusFault"), ("warn", "ToolbusWarning")):
        [others] = re.findall(rf'state="{state}",check!~"([^"]*)"', rules)
        for check in CHECKS:
            # What workers must be asked for is no metric.
            if check.state == state and not check.asks and check.name not in others.split("|"):
                wanted.add((check.runbook, f"{alert}:{check.name}"))
    assert shown == wanted


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("live", [False, True])
def test_calls_that_nobody_can_take_are_a_failure(live: bool, paused: bool) -> None:
    """They wait for a worker, or for the end of a pause; with a worker that takes them they only wait for their turn."""
    publication = Publication(ServiceDescriptor("tools"))
    state: ServiceState = "live" if live else "down"
    seen = ServiceOverview(publication, live, int(live), 2, int(live), 0, paused, state)
    faults = faults_of(Seen(settings=Settings.load({}), health=HEALTHY, services=[seen]))
    expected = ["paused"] if paused else [] if live else ["service"]
    assert all("2 calls wait" in each.found for each in faults)
    assert [(each.check, each.state) for each in faults] == [(check, "fail") for check in expected]


def seen_with(refusal: str = "", *, tools: tuple[ToolStatistics, ...] = (), timeout: float = 0.0) -> Seen:
    """Return a deployment whose workers are gone by their leases, or answered with these counts."""
    publication = Publication(ServiceDescriptor("pool"), (ToolDescriptor("work", "Work.", "pool", timeout=timeout),))
    live = bool(tools)
    return Seen(
        settings=Settings.load({}),
        health=HEALTHY._replace(refusal=refusal, used_memory=2, max_memory=1),
        services=[
            ServiceOverview(publication, live, int(live), 0, 0, 0, False, "live" if live else "down", 0.0 if live else 1.0),
            *([] if live else [ServiceOverview(Publication(ServiceDescriptor("other")), False, 0, 3, 0, 0, False, "down", 1.0)]),
        ],
        lapsed=[] if live else ["pool/dead-1-a"],
        statistics=Statistics(
            {"w": InstanceAnswer("w", tools=tools)} if live else {},
            {} if live else {"mute-1-0b0b0b": ("pool",), "other-implementation": ("pool",)},
        ),
    )


@pytest.mark.parametrize(
    ("refusal", "checks", "words"),
    [
        ("", ["worker", "worker", "service", "down"], "no sign of life"),
        ("OOM command not allowed", ["memory", "worker", "service", "down"], "raise maxmemory"),
        ("NOREPLICAS Not enough good replicas", ["writes"], "min-replicas-to-write"),
        ("MISCONF Errors writing to the AOF file", ["writes"], "free its disk"),
    ],
)
def test_what_follows_from_a_server_without_writes_is_not_told(refusal: str, checks: list[str], words: str) -> None:
    """Workers can't renew leases there, nor answer, so nothing is known of them; a full memory takes their beats, and no answers."""
    seen = seen_with(refusal)
    faults = faults_of(seen)
    assert [each.check for each in faults] == checks
    assert words in faults[0].found
    shown = exposition("n", seen, up=True).text()
    known = "writes" not in checks
    assert ("toolbus_service_down{" in shown, "toolbus_workers{" in shown) == (known, known)
    assert "toolbus_queue_length{" in shown


def test_a_service_of_which_no_worker_answers_fails() -> None:
    """Until their leases end its workers count as live, but more of them would not help; beside one that answers they would."""
    publication = Publication(ServiceDescriptor("pool"))
    seen = Seen(
        settings=Settings.load({}),
        health=HEALTHY,
        services=[ServiceOverview(publication, True, 1, 30, 1, 0, False, "live")],
        statistics=Statistics({}, {"pool-1-0a0a0a": ("pool",)}),
    )
    [fault] = faults_of(seen)
    assert (fault.check, fault.state) == ("worker", "fail")
    assert fault.found.startswith("no worker of pool answers")
    seen.services = [seen.services[0]._replace(workers=2)]
    seen.statistics = Statistics({"w": InstanceAnswer("w", services=(ServedService("pool"),))}, {"pool-1-0a0a0a": ("pool",)})
    assert [(each.check, each.state) for each in faults_of(seen)] == [("worker", "warn"), ("backlog", "warn")]


def test_a_worker_that_may_not_take_requests_says_so() -> None:
    """It looks alive by its lease, and its calls wait; what its user lacks is named."""
    trouble = "the server refuses to give it requests: NOPERM no permissions to run 'xreadgroup'"
    seen = seen_with(tools=(ToolStatistics("pool", "work"),))
    assert faults_of(seen) == []
    seen.statistics = Statistics({"w": InstanceAnswer("w", services=(ServedService("pool"),), trouble=trouble)}, {})
    [fault] = faults_of(seen)
    assert (fault.check, fault.state) == ("worker", "fail")
    assert fault.found == f"the worker w of pool can take no requests: {trouble}; give its user the rights of `toolbus secure acl worker`"


def test_a_worker_tells_of_which_service_it_may_not_take_requests() -> None:
    """It serves others as well, so the one that the registry refuses is named with the reason."""
    seen = seen_with(tools=(ToolStatistics("pool", "work"),))
    services = (ServedService("pool"), ServedService("right", unlisted="right belongs to 'other'"))
    seen.statistics = Statistics({"w": InstanceAnswer("w", services=services)}, {})
    [fault] = faults_of(seen)
    assert (fault.check, fault.state) == ("worker", "fail")
    assert fault.found == "the worker w can take no requests of right, which is not in the registry: right belongs to 'other'"


def test_who_lost_its_last_worker_is_told_what_a_stopped_process_needs() -> None:
    """It is named for a day with when that was, whether calls wait or not."""
    found = {each.check: each.found for each in faults_of(seen_with()) if each.check in {"service", "down"}}
    assert all("1970-01-01 00:00:01 UTC" in each and "kill -CONT" in each for each in found.values())
    assert "start workers of it" in found["service"]
    assert "tool-service/pool`" in found["down"]


def test_a_service_that_was_withdrawn_says_so() -> None:
    """Its calls fail until somebody starts a worker, which may not be what was meant."""
    seen = ServiceOverview(Publication(ServiceDescriptor("pool")), False, 0, 0, 0, 0, False, "withdrawn", 1.0)
    [fault] = faults_of(Seen(settings=Settings.load({}), health=HEALTHY, services=[seen]))
    assert (fault.check, fault.state) == ("withdrawn", "warn")
    assert "left by itself at 1970-01-01 00:00:01 UTC" in fault.found


def histogram(quick: int, slow: int) -> tuple[int, ...]:
    """Return the buckets of runs within 10 s, and of some that took 12 s."""
    return (quick, *(slow if bound == 25_000 else 0 for bound in BOUNDS[1:]))


@pytest.mark.parametrize(
    ("quick", "slow", "timeout", "told"),
    [(0, 2, 0.0, False), (8, 2, 0.0, True), (0, 10, 0.0, True), (0, 10, 30.0, False), (0, 10, 10.0, True), (95, 5, 0.0, False)],
)
def test_a_tool_is_slow_by_enough_runs_beyond_what_it_was_given(quick: int, slow: int, timeout: float, told: bool) -> None:
    """Two runs say nothing of it, and one whose author declares a longer time is meant to take it; what is said was counted."""
    seen = seen_with(tools=(ToolStatistics("pool", "work", buckets=histogram(quick, slow)),), timeout=timeout)
    assert [each.found.partition(";")[0] for each in faults_of(seen)] == [
        f"work is slow: {slow} of {quick + slow} runs took over 10 s"
    ] * told


@pytest.mark.parametrize(("failed", "state"), [(0, None), (1, None), (9, "warn"), (10, "fail")])
def test_a_tool_of_which_every_run_fails_is_a_failure(failed: int, state: str | None) -> None:
    """Users feel it now; it stands before what is slow."""
    counts = ToolStatistics("pool", "work", failed={"tool_error": failed}, buckets=histogram(0, 10))
    faults = faults_of(seen_with(tools=(counts,)))
    assert [(each.check, each.state) for each in faults] == [*([("failures", state)] if state else []), ("slow tool", "warn")]


def test_every_runbook_begins_with_what_one_sees_and_ends_with_how_it_is_over() -> None:
    """A person who opens one in the night recognizes it, and knows when to stop."""
    for part in RUNBOOKS.read_text().split("\n## ")[1:]:
        title, _, text = part.partition("\n")
        if title not in NOT_RUNBOOKS:
            assert text.strip().startswith("You see: "), title
            assert "It is over when" in text.strip().split("\n\n")[-1].replace("\n", " "), title


@pytest.mark.parametrize(("days", "found"), [(3, True), (300, False), (-1, True)])
def test_certificates_of_a_process_are_named_before_they_end(tmp_path: Path, days: int, found: bool) -> None:
    """The file is named, with the day, two weeks before."""
    file = tmp_path / "client.pem"
    end = datetime.now(UTC) + timedelta(days=days)
    issued = trustme.CA().issue_cert("worker@example.org", not_before=datetime(2020, 1, 1, tzinfo=UTC), not_after=end)
    issued.cert_chain_pems[0].write_to_path(str(file))
    settings = Settings.load({}, url="rediss://127.0.0.1:1", tls_cert=str(file))
    faults = faults_of(Seen(settings=settings, health=HEALTHY, now=datetime.now(UTC).timestamp()))
    assert [str(file) in each.found and f"{end:%Y-%m-%d}" in each.found for each in faults] == [True] * found
