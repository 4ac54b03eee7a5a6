"""The table of checks: its runbooks, and files that no server is needed for."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.test_docs import anchors
from toolbus import Settings
from toolbus.bus.broker.admin import ServerHealth, ServiceOverview, ServiceState
from toolbus.bus.broker.transport.connection import ServerInfo
from toolbus.bus.values.descriptors import Publication, ServiceDescriptor
from toolbus.bus.values.results import BrokerError, CredentialsRefused
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


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(("live", "queued", "running"), [(False, 0, 2), (False, 2, 0), (False, 1, 1), (True, 2, 1)])
def test_what_workers_held_waits_when_they_are_gone(live: bool, queued: int, running: int, paused: bool) -> None:
    """Nobody works at it any more, so it is no less a failure than what they had not taken."""
    publication = Publication(ServiceDescriptor("tools"))
    state: ServiceState = "live" if live else "down"
    seen = ServiceOverview(publication, live, int(live), queued, running, 0, paused, state)
    faults = faults_of(Seen(settings=Settings.load({}), health=HEALTHY, services=[seen]))
    expected = ["paused"] if paused else [] if live else ["service"]
    assert [each.check for each in faults if each.state == "fail"] == expected
    assert all("2 calls wait" in each.found for each in faults)
    assert [each.check for each in faults] == expected


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
