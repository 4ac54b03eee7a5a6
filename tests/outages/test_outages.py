"""Every fault is made on real processes, and is named by those who should: alerts, ``toolbus doctor`` and the page."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forking import ForkServer
from tests.outages.installation import installed
from tests.outages.monitoring import Prometheus
from tests.outages.table import LATER, NEEDS, OUTAGES, RULES, SOON, Outage, documentation, runbook_of, within
from tests.servers import eventually
from tests.test_docs import anchors
from tests.watch.test_faults import RUNBOOKS
from toolbus.bus.watch.faults import CHECKS, SERVER

pytestmark = pytest.mark.anyio
# Seconds for an alert, on a busy machine; the longest of the rules waits for one.
AN_ALERT = 120.0


@pytest.fixture(scope="module")
def prometheus(slow: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One Prometheus that watches all installations, each in a namespace of its own."""
    made = Prometheus(tmp_path_factory.mktemp("prometheus"))
    yield made
    made.close()


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("outage", [each for each in OUTAGES if each.check], ids=lambda each: each.name)
async def test_doctor_names_each_fault_first(outage: Outage, forks: ForkServer, tmp_path: Path) -> None:
    """Before it nothing is wrong; after it the first line is its cause, with what to do and a runbook."""
    async with installed(forks, tmp_path, **outage.options) as installation:
        assert [each for each in await installation.doctor() if "runbook" in each] == []
        await outage.cause(installation)
        first = (await installation.doctor())[0]
    assert (first["check"], bool(re.search(outage.line, first["found"]))) == (outage.check, True), first
    assert first["runbook"]


@pytest.mark.parametrize("outage", [each for each in OUTAGES if each.alert], ids=lambda each: each.name)
async def test_an_alert_fires_for_each_fault(outage: Outage, forks: ForkServer, tmp_path: Path, prometheus: Prometheus) -> None:
    """Before it none fires; after it the one of the table does, with the runbook, and the page of a gateway names it."""
    namespace = f"prod-{secrets.token_hex(4)}"
    async with installed(forks, tmp_path, namespace=namespace, **outage.options) as installation:
        installation.start_watchers()
        prometheus.scrape(namespace, installation.watched)
        try:
            await eventually(lambda: prometheus.up(namespace), timeout=60)
            assert prometheus.firing(namespace) == {}
            await outage.cause(installation)
            found = await eventually(lambda: prometheus.firing(namespace).get(outage.alert), timeout=AN_ALERT, interval=0.5)
            if outage.check:
                await eventually(lambda: [each for each in installation.page() if re.search(outage.line, each)], timeout=30, interval=0.5)
        finally:
            prometheus.scrape(namespace, [])
    assert found["runbook_url"].partition("#")[2] in anchors(RUNBOOKS)


async def test_two_installations_do_not_mask_each_other(forks: ForkServer, tmp_path: Path, prometheus: Prometheus) -> None:
    """The server of one is away: the alert names it, and none fires for the other."""
    folders = [tmp_path / name for name in ("well", "ill")]
    for folder in folders:
        folder.mkdir()
    well, ill = (f"{folder.name}-{secrets.token_hex(4)}" for folder in folders)
    async with installed(forks, folders[0], namespace=well) as one, installed(forks, folders[1], namespace=ill) as two:
        for each, name in ((one, well), (two, ill)):
            each.start_watchers()
            prometheus.scrape(name, each.watched)
        try:
            await eventually(lambda: prometheus.up(well) and prometheus.up(ill), timeout=60)
            two.server.kill()
            await eventually(lambda: "ToolbusServerAway" in prometheus.firing(ill), timeout=AN_ALERT, interval=0.5)
            assert prometheus.firing(well) == {}
        finally:
            prometheus.scrape(well, [])
            prometheus.scrape(ill, [])


def test_every_check_and_every_rule_has_its_fault() -> None:
    """A check that nobody has seen find anything is not one to rely on, and neither is a rule that no fault fires."""
    assert {each.check for each in OUTAGES if each.check} == {SERVER, *(each.name for each in CHECKS)}
    assert {each.alert.partition(":")[0] for each in OUTAGES if each.alert} == set(RULES)


def test_a_fault_is_named_within_two_minutes() -> None:
    """The waiting of a rule, its evaluation, a scrape and what its metrics need are shorter, but for rules that have a reason."""
    assert {alert for alert in RULES if within(alert) > SOON} == set(LATER)
    assert NEEDS.keys() <= RULES.keys()
    assert len({outage.name for outage in OUTAGES if outage.alert and outage.alert.partition(":")[0] not in LATER}) >= 20


def test_every_rule_is_of_one_installation_and_has_a_runbook() -> None:
    """Each groups by job and namespace, and its runbook is a heading of the page."""
    for rule in RULES.values():
        assert rule["expr"].count("by (job, toolbus_namespace") == rule["expr"].count("by ("), rule["alert"]
        assert "by (job, toolbus_namespace" in rule["expr"], rule["alert"]
        anchor = rule["annotations"]["runbook_url"].partition("#")[2]
        assert anchor == "{{ $labels.runbook }}" or anchor in anchors(RUNBOOKS), rule["alert"]


def test_the_documentation_has_the_table() -> None:
    """The page of runbooks has each alert beside its runbook, and how long the later ones take; ``faults.md`` has all faults."""
    page = RUNBOOKS.read_text()
    rows = re.findall(r"^\| \[.+\]\(#(.+)\) \| (.+) \|$", page, re.MULTILINE)
    shown = {(anchor, alert) for anchor, alerts in rows for alert in alerts.split(", ")}
    told = {(runbook_of(outage), f"`{outage.alert}`") for outage in OUTAGES if outage.alert}
    # One alert of several checks is shown with each of them, see test_faults.py.
    assert told <= shown
    assert [alert for _, alert in shown - told if ":" not in alert] == []
    assert [alert for alert in LATER if f"`{alert}` ({within(alert) / 60:.0f} min)" not in page] == []
    assert documentation() in (Path(__file__).parent / "faults.md").read_text()
