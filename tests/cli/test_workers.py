"""Installed services by short name, in projects whose own folders and files have the names of ours."""

from __future__ import annotations

import importlib.metadata
import pkgutil
import sys
from pathlib import Path

import msgspec
import pytest
import toolbus_workers
from toolbus_workers import data_sessions, file_read, knowledge_search
from toolbus_workers.graph_store import embedded

from tests.cli.shell import Shell
from tests.servers import eventually_sync
from toolbus import ConfigurationError
from toolbus.bus.worker import loading
from toolbus.bus.worker.loading import defined_in, describe, import_installed, installed_service, installed_services

MINE = '''"""A tool of this project."""
from toolbus import tool

@tool(effect="read")
def mine() -> str:
    """Answer."""
    return "mine"
'''
PROJECT = '[project]\nname = "My.App"\nversion = "1"\n'


def owners(shell: Shell, service: str) -> set[str]:
    """Return the owners under which a service is live."""
    return {each["owner"] for each in shell.json("see", "services") if each["id"].rpartition(".")[2] == service and each["live"]}


def test_every_module_with_tools_has_a_short_name() -> None:
    """A module that defines tools, and is not a part of another service, can be served by name."""
    offered = {each.target for each in installed_services() if each.distribution == "toolbus"}
    for module in pkgutil.iter_modules(toolbus_workers.__path__, "toolbus_workers."):
        try:
            defined_in(importlib.import_module(module.name))
        except ConfigurationError:
            continue
        if module.name.rpartition(".")[2] not in {"operations", "data_engine", "graph_engine"}:
            assert module.name in offered, module.name


def test_every_short_name_stands_for_tools_and_says_what_they_do() -> None:
    """Each entry point can be imported, defines tools, and has a description."""
    for service in installed_services():
        assert defined_in(import_installed(service)), service.name
        assert describe(service).summary, service.name


@pytest.mark.parametrize(
    ("name", "limits", "prefix"),
    [
        ("knowledge_search", knowledge_search.Limits, "TOOLBUS_KNOWLEDGE_"),
        ("file_read", file_read.Limits, "TOOLBUS_FILES_"),
        ("data_analysis", data_sessions.Limits, "TOOLBUS_DATA_"),
        ("graph_store", embedded.Limits, "TOOLBUS_GRAPH_"),
    ],
)
def test_the_settings_that_are_listed_are_those_that_are_read(name: str, limits: type[msgspec.Struct], prefix: str) -> None:
    """Every limit of a service is listed with its default, and nothing else."""
    service = installed_service(name)
    assert service is not None
    settings = describe(service).settings
    assert list(settings) == [prefix + field.upper() for field in limits.__struct_fields__]
    for field in msgspec.structs.fields(limits):
        if field.default:
            shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
            assert f"({shown})" in settings[prefix + field.name.upper()]


def test_the_list_says_what_each_service_needs(shell: Shell) -> None:
    """The command `toolbus see workers` shows names, extras and settings, as text and as JSON."""
    found = {each["name"]: each for each in shell.json("see", "workers")}
    assert found["web_search"]["requirement"] == "toolbus[web]"
    assert "TOOLBUS_FILES_ROOT" in found["file_read"]["settings"]
    done = shell.run("see", "workers")
    assert done.returncode == 0
    assert "TOOLBUS_FILES_ROOT" in done.stdout


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a package that a service imports is not installed, the error says what to install."""
    monkeypatch.setitem(sys.modules, "ddgs", None)
    for module in ("toolbus_workers.web_search", "toolbus_workers.web.search"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    service = installed_service("web_search")
    assert service is not None
    with pytest.raises(ConfigurationError, match=r"pip install 'toolbus\[web\]'"):
        import_installed(service)


@pytest.mark.parametrize("source", ["def (", "SETTINGS = {'A': read()}", "SETTINGS = {1: 2}", "SETTINGS = 5", "\0", "\udcff"])
def test_a_package_that_cannot_be_read_hides_no_other(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with a broken source is listed with the reason, and the other packages are listed as always."""
    (tmp_path / "strange_tools.py").write_bytes(source.encode("utf-8", "surrogateescape"))
    monkeypatch.syspath_prepend(tmp_path)
    assert "can't be read" in describe(loading.InstalledService("strange", "strange_tools", "strange")).summary


def test_an_installation_without_our_services_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """`toolbus dev` from an installation whose metadata is old names what is missing and what to do."""
    monkeypatch.setattr(loading, "installed_services", tuple)
    with pytest.raises(ConfigurationError, match=r"lacks its services calculator, .*install toolbus anew"):
        loading.examples()


def test_a_name_that_two_packages_offer_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is guessed: the error names both modules."""
    both = tuple(loading.InstalledService("same", f"{place}.same", place) for place in ("one", "two"))
    monkeypatch.setattr(loading, "installed_services", lambda: both)
    with pytest.raises(ConfigurationError, match=r"one\.same of one, two\.same of two"):
        installed_service("same")


@pytest.mark.parametrize(
    "files",
    [
        {"workers/__init__.py": "", "workers/slow.py": "HERE = 1\n"},
        pytest.param({"workers.py": "HERE = 1\n"}, marks=pytest.mark.slow),
        pytest.param({"tests/__init__.py": "", "tests/test_mine.py": ""}, marks=pytest.mark.slow),
        {"toolbus_workers/__init__.py": "raise RuntimeError('imported by mistake')\n", "toolbus_workers/joke.py": ""},
        pytest.param({"text/notes.txt": "a folder of data", "calculator/data.csv": "1,2"}, marks=pytest.mark.slow),
    ],
    ids=["workers/", "workers.py", "tests/", "toolbus_workers/", "data folders"],
)
def test_a_project_with_folders_of_our_names_serves_its_tools_and_ours(shell: Shell, files: dict[str, str]) -> None:
    """The user's module can import its own package, and installed services run beside it."""
    for name, text in files.items():
        place = shell.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    own = "from workers import HERE\n" if "workers.py" in files else "import workers.slow\n" if "workers/slow.py" in files else ""
    (shell.folder / "jokes.py").write_text(MINE.replace("from toolbus", f"{own}from toolbus"))
    worker = shell.start_anew("worker", "jokes.py", "calculator", "text", "--examples")
    eventually_sync(lambda: {"mine", "calculator", "tell-pun", "text_stats"} <= {each["name"] for each in shell.json("tools")})
    assert worker.poll() is None
    done = shell.run("call", "calculator", "expression=6*7")
    assert (done.returncode, done.stdout.strip()) == (0, "42"), done.stderr
    assert shell.run("call", "mine").stdout.strip() == "mine"


def test_a_module_of_the_users_wins_over_an_installed_name(shell: Shell) -> None:
    """calculator.py in the current folder is what `toolbus worker calculator` serves."""
    (shell.folder / "calculator.py").write_text(MINE)
    shell.start_anew("worker", "calculator")
    eventually_sync(lambda: [each["name"] for each in shell.json("tools")] == ["mine"])


@pytest.mark.usefixtures("slow")
def test_the_owner_is_the_project_however_its_files_are_named(shell: Shell) -> None:
    """Renaming a file, or serving the package instead of a file of it, takes the tools over instead of being refused."""
    (shell.folder / "pyproject.toml").write_text(PROJECT)
    (shell.folder / "pkg").mkdir()
    (shell.folder / "pkg" / "__init__.py").write_text("")
    (shell.folder / "pkg" / "tools.py").write_text(MINE)
    (shell.folder / "renamed.py").write_text(MINE)
    for target in ("pkg/tools.py", "pkg", "renamed.py"):
        worker = shell.start("worker", target)
        eventually_sync(lambda: [(each["name"], each["owner"]) for each in shell.json("tools")] == [("mine", "my-app")])
        assert shell.run("call", "mine").stdout.strip() == "mine", target
        worker.terminate()
        assert worker.wait(15) == 0
        assert "refused" not in worker.communicate()[1]


def test_a_module_outside_of_any_project_is_its_own_owner(shell: Shell) -> None:
    """A lone file is owned by its name, and one in a package by the package."""
    (shell.folder / "lone.py").write_text(MINE)
    worker = shell.start("worker", "lone.py")
    eventually_sync(lambda: owners(shell, "lone") == {"lone"})
    worker.terminate()
    assert worker.wait(15) == 0


def test_an_entry_point_may_have_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The format allows them around the colon, and metadata has them as they were written."""
    points = [importlib.metadata.EntryPoint(name, value, "") for name, value in (("a", "m.n : x"), ("b", "m.n: x [e]"), ("c", "m.n"))]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: points)
    assert [each.target for each in loading.installed_services.__wrapped__()] == ["m.n:x", "m.n:x", "m.n"]


def test_installed_services_are_owned_by_their_distribution(shell: Shell) -> None:
    """The tools of toolbus itself belong to it, also in a project of another name."""
    (shell.folder / "pyproject.toml").write_text(PROJECT)
    shell.start("worker", "calculator")
    eventually_sync(lambda: [(each["name"], each["owner"]) for each in shell.json("tools")] == [("calculator", "toolbus")])
