"""Every command of the documentation is run, or is in a table with the reason why it cannot be."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import msgspec
import pytest

from tests.docs.accounts import FOREIGN, LASTING, REFUSED, RUN_BY, SHOWN, TOOLS, UNRUN
from tests.docs.fences import PAGES, ROOT, SHELL, Fence, fences, program_of, statements
from tests.forking import ForkServer
from tests.gateway.served import Site
from tests.servers import eventually_sync, leaks
from tests.tiers import some
from toolbus.bus.broker.transport.embedded import EmbeddedServer
from toolbus.operations.cli import main
from toolbus.toolkit.learning import Edge, Scores

# Programs that are run; everything else needs a row in a table.
RUN = {"toolbus", "curl", "echo", "for", "python"}
KNOWN = {"", "text", "dockerfile", "json", "mermaid", "python", "toml", "yaml", *SHELL}
FENCES = [fence for page in PAGES for fence in fences(page)]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES if any(fence.page == str(page.relative_to(ROOT)) for fence in FENCES)]


def has_commands(fence: Fence) -> bool:
    """Return whether a block has commands: it says so by its kind, or has no kind and is not in the table of those that show something."""
    return fence.kind in SHELL or (fence.kind == "" and (fence.page, fence.first) not in SHOWN)


COMMANDS = {name: [each for fence in FENCES if fence.page == name and has_commands(fence) for each in statements(fence)] for name in NAMES}
ELSEWHERE = {
    (page, each)
    for page, (_, kind, number) in RUN_BY.items()
    for fence in [fence for fence in FENCES if fence.page == page and fence.kind == kind and has_commands(fence)][:number]
    for each in statements(fence)
}


def test_every_block_has_a_kind_that_tests_know() -> None:
    """A block of a new kind is told, since no test would look at it; and the table of shown blocks has only blocks that are there."""
    assert {fence.kind for fence in FENCES} <= KNOWN
    assert {(fence.page, fence.first) for fence in FENCES if fence.kind == ""} >= SHOWN


def test_the_tables_have_no_idle_rows() -> None:
    """Each row of the tables is needed by a command of a page."""
    every = [each for found in COMMANDS.values() for each in found]
    programs = {program_of(each) for each in every}
    assert set(UNRUN) <= set(every)
    assert [pattern for pattern in REFUSED if not any(re.match(pattern, each) for each in every)] == []
    assert set(FOREIGN) <= programs
    assert set(RUN_BY) <= set(NAMES)
    assert set(LASTING) <= {path for each in every for path in paths(each)}


@pytest.mark.parametrize("page", RUN_BY)
def test_pages_that_other_tests_run_are_named_there(page: str) -> None:
    """The test that runs a page's commands reads the page."""
    test, kind, number = RUN_BY[page]
    text = (ROOT / test).read_text("utf-8")
    assert page in text or f'"{page.rpartition("/")[2]}"' in text
    assert len([fence for fence in FENCES if fence.page == page and fence.kind == kind and has_commands(fence)]) >= number


def words_of(statement: str) -> list[list[str]]:
    """Return the words of each command of toolbus within a statement, without the first."""
    parts = re.split(r"\s*(?:\||&&|;|<|>|\$\(|&$)\s*", statement.replace("\\\n", " "))
    parts = [re.sub(r"^(?:[A-Z_]+=\S+ )+", "", part) for part in parts]
    # The end of a command in a command.
    parts = [part.rpartition(")")[0] if part.count(")") > part.count("(") else part for part in parts]
    return [shlex.split(part)[1:] for part in parts if re.match(r"toolbus \w", part) or re.match(r"toolbus --", part)]


def paths(statement: str) -> list[str]:
    """Return the path of each command of toolbus within a statement, such as ``platform up``, by the real parser."""
    found = []
    for words in words_of(statement):
        command: click.Command = main
        context = click.Context(main)
        names: list[str] = []
        rest = words
        while isinstance(command, click.Group) and rest:
            _, [name, *rest], _ = command.make_parser(context).parse_args(rest)
            inner = command.get_command(context, name)
            assert inner is not None, f"toolbus has no command {' '.join([*names, name])}: {statement}"
            names.append(name)
            command, context = inner, click.Context(inner, parent=context, info_name=name)
        # Reading the options alone does not run the command; a wrong one, a missing argument or a bad value is told.
        with command.make_context(names[-1], list(rest), parent=context.parent, resilient_parsing=False):
            found.append(" ".join(names))
    return found


@pytest.mark.parametrize("page", NAMES)
def test_every_command_of_toolbus_has_words_that_it_takes(page: str) -> None:
    """The real parser takes every command's options, arguments and values."""
    for statement in COMMANDS[page]:
        paths(statement)


def extras() -> set[str]:
    """Return the extras of the package."""
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"])


@pytest.mark.parametrize("page", NAMES)
def test_every_program_is_accounted_for(page: str) -> None:
    """A command is one of toolbus, of make, of pip with extras that exist, of a shell, or in a table with a reason."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for statement in COMMANDS[page]:
        program = program_of(statement)
        if program == "make":
            assert statement.split()[1] in targets, statement
        elif program == "pip":
            wanted = re.findall(r"toolbus\[([\w,-]+)\]", statement)
            assert wanted, f"{page}: {statement}"
            assert set(wanted[0].split(",")) <= extras(), statement
        else:
            accounted = program in {*RUN, "export", *FOREIGN} or statement in UNRUN or (page, statement) in ELSEWHERE
            assert accounted, f"{page}: run this command in a test, or give the reason in tests/docs/accounts.py: {statement}"


def is_run(page: str, statement: str) -> bool:
    """Return whether a command is run here."""
    lasting = any(path in LASTING for path in paths(statement))
    return program_of(statement) in RUN and not (lasting or (page, statement) in ELSEWHERE or statement in UNRUN)


# Pages whose commands learn from a log of thousands of calls, or judge an implementation.
LENGTHY = {"docs/explanation/learning.md", "docs/reference/conformance.md"}
RUN_HERE = [name for name in NAMES if any(is_run(name, each) for each in COMMANDS[name])]


@pytest.fixture(scope="module")
def scene(forks: ForkServer, shared_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A worker of built-in tools, of the tools of the pages and the service of its guide, and a gateway."""
    made = Site(forks, shared_server.url, tmp_path_factory.mktemp("scene"))
    (made.folder / "tools.py").write_text(TOOLS)
    (service,) = [fence for fence in FENCES if fence.page == "docs/how-to/services.md" and fence.kind == "python"]
    (made.folder / "service.py").write_text(service.text)
    try:
        made.worker("calculator", "text", "tools.py", "service.py")
        made.urls = [made.gateway()[1]]
        eventually_sync(lambda: '"find"' in httpx.get(f"{made.urls[0]}/tools").text, timeout=60)
        yield made
    finally:
        made.close()
        leaks(shared_server.url, made.namespace)


def plain(statement: str) -> tuple[list[str], str, str] | None:
    """Return the words after ``toolbus``, what it is given and the file that its output goes to; None where only a shell can run it."""
    if re.search(r"\$|\*|&|;|^[A-Z_]+=", statement):
        return None
    lexer = shlex.shlex(statement.replace("\\\n", " "), posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    words = list(lexer)
    given, out = "", ""
    if words[0] == "echo" and words[2:4] == ["|", "toolbus"]:
        given, words = words[1], words[3:]
    if words[-2:-1] == [">"]:
        out, words = words[-1], words[:-2]
    return (words[1:], given, out) if words[0] == "toolbus" and not {"|", "<", ">"} & set(words) else None


def run(statement: str, environment: dict[str, str], folder: Path, forks: ForkServer) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder: one of toolbus in a fork, which takes a fraction of a new process, and any other in a shell."""
    words = plain(statement)
    if words is None:
        environment = {**environment, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        command, null = ["bash", "-ec", statement], subprocess.DEVNULL
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False, stdin=null)
    done = forks.run("-m", "toolbus", *words[0], folder=folder, environment=environment, given=words[1])
    if words[2]:
        (folder / words[2]).write_text(done.stdout)
    return done


@pytest.mark.parametrize("page", some([name for name in RUN_HERE if name not in LENGTHY], RUN_HERE))
def test_the_commands_of_a_page_run(page: str, scene: Site, forks: ForkServer, namespace: str, tmp_path: Path) -> None:
    """Each command ends well, or is refused for the one thing that only its reader has."""
    (tmp_path / "README.md").symlink_to(ROOT / "README.md")
    # A page may write into these.
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("node_modules", ".venv", "__pycache__"))
    shutil.copytree(ROOT / "examples" / "platform", tmp_path / "tools")
    prepare(page, scene, tmp_path)
    environment = {**scene.environment}
    if page == "docs/how-to/runbooks.md":
        # Its loop runs one command for each descriptor of the namespace, so that it gets one with a single descriptor.
        environment["TOOLBUS_NAMESPACE"] = namespace
        assert (
            run(
                'echo \'{"name": "Our GPU machines"}\' | toolbus operate items put backend-runtime/gpu', environment, tmp_path, forks
            ).returncode
            == 0
        )
    for statement in COMMANDS[page]:
        if not is_run(page, statement):
            continue
        done = run(statement.replace("localhost:8001", scene.urls[0].removeprefix("http://")), environment, tmp_path, forks)
        refused = next((said for pattern, said in REFUSED.items() if re.match(pattern, statement)), None)
        if refused is None:
            assert done.returncode == 0, f"{statement}\n{done.stdout}{done.stderr}"
        else:
            assert done.returncode == 1, statement
            assert re.search(refused, done.stdout + done.stderr), f"{statement}\n{done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr


def prepare(page: str, scene: Site, folder: Path) -> None:
    """Make the files that a page's commands read, from its own examples."""
    examples = [fence.text for fence in FENCES if fence.page == page and fence.kind == "python"]
    if page == "docs/how-to/chat2graph.md":
        (folder / "mine").mkdir()
        (folder / "mine" / "tools.py").write_text(examples[0].partition("plan = ")[0].replace("SchemaGetter", "Getter"))
        (folder / "chat2graph.yml").write_text("tools: [{name: Getter, module_path: app.tools}]\n")
    if page == "docs/explanation/learning.md":
        steps = ROOT / "tests" / "learning" / "step_by_step.py"
        subprocess.run([sys.executable, steps], cwd=folder, env=scene.environment, capture_output=True, check=True, timeout=100)
        static = Scores([Edge("call", "count orders", "run_sql", 0.4), Edge("call", "count orders", "grep_dump", 0.8)])
        (folder / "scores.json").write_text(json.dumps({"edges": msgspec.to_builtins([*static])}))
