"""The documents say what the code says: settings, events, metrics, keys, links and examples."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_type_hints
from xml.etree import ElementTree

import click
import pytest

import toolbus
from tests.agent.endpoint import endpoint, says
from tests.faults.hostile import KEY_NAMES
from tests.forking import ForkServer
from toolbus import ToolBus, Worker
from toolbus.bus import telemetry
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.telemetry.metrics import EXPOSED
from toolbus.bus.values.naming import DOCUMENT_KINDS
from toolbus.bus.values.options import CallOptions, ServiceCallOptions
from toolbus.bus.values.results import ERROR_KINDS
from toolbus.bus.values.settings import PREFIX, Settings
from toolbus.bus.worker.loading import describe, installed_services
from toolbus.operations.cli import main
from toolbus.platform.documents import PREFIXES
from toolbus.testing import InvocationEnvironment
from website.stage import navigation, pages_of, place, prepared

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def read(name: str) -> str:
    """Return the text of a page."""
    return (ROOT / name).read_text("utf-8")


def blocks(name: str) -> list[str]:
    """Return the Python examples of a page."""
    return re.findall(r"```python\n(.*?)```", read(name), re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the fragments that links to a page may have: one for each heading, made as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links within the repository name files that exist, and headings that are in them."""
    for target, fragment in re.findall(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text("utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), target
        if fragment:
            assert fragment in anchors(file), f"{target}#{fragment}"


def test_every_page_is_in_the_index() -> None:
    """The index of the documentation, or that of its folder, links to every page: the site's navigation is made from them."""
    missing = {place(page) for page in (ROOT / "docs").rglob("*.md")} - set(pages_of(navigation()))
    assert missing == set(), "add them to docs/README.md, or to the README.md of their folder"


def test_every_decision_has_its_parts() -> None:
    """A decision has a number that no other one has, and says context, decision, consequence and measurement, or which one replaces it."""
    pages = sorted(set((ROOT / "docs/adr").glob("*.md")) - {ROOT / "docs/adr/README.md"})
    assert [int(page.name[:4]) for page in pages] == [*range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text("utf-8")
        assert text.startswith(f"# {int(page.name[:4])}. "), page.name
        if re.search(r"^Superseded by \[ADR \d+\]\(\d{4}-[a-z0-9-]+\.md\)\.$", text, re.MULTILINE):
            continue
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence", "Measurement"], page.name


def test_code_names_pages_that_exist() -> None:
    """Comments and docstrings that name a page of the documentation name one that is there."""
    for path in [*(ROOT / "toolbus").rglob("*"), *(ROOT / "workers").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]:
        if path.suffix in {".py", ".lua"}:
            for name in re.findall(r"docs/[\w/.-]+?\.md", path.read_text("utf-8")):
                assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


MAP = "docs/architecture.md"


def defined_in(path: Path) -> set[str]:
    """Return the functions and classes that a module defines, and its classes' methods as ``Class.method``."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


def test_the_architecture_names_what_exists() -> None:
    """Every path on the page exists, and every function is defined in the file that is named before it."""
    named = re.findall(r"`((?:toolbus|workers|tests|benchmarks)/[\w/.-]*|pyproject\.toml)(?:: ([\w.]+))?`", read(MAP))
    assert len(named) > 80
    assert sum(bool(function) for _, function in named) > 20
    wrong = []
    for path, function in named:
        file = ROOT / path
        if not file.exists() or path.endswith("/") != file.is_dir():
            wrong.append(path)
        elif function and function not in defined_in(file):
            wrong.append(f"{path}: {function}")
    assert wrong == []


def test_the_map_is_complete() -> None:
    """The map has every wing, the packages in it, the steps of the protocol, and the modules at the top of the package and of the bus."""
    table = read(MAP).partition("## The map")[2].partition("## One call")[0]
    package = ROOT / "toolbus"
    deep = ("*/__init__.py", "*/*/__init__.py", "bus/broker/*/__init__.py")
    packages = [folder.parent for pattern in deep for folder in package.glob(pattern) if "assets" not in folder.parts]
    modules = [each for pattern in ("*.py", "bus/*.py", "bus/broker/*.py") for each in package.glob(pattern)]
    paths = [*packages, *(each for each in modules if not each.name.startswith("__"))]
    names = [f"{path.relative_to(ROOT)}/" if path.is_dir() else str(path.relative_to(ROOT)) for path in paths]
    assert [name for name in names if f"| `{name}` |" not in table] == []


def test_other_pages_name_no_files_of_the_code() -> None:
    """Only the architecture names modules by their paths, and reliability its tests, so that moving one changes one page."""
    for page in PAGES:
        if page.name not in {"architecture.md", "CHANGELOG.md", "reliability.md"} and page.name != "protocol.md":
            assert not re.findall(r"`[\w/]*\w/\w+\.(?:py|lua)\b", page.read_text("utf-8")), page.relative_to(ROOT)


def commands(page: Path) -> list[list[str]]:
    """Return the words after ``toolbus`` of each command line on a page, in its code blocks and within its sentences."""
    text = page.read_text("utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for kind, block in fenced if kind in {"", "bash", "sh"} for line in block.replace("\\\n", "").splitlines()]
    lines += re.findall(r"`(toolbus [^`\n]+)`", text)
    parts = [part for line in lines for part in re.split(r"\s*(?:\||&&|;|[<>]|\$\()\s*", line)]
    parts = [re.sub(r"^(?:[A-Z_]+=\S+ )+", "", part) for part in parts]
    return [shlex.split(part, comments=True)[1:] for part in parts if re.match(r"toolbus \w", part) and "…" not in part.split()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_line_is_one(page: Path) -> None:
    """Commands of the pages exist and have the options that are shown."""
    for words in commands(page):
        command: click.Command = main
        context = click.Context(main)
        rest = words
        while isinstance(command, click.Group) and rest:
            _, [name, *rest], _ = command.make_parser(context).parse_args(rest)
            found = command.get_command(context, name)
            assert found is not None, words
            command, context = found, click.Context(found, parent=context)
        _, left, _ = command.make_parser(context).parse_args(rest)
        assert left == [], words


def test_every_command_is_in_the_table() -> None:
    """The site's reference of commands lists all of them, those of groups too, with what each does."""
    source = ROOT / "docs/reference/commands.md"
    rows = dict(re.findall(r"^\| `toolbus ([^`]+)` \| (.+) \|$", prepared(source.read_text("utf-8"), source, source, "main"), re.MULTILINE))
    assert {name.split()[0] for name in rows} == set(main.list_commands(click.Context(main)))
    assert {"toolkit learning run", "operate dead redrive", "doctor"} <= rows.keys()
    assert [name for name, about in rows.items() if not about.endswith(".")] == []


@pytest.mark.usefixtures("slow")
def test_every_name_on_the_sites_page_can_be_imported_from_where_it_says() -> None:
    """The site's page of names has those of the package, and each of its rows names a module that is there, with all of its names."""
    source = ROOT / "docs/reference/names.md"
    table = prepared(source.read_text("utf-8"), source, source, "main").partition("## ")[0]
    rows = {module: re.findall(r"`(\w+)`", names) for module, names in re.findall(r"^\| `([\w.]+)` \| (.+) \|$", table, re.MULTILINE)}
    assert sorted(rows["toolbus"]) == sorted(toolbus.__all__)
    assert len(rows) > 10
    for module, names in rows.items():
        found = importlib.import_module(module)
        assert [name for name in names if not hasattr(found, name)] == [], module


def declared(kind: str) -> set[str]:
    """Return the names of the packages that toolbus, or one of its extras, needs."""
    project = tomllib.loads(read("pyproject.toml"))["project"]
    wanted = project["dependencies"] if not kind else project["optional-dependencies"][kind]
    return {re.split(r"[^\w-]", each)[0].lower() for each in wanted} - {"toolbus"}


def test_the_design_gives_a_reason_for_every_package() -> None:
    """The design's table tells why each dependency is there, also those of extras but for development, and names no other."""
    extras = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
    table = read("docs/design.md").partition("## Libraries")[2]
    cells = re.findall(r"^\| ([^|]+?)(?: \(extras?\))? \|", table, re.MULTILINE)[1:]
    named = {name for cell in cells for name in re.split(r"[,;] ", cell)}
    assert named == set().union(*(declared(kind) for kind in ("", *extras) if kind not in {"dev", "mutants", "release"}))


def test_the_settings_table_is_complete() -> None:
    """Each setting stands in the site's reference of settings with its variable, its default and its meaning."""
    source = ROOT / "docs/reference/settings.md"
    page = prepared(source.read_text("utf-8"), source, source, "main")
    for name in Settings.__struct_fields__:
        default = getattr(Settings(), name)
        row = f"| `{PREFIX}{name.upper()}` | `{default if default != '' else ' '}` | "
        assert re.search(rf"^{re.escape(row)}\w|^{re.escape(row)}`", page, re.MULTILINE), f"explain {name} in the docstring of Settings"
    assert Settings.meanings().keys() == set(Settings.__struct_fields__)


def test_every_variable_of_a_part_has_a_page() -> None:
    """A variable that the code reads is a setting, or of a part whose page, named in the reference of settings, lists it by its name."""
    page = read("docs/reference/settings.md")
    rows = re.findall(r"^\| (`TOOLBUS_[^|]+…?`[^|]*) \| (\[[^|]+) \|$", page, re.MULTILINE)
    families = {name.rstrip("…"): re.findall(r"\]\(([^)#]+)", part) for names, part in rows for name in re.findall(r"`(\w+…?)`", names)}
    assert len(families) > 10
    code = "".join(path.read_text("utf-8") for folder in ("toolbus", "workers") for path in (ROOT / folder).rglob("*.py"))
    # Of a conformance run's worker, and marks between processes of toolbus.
    inner = {"SERVICE", "SCRIPTS", "PROGRAM_OF", "RUN", "ISOLATION_SETUP", "DIAGNOSIS_SERVICE"}
    inner |= {name.upper() for name in Settings.__struct_fields__}
    served = {name for service in installed_services() for name in describe(service).settings}
    assert "TOOLBUS_DATA_MEMORY" in served
    for name in set(re.findall(r"TOOLBUS_[A-Z_]*[A-Z]\b", code)) - {PREFIX + each for each in inner}:
        pages = [each for family, found in families.items() if name.startswith(family) for each in found]
        assert pages, f"{name} stands in no row of settings.md"
        # Options of a command stand in its --help, settings of a service in `toolbus see workers`.
        if not name.startswith(("TOOLBUS_GATEWAY_", "TOOLBUS_IM_")) and name not in served:
            short = name.removeprefix("TOOLBUS")
            assert any(name in text or short in text for text in (read(f"docs/reference/{each}") for each in pages)), name


def described(*owners: type | Callable[..., object]) -> set[str]:
    """Return the names that sections of docstrings describe, such as ``Args:`` and ``Attributes:``."""
    found = re.findall(r"^    (\w+(?:, \w+)*): ", "\n".join(str(inspect.getdoc(each)) for each in owners), re.MULTILINE)
    return {name for names in found for name in names.split(", ")}


def test_the_api_explains_every_option() -> None:
    """Each option of a tool and a call, attribute of a service, property of a running call, and event is explained on a page of the API."""
    shown = {
        name
        for page in (ROOT / "docs/reference/api").glob("*.md")
        for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)
    }
    options = {name for name, each in inspect.signature(toolbus.tool).parameters.items() if each.kind is not each.VAR_KEYWORD}
    assert options <= described(toolbus.tool), options - described(toolbus.tool)
    assert get_type_hints(toolbus.ToolService).keys() <= described(toolbus.ToolService)
    assert CallOptions.__optional_keys__ <= described(CallOptions, ServiceCallOptions)
    running = get_type_hints(toolbus.invocation)["return"]
    members = {name for name in vars(running) if not name.startswith("_")}
    assert {"confirm", "deadline"} < members
    assert [name for name in members - described(running) if not inspect.getdoc(getattr(running, name))] == []
    (event,) = get_args(get_type_hints(toolbus.Call.events)["return"])
    names = {"tool", "ToolService", "invocation", running.__name__, *(kind.__name__ for kind in get_args(event))}
    names |= {CallOptions.__name__, ServiceCallOptions.__name__}
    assert names <= {name.rpartition(".")[2] for name in shown}, names


def test_events_and_metrics_are_listed() -> None:
    """Each log event and metric stands in the reference of telemetry, as the site shows it."""
    source = ROOT / "docs/reference/telemetry.md"
    page = prepared(source.read_text("utf-8"), source, source, "main")
    assert [name for name in [*telemetry.EVENTS, *telemetry.METRICS] if f"| `{name}` |" not in page] == []
    assert [name for name in EXPOSED if f"| `{name}` |" not in page] == []


def _protocol() -> str:
    return read("docs/protocol.md") + read("docs/reference/protocol-extensions.md")


def test_the_protocol_page_knows_every_key() -> None:
    """Each key and channel that the code names has a row on one of the protocol's pages."""
    page = _protocol()
    keys = Keys("n")
    made = {name: getattr(keys, name) for name in KEY_NAMES}
    texts = {name: key if isinstance(key, str) else key(*["<x>"] * len(inspect.signature(key).parameters)) for name, key in made.items()}
    shown = {name: key.removeprefix(keys.prefix).partition("<")[0] for name, key in texts.items()}
    missing = [name for name, key in shown.items() if not re.search(rf"`P {re.escape(key)}[<`]", page)]
    assert missing == [], "tell of these keys in docs/protocol.md, or in docs/reference/protocol-extensions.md"


def test_every_kind_of_document_is_read_and_has_a_row() -> None:
    """Each kind of the registry's documents has readers, and stands on the protocol page beside its table."""
    of_platform = {kind for kind, about in DOCUMENT_KINDS.items() if about.of_platform}
    assert {each.rstrip("/") for each in PREFIXES} == of_platform, "give the kind a type in toolbus/platform/documents.py"
    others = {"tool", "tool-service", "toolkit", "pin"}
    assert DOCUMENT_KINDS.keys() - of_platform == others, "read it in Catalogue and in `toolbus operate items`, then add it here"
    rows = _protocol().splitlines()
    tables = {kind: Keys("").table(f"{kind}/x").removeprefix(Keys("").prefix) for kind in DOCUMENT_KINDS}
    missing = {kind for kind, table in tables.items() if not any(f"`P {table}`" in row and f"`{kind}/<" in row for row in rows)}
    assert missing == set(), "tell of them in docs/protocol.md"


def test_the_pages_of_errors_know_every_type() -> None:
    """Each error type is on the protocol page, and beside its status in the guide to the gateway."""
    page = read("docs/protocol.md")
    assert [kind for kind in ERROR_KINDS if f"`{kind}`" not in page] == [], "add them to the types of errors in docs/protocol.md"
    rows = read("docs/how-to/gateway.md").partition("| Status | `type` |")[2].partition("\n\n")[0].splitlines()
    missing = [
        (about.status, kind)
        for kind, about in ERROR_KINDS.items()
        if not any(re.match(rf"\|[^|]*\b{about.status}\b[^|]*\|.*`{kind}`", row) for row in rows)
    ]
    assert missing == [], "add them to the table of statuses in docs/how-to/gateway.md"


def test_defaults_in_examples_are_those_of_the_settings() -> None:
    """A default that an example or a unit of systemd gives for a variable is the setting's."""
    texts = [path for folder in ("examples", "deploy") for path in (ROOT / folder).rglob("*") if path.suffix in {".mjs", ".service"}]
    found = [
        (path.name, name.lower(), float(value))
        for path in texts
        for name, value in re.findall(rf"{PREFIX}(\w+) (?:\?\? |\()([\d.]+)", path.read_text("utf-8"))
    ]
    assert len(found) >= 3
    assert [each for each in found if each[2] != getattr(Settings(), each[1])] == [], "write the setting's default there"


def test_the_readme_examples_run(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """The tool and the agent of the README, and the service of its guide, work as they stand there."""
    tools, agent = blocks("README.md")
    (service,) = blocks("docs/how-to/services.md")
    (tmp_path / "jokes.py").write_text(tools)
    (tmp_path / "service.py").write_text(service)
    (tmp_path / "agent.py").write_text(
        agent.replace("redis://localhost:6379", server).replace(f'"{server}"', f'"{server}", namespace="{namespace}"')
    )
    base = [sys.executable, "-m", "toolbus", "--url", server, "--namespace", namespace]
    worker = subprocess.Popen([*base, "worker", "jokes.py", "service.py"], cwd=tmp_path)
    try:
        told = forks.run("agent.py", folder=tmp_path, environment=os.environ)
        assert told.stdout == 'Here is one about cats: …\n3 {"stars":3,"words":6}\nHere is one about dogs: … 1\n', told.stderr
        words = ("call", "tell-limerick", "topic=tea", "--user", "al", "--wait", "10")
        poem = forks.run(*base[1:], *words, folder=tmp_path, environment=os.environ)
        assert poem.stdout == "Hey al! Here is a limerick about tea: …\n", poem.stderr
    finally:
        worker.terminate()
        assert worker.wait(15) == 0


def test_the_tutorial_runs(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """The tool that the tutorial has written is served, and the tutorial's program calls it."""
    (program,) = blocks("docs/tutorial/getting-started.md")
    given = f'"{server}", namespace="{namespace}"'
    base = [sys.executable, "-m", "toolbus", "--url", server, "--namespace", namespace]
    subprocess.run([*base, "new", "weather"], cwd=tmp_path, capture_output=True, timeout=60, check=True)
    worker = subprocess.Popen([*base, "worker", "weather.py"], cwd=tmp_path)
    try:
        assert run_example(forks, program.replace('"redis://localhost:6379"', given), tmp_path) == "1: hello\n2: hello\n3: hello\n"
    finally:
        worker.terminate()
        assert worker.wait(15) == 0


def test_the_example_for_models_runs(tmp_path: Path, forks: ForkServer) -> None:
    """The example of the guide to models prints what the guide says, and its second one is Python."""
    page = read("docs/how-to/models.md")
    example, watching = blocks("docs/how-to/models.md")
    (tmp_path / "example.py").write_text(example)
    said = forks.run("example.py", folder=tmp_path, environment=os.environ)
    expected = re.search(r"It prints:\n\n```\n(.*?)```", page, re.DOTALL)
    assert expected is not None
    assert said.stdout == expected[1], said.stderr
    compile(watching, "watching", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_the_example_for_confirmations_runs(tmp_path: Path, forks: ForkServer) -> None:
    """The example of the guide to confirmations prints what the guide says, and its handler asks before it says what it did."""
    page = read("docs/how-to/confirmations.md")
    example, handler = blocks("docs/how-to/confirmations.md")
    (tmp_path / "example.py").write_text(example)
    defined: dict[str, Any] = {"__name__": "guide"}
    exec(handler, defined)

    async def tidied() -> str:
        async with InvocationEnvironment(confirm=lambda request: "3 rows of orders" in request.question) as environment:
            return (await environment.run(defined["tidy"], {"table": "orders"})).text

    assert asyncio.run(tidied()) == "deleted 3 rows, allowed"
    said = forks.run("example.py", folder=tmp_path, environment=os.environ)
    expected = re.search(r"It prints:\n\n```\n(.*?)```", page, re.DOTALL)
    assert expected is not None, page
    assert (said.stdout, said.stderr) == (expected[1], "")


def test_the_example_of_sessions_runs(tmp_path: Path, forks: ForkServer) -> None:
    """The example of the guide to sessions prints what the guide says."""
    (tmp_path / "example.py").write_text(blocks("docs/how-to/sessions.md")[0])
    said = forks.run("example.py", folder=tmp_path, environment=os.environ)
    expected = re.search(r"It prints:\n\n```\n(.*?)```", read("docs/how-to/sessions.md"), re.DOTALL)
    assert expected is not None
    assert said.stdout == expected[1], said.stderr


@pytest.mark.anyio
async def test_the_airline_of_the_guide_outlives_its_worker() -> None:
    """A toolkit with a state of some MB goes on at another worker, from what was kept of its journal."""
    found: dict[str, Any] = {"__name__": "airline"}
    exec(compile(blocks("docs/how-to/sessions.md")[1], "airline", "exec"), found)
    first, second = (Worker(found["Airline"](), url="memory://") for _ in range(2))
    async with first, ToolBus("memory://") as bus:
        view = bus.bind(user="ann", session="trip")
        await bus.wait_for_tool("book")
        before = int(str((await view.call("taken")).output))
        assert before * len("100A: somebody") > 256 * 1024
        assert (await view.call("book", {"seat": "1A", "name": "Ann"})).output == "1A is booked for Ann"
        async with second:
            await first.drain()
            assert (await view.call("book", {"seat": "1A", "name": "Bob"})).output == "1A is taken by Ann"
            assert (await view.call("taken")).output == str(before + 1)


def test_the_agent_example_is_python() -> None:
    """The example of the guide to the agent compiles, and everything it imports is there."""
    (example,) = blocks("docs/how-to/agent.md")
    tree = compile(example, "agent", "exec", ast.PyCF_ONLY_AST)
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    exec(compile(ast.Module(imports, []), "agent", "exec"), {})


@pytest.mark.anyio
async def test_the_example_of_kept_conversations_runs(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """The example of the guide prints one answer twice, in two processes' worth of agents, and the model is asked for it once."""
    (example,) = blocks("docs/how-to/durable.md")
    (tmp_path / "example.py").write_text(example)
    async with endpoint([says("42")]) as model:
        environment = {**os.environ, "TOOLBUS_URL": server, "TOOLBUS_NAMESPACE": namespace}
        environment |= {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "k", "NO_PROXY": "127.0.0.1"}
        said = await asyncio.to_thread(forks.run, "example.py", folder=tmp_path, environment=environment)
        assert (said.stdout, said.stderr, len(model.bodies)) == ("42\n42\n", "", 1)


def test_the_trustgraph_example_runs(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """The service of the TrustGraph guide is launched as it stands there, and that project's descriptors make a tool of it."""
    (tmp_path / "quip.py").write_text(blocks("docs/how-to/trustgraph.md")[0])
    environment = {**os.environ, "TOOLBUS_URL": server, "TOOLBUS_NAMESPACE": namespace}
    service = '{"id": "quip-service", "request-queue": "non-persistent://tg/request/quip", "config-params": ["style"]}'
    quip = '{"type": "tool-service", "name": "tell-quip", "description": "d", "service": "quip-service", "style": "haiku"}'

    def toolbus(*words: str, given: str | None = None) -> str:
        done = forks.run("-m", "toolbus", *words, folder=tmp_path, environment=environment, given=given)
        assert done.returncode == 0, done.stderr
        return done.stdout

    process = subprocess.Popen([sys.executable, "quip.py", "--topic", "quip"], cwd=tmp_path, env=environment)
    try:
        toolbus("operate", "items", "put", "tool-service/quip-service", given=service)
        toolbus("operate", "items", "put", "tool/tell-quip", given=quip)
        told = toolbus("call", "tell-quip", "topic=cats", "--user", "alice", "--wait", "20")
        assert told == "Hey alice! Here's a haiku about cats\n"
    finally:
        process.terminate()
        assert process.wait(15) == 0


def test_the_nanoclaw_examples_run(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """The tool of the nanoClaw guide runs in process and, served by a worker, over the bus."""
    tool, agent = blocks("docs/how-to/nanoclaw.md")
    (tmp_path / "finder.py").write_text(tool)
    given = f'"{server}", namespace="{namespace}"'
    (tmp_path / "agent.py").write_text(agent.replace('"redis://localhost:6379"', given))
    here = forks.run("finder.py", folder=tmp_path, environment=os.environ)
    assert here.stdout == '{"success": true, "data": {"position": 2}, "error": null}\n', here.stderr
    base = [sys.executable, "-m", "toolbus", "--url", server, "--namespace", namespace]
    worker = subprocess.Popen([*base, "worker", "finder.py"], cwd=tmp_path)
    try:
        there = forks.run("agent.py", folder=tmp_path, environment=os.environ)
        assert there.stdout == '{"success": false, "data": null, "error": "it is not there"}\n', there.stderr
    finally:
        worker.terminate()
        assert worker.wait(15) == 0


def test_the_function_examples_run(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """The tools of the guide to functions, in a package served whole, answer over the bus, in process and isolated."""
    (tmp_path / "mytools").mkdir()
    *modules, registry = blocks("docs/how-to/functions.md")
    assert run_example(forks, registry, tmp_path) == "['add']\n3\n"
    for block in modules:
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None
        (tmp_path / "mytools" / name[1]).write_text(block)
    base = [sys.executable, "-m", "toolbus", "--url", server, "--namespace", namespace]
    expected = {
        "area width=200 height=100 unit=ha": "2.0",
        "greet name=Ada": "Hello Ada!",
        "count_orders customer=Ada": "3",
        "largest_prime below=1000": "997",
        "countdown n=3": "3 2 1 ",
    }
    worker = subprocess.Popen([*base, "worker", "mytools"], cwd=tmp_path)
    try:
        for words, answer in expected.items():
            told = forks.run(*base[1:], "call", *words.split(), "--wait", "20", folder=tmp_path, environment=os.environ)
            assert told.stdout.removesuffix("\n") == answer, told.stderr
    finally:
        worker.terminate()
        assert worker.wait(15) == 0


def test_the_middleware_example_runs(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """A worker runs with the middleware of its guide: calls pass, the quota holds, and usage is counted."""
    (tmp_path / "limits.py").write_text(blocks("docs/how-to/middleware.md")[0])
    base = [sys.executable, "-m", "toolbus", "--url", server, "--namespace", namespace]

    def toolbus(*words: str) -> subprocess.CompletedProcess[str]:
        return forks.run(*base[1:], *words, folder=tmp_path, environment=os.environ)

    worker = subprocess.Popen(
        [*base, "worker", "calculator", "--middleware", "limits.py:middleware"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        for expression, expected in (("6*7", "42"), ("6*7", "42"), ("1+1", "2")):
            told = toolbus("call", "calculator", f"expression={expression}", "--user", "al", "--wait", "20")
            assert expected in told.stdout, told.stderr
        assert "rate_limited" in toolbus("call", "calculator", "expression=1+1", "--user", "al").stderr
        assert toolbus("see", "usage").stdout.splitlines()[1].split()[:4] == ["al", "calculator", "4", "1"]
    finally:
        worker.terminate()
        said, _ = worker.communicate(timeout=15)
    assert (worker.returncode, "al used up calculator" in said) == (0, True)


def printed(page: str) -> str:
    """Return the output that a page shows for its example."""
    expected = re.search(r"It prints:\n\n```\n(.*?)```", read(page), re.DOTALL)
    assert expected is not None
    return expected[1]


def run_example(forks: ForkServer, example: str, folder: Path) -> str:
    """Run an example as a program of its own, and return what it prints."""
    (folder / "example.py").write_text(example)
    done = forks.run("example.py", folder=folder, environment=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told_by(picture: bytes) -> tuple[set[str], list[str]]:
    """Return the names of a picture's shapes, and its texts."""
    root = ElementTree.fromstring(picture)
    names = {each.get("id", "") for each in root.iter() if " " in each.get("id", "")}
    return names, sorted(each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text"))


def test_the_toolkit_example_runs_and_makes_the_pictures(tmp_path: Path, forks: ForkServer) -> None:
    """The example prints what the page says, and the pictures beside the page show what it draws."""
    first, second, _ = blocks("docs/how-to/toolkit.md")
    assert run_example(forks, first, tmp_path) == printed("docs/how-to/toolkit.md")
    for name in ("toolkit.svg", "toolkit-recommended.svg"):
        names, texts = told_by((ROOT / "docs" / "how-to" / name).read_bytes())
        assert names
        assert (names, texts) == told_by((tmp_path / name).read_bytes())
    assert (tmp_path / "toolkit.html").read_text().startswith("<!DOCTYPE html>")
    assert run_example(forks, second, tmp_path) == "[('read', 'write'), ('read', 'fetch')]\n"


@pytest.mark.usefixtures("slow")
def test_the_guide_to_learning_runs(tmp_path: Path, server: str, namespace: str, forks: ForkServer) -> None:
    """The guide's graph loses its wrong edge by the guide's commands, its picture is what they draw, and a rollback restores it."""
    tools, program = blocks("docs/how-to/learning.md")
    (preset,) = re.findall(r"```yaml\n(.*?)```", read("docs/how-to/learning.md"), re.DOTALL)
    (tmp_path / "orders.py").write_text(tools)
    (tmp_path / "orders.yaml").write_text(preset)
    base = ["--url", server, "--namespace", namespace]

    def toolbus(*words: str) -> str:
        done = forks.run("-m", "toolbus", *base, *words, folder=tmp_path, environment=os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    worker = subprocess.Popen([sys.executable, "-m", "toolbus", *base, "worker", "orders.py"], cwd=tmp_path)
    try:
        toolbus("toolkit", "load", "orders.yaml")
        run_example(forks, program.replace('"redis://localhost:6379"', f'"{server}", namespace="{namespace}"'), tmp_path)
        assert "grep_dump" in toolbus("toolkit", "recommend", "count")
        lines = [words for words in commands(ROOT / "docs/how-to/learning.md") if words[:3] == ["toolkit", "learning", "run"]]
        assert ["--dry-run" in words for words in lines] == [True, False]
        for words in lines:
            toolbus(*words)
        assert "grep_dump" not in toolbus("toolkit", "recommend", "count")
        (picture,) = re.findall(r"\((\S+-report\.svg)\)", read("docs/how-to/learning.md"))
        texts = told_by((ROOT / "docs" / "how-to" / picture).read_bytes())[1]
        assert "count → dump" in texts
        assert texts == told_by((tmp_path / "report.svg").read_bytes())[1]
        toolbus("toolkit", "learning", "rollback")
        assert "grep_dump" in toolbus("toolkit", "recommend", "count")
    finally:
        worker.terminate()
        assert worker.wait(15) == 0


@pytest.mark.parametrize("name", ["data-analysis", "graph"])
def test_the_pictures_of_shipped_presets_are_what_the_command_draws(name: str, tmp_path: Path, forks: ForkServer) -> None:
    """The picture in the guide shows the preset as it is, and the guide names it."""
    words = ("toolkit", "draw", "drawn.svg", "--file", name, "--title", name)
    done = forks.run("-m", "toolbus", *words, folder=tmp_path, environment=os.environ)
    assert done.returncode == 0, done.stderr
    names, texts = told_by((ROOT / "docs" / "how-to" / f"preset-{name}.svg").read_bytes())
    assert names
    assert (names, texts) == told_by((tmp_path / "drawn.svg").read_bytes())
    assert f"(preset-{name}.svg)" in read("docs/how-to/toolkit.md")
    assert f"`{name}` " in read("docs/how-to/toolkit.md")


def test_the_chat2graph_example_runs(tmp_path: Path, forks: ForkServer) -> None:
    """The toolkit of the Chat2Graph guide recommends what the guide says."""
    example, importing = blocks("docs/how-to/chat2graph.md")
    assert run_example(forks, example, tmp_path) == printed("docs/how-to/chat2graph.md")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tools.py").write_text(example.replace("SchemaGetter", "Getter"))
    (tmp_path / "chat2graph.yml").write_text("tools: [{name: Getter, module_path: app.tools}, {name: Missing, module_path: app.tools}]\n")
    assert "chat2graph.yml:1: tools[1].name: the module mine.tools has no class 'Missing'" in run_example(forks, importing, tmp_path)


def _is_there(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        with contextlib.suppress(ImportError):
            found = importlib.import_module(".".join(parts[:count]))
            try:
                functools.reduce(getattr, parts[count:], found)
            except AttributeError:
                return False
            return True
    return False


def test_what_has_moved_is_where_the_changelog_says() -> None:
    """Each name in the column of new places can be imported."""
    tables = read("CHANGELOG.md").partition("### Moved")[2].partition("\n## ")[0]
    new = [line.strip("|").split(" | ")[1] for line in tables.splitlines() if line.startswith("|") and line.count(" | ") > 0]
    names = {name for cell in new for name in re.findall(r"`((?:toolbus(?:_workers)?|bus|edges|operations|platform)(?:\.\w+)+)", cell)}
    missing = {name for name in names if not _is_there(name if name.startswith("toolbus") else f"toolbus.{name}")}
    assert len(names) > 20
    assert missing == set(), "name the present place, or drop the row"
