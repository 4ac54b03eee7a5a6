"""The pages of ``examples/`` list everything that is there, and each of their commands is run or checked."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from tests.examples_run.pages import EXAMPLES, PAGES, ROOT, commands
from toolbus.operations.cli import main

# How each command is tried, by how it begins: the test that runs it, or the reason why it is only checked.
RUN = {
    "toolbus dev tools.py": "the server and the worker of all tests here",
    "python model.py -m toolbus agent": "test_the_command_line_takes_the_scripted_model",
    "python fastapi/app.py": "test_fastapi",
    "curl -s": "test_fastapi requests these paths",
    "toolbus protocol scripts": "test_the_worker_in_node_answers",
    "TOOLBUS_SCRIPTS=scripts node": "test_the_worker_in_node_answers",
    "toolbus call node-count": "test_the_worker_in_node_answers",
    "JOBS_TOKEN=secret python": "test_the_recorded_tools_answer",
    "toolbus platform import": "test_the_recorded_tools_answer",
    "JOBS_TOKEN=secret toolbus platform host": "test_the_recorded_tools_answer",
    "toolbus call job_": "test_the_recorded_tools_answer",
    "sh tls/make_certificates.sh": "test_tls",
    "export TOOLBUS_": "test_tls",
    "toolbus worker tools.py": "test_tls",
    "toolbus doctor": "test_tls",
    "toolbus call count_free_seats": "test_tls",
    "python model.py agents/openai_chat.py": "test_tls",
    "toolbus protocol conformance": "the tests of conformance run both programs, for minutes",
}
CHECKED = {
    "pip install": "extras are those of the project; packages are installed for development",
    "export OPENAI_API_KEY=": "only a person has a key",
    "python agents/openai_chat.py": "needs a key; the program itself runs with the scripted model",
    "jupyter lab": "needs a browser; test_notebook runs the notebook",
    "docker ": "needs a daemon and images; test_kubernetes compares files, tags and names",
    "valkey-server ": "the Valkey of the tests has no TLS; a proxy speaks it with the same files",
    "kind ": "needs a cluster",
    "kubectl ": "needs a cluster; test_kubernetes builds, validates and compares the manifests and names",
    "helm ": "needs a cluster; test_kubernetes renders the values with Helm's engine",
    "toolbus call write_report": "test_kubernetes makes this call in process",
    "toolbus see services": "its port leads to the cluster; the tests of the command line run it",
}
ALL = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(("page", "command"), ALL, ids=[command for _, command in ALL])
def test_every_command_is_tried(page: Path, command: str) -> None:
    """A command is run by a test, or is one that can't be run here for a reason."""
    assert sum(command.startswith(each) for each in (*RUN, *CHECKED)) == 1, f"{page}: nobody tries it"


def test_every_way_to_try_is_used() -> None:
    """No command is said to be tried that no page has."""
    for each in (*RUN, *CHECKED):
        assert any(command.startswith(each) for _, command in ALL), each


@pytest.mark.parametrize("command", [each for _, each in ALL if " toolbus " in f" {each}" and not each.startswith("pip")])
def test_every_command_of_toolbus_is_one(command: str) -> None:
    """Its name and options exist."""
    rest = shlex.split(command[command.index("toolbus ") :])[1:]
    found: click.Command = main
    context = click.Context(main)
    while isinstance(found, click.Group) and rest:
        name, *rest = rest
        below = found.get_command(context, name)
        assert below is not None, name
        found, context = below, click.Context(below, parent=context)
    found.make_parser(context).parse_args(rest)


def test_every_example_is_listed() -> None:
    """The first page has a link to each program and folder, other than helpers of one that is linked."""
    linked = set(re.findall(r"\]\(([^)#:]+)\)", (EXAMPLES / "README.md").read_text("utf-8")))
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name not in {"agents", "patterns", "scripts"}}
    for folder in folders - {"__pycache__"}:
        assert any(link.split("/")[0] == folder for link in linked), folder
    for path in (*EXAMPLES.glob("*.py"), *(EXAMPLES / "agents").glob("*.py"), *(EXAMPLES / "patterns").glob("*.py")):
        assert str(path.relative_to(EXAMPLES)) in linked, path.name


def test_every_link_leads_somewhere() -> None:
    """Links name files and folders of the project; its first page and its guides lead here."""
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page}: {target}"
    for page in (ROOT / "README.md", ROOT / "docs" / "README.md", ROOT / "docs" / "how-to" / "adapters.md"):
        assert "examples/README.md" in page.read_text("utf-8"), page


def test_every_extra_that_is_named_exists() -> None:
    """`pip install 'toolbus[…]'` names extras of the project, in pages and in programs."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    texts = [path.read_text("utf-8") for path in EXAMPLES.rglob("*") if path.suffix in {".md", ".py", ".ipynb"}]
    extras = {extra for text in texts for found in re.findall(r"toolbus\[([^\]…]+)\]", text) for extra in found.split(",")}
    assert {"agent", "openai", "demo"} <= extras
    for extra in extras:
        assert re.search(rf"^{re.escape(extra)} = \[", project, re.MULTILINE), extra
