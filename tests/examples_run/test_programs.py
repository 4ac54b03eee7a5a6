"""The programs of ``examples/`` run by the commands of their page, and print what it says."""

from __future__ import annotations

import shutil

import pytest

import toolbus.adapters
from tests.examples_run.desk import PATIENCE, Desk
from tests.examples_run.pages import EXAMPLES, Row, commands, rows
from tests.servers import eventually_sync
from toolbus.bus.broker.transport.embedded import free_port

NODE = shutil.which("node")
# Modules of the package that adapt to nothing by themselves.
SHARED = {"home", "outcomes", "places"}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.file)
def test_an_example_prints_what_its_page_says(row: Row, desk: Desk) -> None:
    """Each command of a table succeeds, and its output has what the table says is seen."""
    printed = desk.run(row.command)
    assert row.seen in printed
    assert "Warning" not in printed


@pytest.mark.usefixtures("slow")
def test_agents_show_progress_and_calls(desk: Desk) -> None:
    """An agent prints each call, each step of its progress, and the result, before the answer."""
    lines = desk.run("python model.py agents/openai_chat.py").splitlines()
    at = [lines.index(each) for each in ("find_trains …", "count_free_seats …", "  asked carriage 3 of R63")]
    assert at == sorted(at)
    assert lines[-2:] == ["R61: 16 free seats. R601: 41 free seats. R63: 9 free seats. ", "Take R601: it has 41 free seats."]


def test_every_adapter_has_an_example() -> None:
    """Each module of the adapters is imported by an agent, and each agent stands in the table and is short."""
    [folder] = toolbus.adapters.__path__
    modules = {path.stem for path in type(EXAMPLES)(folder).glob("*.py")} - SHARED - {"__init__"}
    agents = {path.name: path.read_text("utf-8") for path in (EXAMPLES / "agents").glob("*.py")}
    for module in modules:
        assert any(f"from toolbus.adapters.{module} import" in text for text in agents.values()), module
    assert {f"agents/{name}" for name in agents} == {row.file for row in rows() if row.file.startswith("agents/")}
    for name, text in agents.items():
        assert len(text.splitlines()) <= 60, name
        assert "Needs `toolbus[" in text.splitlines()[0], name


@pytest.mark.usefixtures("slow")
def test_an_agent_says_that_its_tools_are_not_served(desk: Desk) -> None:
    """Without a worker the scripted model says which command serves the tools."""
    assert "toolbus worker tools.py" in desk.run("TOOLBUS_NAMESPACE=empty python model.py agents/openai_chat.py")


@pytest.mark.usefixtures("slow")
def test_the_command_line_takes_the_scripted_model(desk: Desk) -> None:
    """`toolbus agent` runs with the model of the examples, whose answers it reads as a stream."""
    [command] = [each for each in commands(EXAMPLES / "README.md") if "-m toolbus agent" in each]
    assert "Take R601: it has 41 free seats." in desk.run(command)


@pytest.mark.usefixtures("slow")
def test_the_worker_in_node_answers(desk: Desk) -> None:
    """The commands of the page write the scripts, start the worker in Node.js, and call its tool."""
    if NODE is None:
        pytest.skip("there is no Node.js on this machine: the worker of examples/node was not run")
    found = commands(EXAMPLES / "README.md")
    [scripts], [worker], [call] = ([each for each in found if part in each] for part in ("protocol scripts", "SCRIPTS=", "node-count"))
    desk.run(scripts)
    with desk.running(f"env {worker}", ""):
        eventually_sync(lambda: "node-count" in desk.run("toolbus tools"), timeout=PATIENCE)
        assert "1 2 3" in desk.run(call)


@pytest.mark.usefixtures("slow")
def test_the_recorded_tools_answer(desk: Desk) -> None:
    """The folder of records is imported, a host serves it, and calls reach the API; all by the page's commands, at another port."""
    found = commands(EXAMPLES / "README.md")
    [api], [imported], [host] = (
        [each for each in found if part in each] for part in ("jobs_api.py", "platform import", "toolbus platform host")
    )
    launch, run = (each for each in found if each.startswith("toolbus call job_"))
    port = str(free_port())
    sources = desk.folder / "platform" / "sources.json"
    sources.write_text(sources.read_text("utf-8").replace("8765", port), "utf-8")
    with desk.running(f"env {api.replace('8765', port)}", port):
        desk.run(imported)
        with desk.running(f"env {host}", "service.registered"):
            eventually_sync(lambda: "job_launch" in desk.run("toolbus tools"), timeout=PATIENCE)
            assert "j1" in desk.run(launch)
            assert "train" in desk.run(run)
