"""The systemd units: systemd takes them, they are sandboxed, and they start what the program takes."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.chart import DEPLOY
from toolbus.bus.values.settings import FILES, Settings
from toolbus.operations.cli import main

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
ANALYZE = shutil.which("systemd-analyze")
# Units for everything have 9 to 10; below 2 is what systemd calls OK.
_MOST_EXPOSED = 1.5


def options_of(unit: Path) -> dict[str, str]:
    """Return the last value of each option of a unit."""
    lines = [line.partition("=") for line in unit.read_text().splitlines() if not line.startswith(("#", "["))]
    return {name: value for name, equals, value in lines if equals}


@pytest.fixture(params=UNITS, ids=lambda unit: unit.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a unit whose program is on this machine; of a template, an instance."""
    source: Path = request.param
    made = tmp_path / source.name.replace("@.", "@one.")
    made.write_text(source.read_text().replace("/opt/toolbus/bin/toolbus", str(shutil.which("true"))))
    return made


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_systemd_takes_them(unit: Path) -> None:
    """Without a word, since an option that systemd does not know is ignored with a warning."""
    done = subprocess.run([str(ANALYZE), "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")
def test_they_are_sandboxed(unit: Path) -> None:
    """A tool can do little to the machine."""
    words = [str(ANALYZE), "security", "--offline=true", "--no-pager", str(unit)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True).stdout
    level = re.search(r"exposure level for \S+: ([\d.]+)", told)
    assert level is not None
    assert float(level[1]) <= _MOST_EXPOSED, told


@pytest.mark.parametrize("unit_file", UNITS, ids=lambda unit: unit.name)
def test_they_take_every_file_of_the_settings_as_a_credential(unit_file: Path, tmp_path: Path) -> None:
    """The names that a unit loads are those that the program looks for; a file that is missing is no secret of the unit."""
    loaded = re.findall(r"^LoadCredential=(\S+)$", unit_file.read_text(), re.MULTILINE)
    assert sorted(loaded) == sorted(f"toolbus.{name}" for name in FILES)
    given = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert Settings.load(given) == Settings()
    for name in loaded:
        (tmp_path / name).write_text("secret")
    settings = Settings.load(given)
    assert {getattr(settings, name) for name in FILES} == {str(tmp_path / name) for name in loaded}


@pytest.mark.parametrize("unit_file", UNITS, ids=lambda unit: unit.name)
def test_they_start_what_the_program_takes(unit_file: Path) -> None:
    """The command's options exist, and the program has its grace and more before it is killed."""
    options = options_of(unit_file)
    variables = dict(word.split("=", 1) for word in shlex.split(options["Environment"]))
    command = options["ExecStart"].replace("${PROCESSES}", variables.get("PROCESSES", ""))
    words = shlex.split(command.replace("$OPTIONS", variables.get("OPTIONS", "")).replace("$TARGETS", "calculator"))[1:]
    found = main.get_command(main.make_context("toolbus", ["--help"], resilient_parsing=True), words[0])
    assert found is not None
    found.make_context(words[0], words[1:])
    Settings.load({name: value for name, value in variables.items() if name.startswith("TOOLBUS_")})
    assert float(options["TimeoutStopSec"].removesuffix("s")) >= Settings().grace + 10
    assert float(options["TimeoutStartSec"].removesuffix("s")) > float(variables["TOOLBUS_CONNECT_TIMEOUT"])


@pytest.mark.parametrize("unit_file", UNITS, ids=lambda unit: unit.name)
def test_they_are_started_again_without_end(unit_file: Path) -> None:
    """By default systemd gives up after five starts in ten seconds, and a server that refuses writes would keep a worker down for good."""
    options = options_of(unit_file)
    assert (options["Restart"], options["StartLimitIntervalSec"]) == ("always", "0")
    assert unit_file.read_text().index("StartLimitIntervalSec=") < unit_file.read_text().index("[Service]")
    assert (options["Type"], options["NotifyAccess"], options["KillMode"]) == ("notify", "main", "mixed")
