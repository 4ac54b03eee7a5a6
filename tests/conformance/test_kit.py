"""`toolbus protocol conformance` on toolbus's own sides, on the examples in Node.js, and on workers with planted faults."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.planted_worker import FAULTS
from toolbus.bus.broker.server import scripts
from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.checks import LEVELS, Outcome
from toolbus.operations.conformance.scene import AgentScene, WorkerScene, run_checks
from toolbus.operations.conformance.worker_checks import WORKER

HERE = Path(__file__).parent
NODE = shutil.which("node")
EXAMPLES = HERE.parent.parent / "examples" / "node"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts as `toolbus protocol scripts` writes them."""
    path = tmp_path_factory.mktemp("scripts")
    subprocess.run([sys.executable, "-m", "toolbus", "protocol", "scripts", str(path)], check=True, capture_output=True)
    return path


def broken(outcomes: list[Outcome]) -> dict[str, str]:
    """Return the problems by check."""
    return {outcome.name: outcome.problem for outcome in outcomes if not outcome.holds}


def of_worker(command: list[str], level: int, *only: str) -> dict[str, str]:
    """Return the problems of a worker."""
    chosen = WORKER.chosen(level, only)
    return broken(asyncio.run(run_checks(WorkerScene, chosen, command, lambda _: None, first_decides=not only)))


def of_agent(command: list[str], level: int) -> list[Outcome]:
    """Return the outcomes of an agent."""
    return asyncio.run(run_checks(AgentScene, AGENT.chosen(level), command, lambda _: None))


def planted(fault: str, folder: Path) -> list[str]:
    """Return the command of a worker with a fault."""
    return [sys.executable, str(HERE / "planted_worker.py"), fault, str(folder)]


def with_node(file: str) -> list[str]:
    """Return the command of an example."""
    if NODE is None:
        pytest.skip("there is no Node.js on this machine: the examples in examples/node were not run")
    return [NODE, str(EXAMPLES / file)]


@pytest.mark.usefixtures("slow")
def test_the_worker_of_toolbus_keeps_every_level() -> None:
    """toolbus's own worker keeps the protocol up to the highest level."""
    assert of_worker([sys.executable, "-m", "toolbus", "worker", "toolbus.operations.conformance.checks"], max(LEVELS)) == {}


@pytest.mark.usefixtures("slow")
def test_the_agent_of_toolbus_keeps_every_level() -> None:
    """toolbus's own agent keeps the protocol up to the highest level that agents have."""
    found = of_agent([sys.executable, "-m", "toolbus.operations.conformance.agent"], max(LEVELS))
    assert len(found) == len(AGENT.checks)
    assert broken(found) == {}


@pytest.mark.usefixtures("slow")
def test_the_worker_in_node_keeps_level_1() -> None:
    """The example of a worker in Node.js keeps levels 0 and 1."""
    assert of_worker(with_node("worker.mjs"), 1) == {}


@pytest.mark.usefixtures("slow")
def test_the_agent_in_node_keeps_level_1() -> None:
    """The example of an agent in Node.js keeps levels 0 and 1."""
    assert broken(of_agent(with_node("agent.mjs"), 1)) == {}


@pytest.mark.usefixtures("slow")
def test_a_worker_written_from_the_document_keeps_level_2(folder: Path) -> None:
    """The worker into which faults are planted has none by itself."""
    assert of_worker(planted("none", folder), 2) == {}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found(fault: str, folder: Path) -> None:
    """The check that is meant for a fault finds it, and says so in words."""
    check, _ = FAULTS[fault]
    problems = of_worker(planted(fault, folder), 2, check)
    assert list(problems) == [check]
    assert problems[check]


def test_at_least_twenty_faults_are_planted() -> None:
    """There are twenty faults or more, and each names a check that exists."""
    assert len(FAULTS) >= 20
    assert {check for check, _ in FAULTS.values()} <= {check.name for check in WORKER.checks}


def test_the_examples_are_short() -> None:
    """The worker and the agent in Node.js have less than 200 lines together."""
    assert sum(len((EXAMPLES / name).read_text().splitlines()) for name in ("worker.mjs", "agent.mjs")) < 200


def test_scripts_are_written_whole(folder: Path) -> None:
    """Each script is written with the parts that it includes, and runs as the server knows it."""
    for script in scripts.ALL:
        text = (folder / f"{script.name}.lua").read_text()
        assert text == script.source
        assert "\n-- include " not in text


@pytest.mark.usefixtures("slow")
def test_a_command_that_is_not_there_is_a_clear_error() -> None:
    """A command that can't be started ends the kit in one line."""
    found = subprocess.run(
        [sys.executable, "-m", "toolbus", "protocol", "conformance", "worker", "--", "no-such-program"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr.strip().endswith("can't start 'no-such-program': No such file or directory")


@pytest.mark.usefixtures("slow")
def test_an_unknown_check_is_a_usage_error() -> None:
    """`--only` with a check that does not exist says which there are."""
    command = [sys.executable, "-m", "toolbus", "protocol", "conformance", "agent", "--only", "nothing", "--", "true"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "publishes" in found.stderr
