"""`toolbus protocol conformance` on toolbus's own sides, on the examples in Node.js, and on workers with planted faults."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.faults import AGENT_FAULTS, PAGE, WORKER_FAULTS, page
from toolbus.bus.broker.server import scripts
from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.checks import LEVELS, Outcome, Table
from toolbus.operations.conformance.scene import AgentScene, WorkerScene, run_checks
from toolbus.operations.conformance.worker_checks import WORKER

HERE = Path(__file__).parent
NODE = shutil.which("node")
EXAMPLES = HERE.parent.parent / "examples" / "node"
PROTOCOL = HERE.parent.parent / "docs" / "protocol.md"
NUMBER = re.compile(r"\b[WA]\d+\b")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts as `toolbus protocol scripts` writes them."""
    path = tmp_path_factory.mktemp("scripts")
    subprocess.run([sys.executable, "-m", "toolbus", "protocol", "scripts", str(path)], check=True, capture_output=True)
    return path


def broken(outcomes: list[Outcome]) -> dict[str, str]:
    """Return the problems by check."""
    return {outcome.name: outcome.problem for outcome in outcomes if outcome.status == "broken"}


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
    assert [(each.id, each.problem) for each in found if each.status == "broken"] == []
    assert [each.id for each in found if each.status == "not checked"] == [each.id for each in AGENT.requirements if each.run is None]


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
@pytest.mark.parametrize("fault", WORKER_FAULTS)
def test_each_planted_fault_is_found(fault: str, folder: Path) -> None:
    """The check that is meant for a fault finds it, and says so in words."""
    check, _ = WORKER_FAULTS[fault]
    problems = of_worker(planted(fault, folder), 2, check)
    assert list(problems) == [check]
    assert problems[check]


def test_the_page_lists_every_requirement_and_fault() -> None:
    """The page of requirements has the tables of the code, with the faults that each check finds."""
    assert PAGE.read_text("utf-8") == page(), "run python -m tests.conformance.faults"


@pytest.mark.parametrize(("table", "faults"), [(WORKER, WORKER_FAULTS), (AGENT, AGENT_FAULTS)], ids=["worker", "agent"])
def test_each_fault_has_a_check(table: Table[Any], faults: dict[str, tuple[str, str]]) -> None:
    """Each fault names a check that exists; numbers and names are given once, and without gaps."""
    assert {check for check, _ in faults.values()} <= {each.name for each in table.requirements if each.run}
    numbers = [int(each.id[1:]) for each in table.requirements]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len({each.name for each in table.requirements}) == len(numbers)


def test_the_document_and_the_kit_name_the_same_requirements() -> None:
    """Each number of the protocol is one of the kit's, each of the kit's stands in the protocol, and each step has some."""
    text = PROTOCOL.read_text("utf-8")
    known = {each.id for table in (WORKER, AGENT) for each in table.requirements}
    assert set(NUMBER.findall(text)) == known
    for title, letter in (("An agent", "A"), ("A worker", "W")):
        section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for step in re.split(r"^(?=\d+\. )", section, flags=re.MULTILINE)[1:]:
            assert re.search(rf"\b{letter}\d+\b", step), f"no requirement in: {step[:80]}"


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
