"""The alerts that fire in a run of chaos: those that its faults justify, and false alarms."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.chaos.tools import SERVICE
from tests.outages.__main__ import CAUSED, alarms
from tests.outages.table import RULES


def test_an_alert_without_a_cause_is_a_false_alarm() -> None:
    """One that the faults justify has its cause; any other is false, and says when it fired and for what."""
    labels = {"__name__": "ALERTS", "alertstate": "firing", "messaging_destination_name": SERVICE}
    found = [
        {"metric": {**labels, "alertname": "ToolbusServiceDown"}, "values": [[130, "1"], [160, "1"]]},
        {"metric": {**labels, "alertname": "ToolbusTakenOver"}, "values": [[115, "1"]]},
    ]
    caused, false = alarms(found, began=100.0)
    assert (caused.first, caused.caused, false.first, false.last, false.caused) == (15.0, CAUSED["ToolbusTakenOver"], 30.0, 60.0, "")
    assert re.search(rf"30 to +60 s +ToolbusServiceDown +messaging_destination_name={SERVICE} +FALSE ALARM", str(false))
    assert CAUSED.keys() <= RULES.keys()
    slow = {**labels, "alertname": "ToolbusSlowTool"}
    told = alarms([{"metric": {**slow, "gen_ai_tool_name": tool}, "values": [[1, "1"]]} for tool in ("deep", "echo")], began=0.0)
    assert [alarm.caused for alarm in told] == [CAUSED["ToolbusSlowTool"], ""]


@pytest.mark.usefixtures("slow")
@pytest.mark.timeout(240)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)")
def test_a_small_run_is_watched() -> None:
    """Half a minute of faults: Prometheus scrapes the exporter and the workers, and nothing fires without a cause."""
    words = ["--minutes", "0.5", "--calls", "400", "--workers", "4", "--seed", "11"]
    done = subprocess.run([sys.executable, "-m", "tests.outages", *words], capture_output=True, text=True, check=False, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.search(r"alerts: \d+ fired in \d+ s, of them 0 false alarms; (\d+) samples were scraped", done.stdout)
    assert told is not None
    assert int(told[1]) > 100
