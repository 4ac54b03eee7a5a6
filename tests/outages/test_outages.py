"""Every fault is made on real processes, and is named at once by those who should."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.forking import ForkServer
from tests.outages.installation import installed
from tests.outages.table import OUTAGES, Outage
from toolbus.bus.watch.faults import CHECKS, SERVER

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("slow")]


@pytest.mark.parametrize("outage", OUTAGES, ids=[each.name for each in OUTAGES])
async def test_doctor_names_each_fault_first(outage: Outage, forks: ForkServer, tmp_path: Path) -> None:
    """Before it nothing is wrong; after it the first line is its cause, with what to do and a runbook."""
    async with installed(forks, tmp_path, **outage.options) as installation:
        assert [each for each in await installation.doctor() if "runbook" in each] == []
        await outage.cause(installation)
        first = (await installation.doctor())[0]
    assert (first["check"], outage.line in first["found"]) == (outage.check, True), first
    assert first["runbook"]


def test_every_check_has_its_fault() -> None:
    """A check that nobody has seen find anything is not one to rely on."""
    assert {each.check for each in OUTAGES} == {SERVER, *(each.name for each in CHECKS)}
