"""Targets of the command line: the file that was asked for is the one that is served, or a line says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import shell as shell  # noqa: PLC0414 - a fixture
from tests.cli.shell import Shell

TOOL = '''
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from toolbus import tool


def place() -> str:
    return os.path.realpath(__file__)


@tool(effect="read")
def where() -> str:
    """Tell the file."""
    return place()


@tool(effect="read", isolation="process")
def where_isolated() -> str:
    """Tell the file that a child process has."""
    return place()


@tool(effect="read")
def where_pickled() -> str:
    """Tell the file that a process finds by the name of a function."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(place).result()
'''
RELATIVE = "from . import __name__ as package\nfrom .helper import HELPS\n" + TOOL
# Each case has a fork of an interpreter to itself.
LOAD = """
import json, os, sys
from toolbus.bus.values.results import ConfigurationError
from toolbus.bus.worker.loading import folders, load
for folder, targets in json.load(sys.stdin):
    if not os.fork():
        break
    assert os.wait()[1] == 0, folder
    print(end=chr(0), flush=True)
else:
    sys.exit()
os.chdir(folder)
sys.path.insert(sys.path[0] == "", folder + "/site-packages")
for target in targets:
    try:
        loaded = load(target)
        folders((target,))
        print(loaded.__name__, getattr(loaded, "__file__", None) or list(loaded.__path__), getattr(loaded, "BESIDE", ""))
    except ConfigurationError as error:
        print("refused:", error)
sys.stdout.flush()
os._exit(0)
"""
BESIDE = "from beside import BESIDE\n"

# The files of a folder, what is asked for there, and what each becomes: name and file, or words of the line that says why not.
CASES = {
    "a namesake here": (["one.py", "other/one.py"], ["other/one.py"], ["one other/one.py"]),
    "a namesake elsewhere": (["one.py", "other/one.py"], ["./one.py"], ["one one.py"]),
    "an absolute path": (["one.py", "other/one.py"], ["{here}/other/one.py"], ["one other/one.py"]),
    "a namesake that is a package": (["one.py", "one/__init__.py"], ["one.py"], ["one one.py"]),
    "a package that is a namesake": (["one.py", "other/one/__init__.py"], ["other/one"], ["one other/one/__init__.py"]),
    "a folder of modules": (["workers/a.py", "other/workers/b.py"], ["other/workers"], ["workers ['other/workers']"]),
    "a folder beside a package": (["workers/__init__.py", "other/workers/b.py"], ["other/workers/"], ["workers ['other/workers']"]),
    "a file of a folder": (["workers/__init__.py", "other/workers/b.py"], ["other/workers/b.py"], ["b other/workers/b.py"]),
    "tests as a package": (["tests/__init__.py", "tests/one.py"], ["tests/one.py"], ["tests.one tests/one.py"]),
    "a module by name": (["workers/one.py", "one.py"], ["workers.one"], ["workers.one workers/one.py"]),
    "a name after a namesake's folder": (["a/two.py", "a/one.py", "one.py"], ["a/two.py", "one"], ["two a/two.py", "one one.py"]),
    "a deep module": (["pkg/__init__.py", "pkg/sub/__init__.py", "pkg/sub/one.py"], ["pkg/sub/one.py"], ["pkg.sub.one pkg/sub/one.py"]),
    "a module beside its package": (["pkg/__init__.py", "pkg/one.py", "pkg/one/__init__.py"], ["pkg/one.py"], ["pkg.one pkg/one.py"]),
    "a package of a namesake": (["pkg/__init__.py", "x/pkg/__init__.py", "x/pkg/one.py"], ["x/pkg/one.py"], ["pkg.one x/pkg/one.py"]),
    "two namesakes": (["a/one.py", "b/one.py"], ["a/one.py", "b/one.py"], ["one a/one.py", "b/one.py can't be served"]),
    "one file twice": (["a/one.py"], ["a/one.py", "./a/../a/one.py"], ["one a/one.py", "one a/one.py"]),
    "a loaded module of Python": (["json.py"], ["json.py"], ["json.py can't be served: another module named 'json'"]),
    "a module of Python": (["calendar.py"], ["calendar.py"], ["calendar.py can't be served"]),
    "what toolbus needs": (["redis.py"], ["redis.py"], ["redis.py can't be served"]),
    "what is installed": (["site-packages/tools.py", "tools.py"], ["tools.py"], ["tools tools.py"]),
    "what is installed and a package": (["site-packages/p/__init__.py", "p/__init__.py", "p/one.py"], ["p/one.py"], ["p.one p/one.py"]),
    "a dash": (["my-one.py"], ["my-one.py"], ["my-one.py can't be imported: rename it"]),
    "a module with a dash in a package": (["my-pkg/__init__.py", "my-pkg/one.py"], ["my-pkg/one.py"], ["one my-pkg/one.py"]),
    "a link": (["real/v2.py", "one.py -> real/v2.py"], ["one.py"], ["one one.py"]),
    "a link to a folder": (["real/v2/one.py", "now -> real/v2"], ["now/one.py"], ["one now/one.py"]),
    "a link's neighbours": (["r/v2.py <beside>", "r/beside.py", "a/one.py -> r/v2.py"], ["a/one.py"], ["one a/one.py r/beside.py"]),
    "its own neighbours": (["a/one.py <beside>", "a/beside.py", "beside.py"], ["a/one.py"], ["one a/one.py a/beside.py"]),
    "a neighbour within a package": (["p/__init__.py", "p/one.py <beside>", "p/beside.py"], ["p/one.py"], ["p.one p/one.py p/beside.py"]),
    "what lies here": (["a/one.py <beside>", "beside.py"], ["a/one.py"], ["one a/one.py beside.py"]),
}  # fmt: skip


def cases(safe: str) -> list[str]:
    """The cases, without or with the current folder on Python's path."""
    # A file that hides a module of Python from Python itself is told by Python, and long before.
    return [case for case in CASES if safe or "of Python" not in case]


def make(folder: Path, files: list[str]) -> None:
    """Make the files of a case."""
    folder.mkdir()
    for each in files:
        file, _, link = each.partition(" -> ")
        path = folder / file.removesuffix(" <beside>")
        path.parent.mkdir(parents=True, exist_ok=True)
        if link:
            path.symlink_to(folder / link)
        elif path.name == "beside.py":
            path.write_text("BESIDE = __file__\n")
        else:
            path.write_text(BESIDE if file.endswith("<beside>") else "")


@pytest.fixture(scope="module", params=["1", ""], ids=["safe", "unsafe"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The modules that each case loads, and what it is told, without or with the current folder on Python's path."""
    names = cases(request.param)
    folders = [tmp_path_factory.mktemp("targets") / f"{number}" for number in range(len(names))]
    for folder, name in zip(folders, names, strict=True):
        make(folder, CASES[name][0])
    given = [[str(folder), [each.format(here=folder) for each in CASES[name][1]]] for folder, name in zip(folders, names, strict=True)]
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        cwd=tmp_path_factory.mktemp("nothing"),
        env={**os.environ, "PYTHONSAFEPATH": request.param},
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.split(chr(0))[:-1]
    return {name: text.replace(f"{folder}/", "").splitlines() for name, folder, text in zip(names, folders, said, strict=True)}


@pytest.mark.few(15)
@pytest.mark.parametrize("case", CASES)
def test_what_was_asked_for_is_imported(loaded: dict[str, list[str]], case: str) -> None:
    """A file or folder is imported as it was named, or refused in one line, never another one of its name."""
    if case not in loaded:
        assert "of Python" in case
        return
    lines, expected = loaded[case], CASES[case][2]
    assert len(lines) == len(expected), lines
    for line, words in zip(lines, expected, strict=True):
        assert words == line.rstrip() or (line.startswith("refused: ") and words in line), line


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("target", ["other/one.py", "{here}/other/one.py"])
@pytest.mark.parametrize(
    "words", [("worker",), ("worker", "--processes", "2"), ("worker", "--reload"), ("dev", "--http-port", "0")], ids=" ".join
)
def test_every_command_serves_the_file_in_every_process(shell: Shell, words: tuple[str, ...], target: str) -> None:
    """A namesake in the current folder is not served: by a worker, by one of several, in child processes, nor in those that unpickle."""
    (shell.folder / "other").mkdir()
    for file in ("one.py", "other/one.py"):
        (shell.folder / file).write_text(TOOL)
    # Installed commands, unlike modules that are run, do not have the current folder on their path.
    shell.environment["PYTHONSAFEPATH"] = "1"
    shell.start(*words, target.format(here=shell.folder))
    expected = str((shell.folder / "other/one.py").resolve())
    assert {shell.run("call", tool, "--wait", "20").stdout for tool in ("where", "where_isolated", "where_pickled")} == {f"{expected}\n"}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("around", ["pkg/sub", "workers", "tests"])
def test_a_module_of_a_package_is_served_in_every_process(shell: Shell, around: str) -> None:
    """By its path, with its relative imports, also where a child imports it again."""
    folder = shell.folder / around
    folder.mkdir(parents=True)
    for each in (folder, *folder.parents):
        if each != shell.folder and each.is_relative_to(shell.folder):
            (each / "__init__.py").touch()
    (folder / "helper.py").write_text("HELPS = True\n")
    (folder / "one.py").write_text(RELATIVE)
    shell.environment["PYTHONSAFEPATH"] = "1"
    shell.start("worker", f"{around}/one.py")
    expected = str((folder / "one.py").resolve())
    assert {shell.run("call", tool, "--wait", "20").stdout for tool in ("where", "where_isolated", "where_pickled")} == {f"{expected}\n"}


def test_middleware_of_a_path_is_that_file(shell: Shell) -> None:
    """``--middleware`` finds its file as a target does."""
    for name in ("here", "there"):
        folder = shell.folder if name == "here" else shell.folder / "other"
        folder.mkdir(exist_ok=True)
        (folder / "around.py").write_text(
            f"from toolbus import ToolError\nasync def refuse(call, next):\n    raise ToolError('refused {name}')\n"
        )
    (shell.folder / "one.py").write_text(TOOL)
    shell.start("worker", "one.py", "--middleware", "other/around.py:refuse")
    assert "refused there" in shell.run("call", "where", "--wait", "20").stderr


@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=["one process", "two"])
def test_a_namesake_is_refused_in_one_line(shell: Shell, words: tuple[str, ...]) -> None:
    """A file that can't have its name ends the command with exit code 1 and without a traceback."""
    (shell.folder / "redis.py").write_text(TOOL)
    shell.environment["PYTHONSAFEPATH"] = "1"
    done = shell.run("worker", "redis.py", *words)
    assert (done.returncode, done.stderr.count("can't be served"), "Traceback" in done.stderr) == (1, 1, False), done.stderr
