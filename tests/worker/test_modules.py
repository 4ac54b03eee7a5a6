"""Modules and packages: imported whole, what counts as theirs, and how a broken one is told."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract import Place
from tests.servers import eventually
from tests.tiers import some
from tests.worker.conftest import Start
from toolbus import ConfigurationError, ToolBus, ToolService, Worker, init_tools
from toolbus.bus.worker import function

pytestmark = pytest.mark.anyio

FUNCTION = 'from toolbus import tool\n\n@tool(effect="read")\ndef {name}() -> str:\n    """Be {name}."""\n    return "{name}"\n'
SERVICE = """
from toolbus import ToolService

class Base(ToolService):
    def invoke(self, user, config, arguments):
        return type(self).__name__

class {name}(Base):
    id = "{name}"
    effect = "read"
    tools = [{{"name": "{name}-tool", "description": "d"}}]
"""

Write = Callable[[dict[str, str]], str]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a package that can be imported in this test, and returns its name; what it registered is gone afterwards."""
    name = f"pack{abs(hash(tmp_path)) % 10**9}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(function, "_by_function", dict(function._by_function))
    monkeypatch.setattr(function, "_by_service", dict(function._by_service))

    def write(files: dict[str, str]) -> str:
        for place, text in files.items():
            path = tmp_path / name / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return name

    yield write
    for known in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        del sys.modules[known]


WHOLE = {
    "__init__.py": "",
    "first.py": FUNCTION.format(name="one"),
    "inner/__init__.py": FUNCTION.format(name="two"),
    "inner/deep.py": SERVICE.format(name="Deep"),
    "_private.py": FUNCTION.format(name="three"),
    "__main__.py": "raise RuntimeError('a program, not a part')\n",
    "nothing.py": "x = 1\n",
}


def names(found: list[object]) -> list[str]:
    """The names of what was found."""
    return sorted(getattr(each, "__name__", type(each).__name__) for each in found)


async def test_a_package_is_imported_and_served_whole(package: Write, namespace: str) -> None:
    """Tools in submodules and packages within a package are registered, returned and callable; its program is not run."""
    found = init_tools(package(WHOLE))
    assert names(found) == ["Deep", "one", "three", "two"]
    async with Place("memory://", namespace).serving(found) as bus:
        assert list(bus.tools) == ["Deep-tool", "one", "three", "two"]
        assert [(await bus.call(name)).output for name in bus.tools] == ["Deep", "one", "three", "two"]


def test_a_worker_takes_a_package(package: Write) -> None:
    """A package given to a worker is served whole too, whatever was imported before."""
    module = importlib.import_module(package(WHOLE))
    worker = Worker(module, url="memory://")
    name = module.__name__
    assert sorted(worker._served) == ["Deep", f"{name}._private", f"{name}.first", f"{name}.inner"]


def test_several_places_in_one_call(package: Write) -> None:
    """Modules and names of them may be mixed; what is named twice is returned once."""
    name = package(WHOLE)
    found = init_tools(f"{name}.first", importlib.import_module(f"{name}.inner.deep"), f"{name}.first")
    assert names(found) == ["Deep", "one"]


def test_an_instance_anywhere_in_a_package_stands_for_its_class(package: Write) -> None:
    """A service that the package has instantiated, and shows in two modules, is served once."""
    name = package(
        {"__init__.py": "from .deep import Deep\nmade = Deep()\n", "deep.py": SERVICE.format(name="Deep"), "use.py": "from . import made\n"}
    )
    (found,) = init_tools(name)
    assert isinstance(found, ToolService)
    assert sorted(Worker(found, url="memory://")._served) == ["Deep"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"broken.py": "x = 1\nx = y\n"}, [".broken can't be imported: NameError", "broken.py:2"]),
        ({"broken.py": "x = (\n"}, [".broken can't be imported: SyntaxError", "broken.py:1"]),
        (
            {"broken.py": "\nimport no_such_thing_at_all\n"},
            [".broken can't be imported: ModuleNotFoundError", "no_such_thing_at_all", "broken.py:2"],
        ),
        ({"inner/__init__.py": "\n\nraise ValueError('x')\n"}, [".inner can't be imported: ValueError: x", "inner/__init__.py:3"]),
        ({"broken.py": "import sys\nsys.exit(3)\n"}, [".broken can't be imported: SystemExit", "broken.py:2"]),
        ({}, ["defines no ToolService and no function"]),
    ],
)
def test_a_broken_module_is_named_with_its_line(package: Write, files: dict[str, str], words: list[str]) -> None:
    """A package of which a module can't be imported, or with no tool at all, is refused with the place."""
    name = package({"__init__.py": "", **files})
    with pytest.raises(ConfigurationError) as caught:
        init_tools(name)
    assert [word for word in words if word not in str(caught.value)] == []


def test_what_is_not_there_is_told() -> None:
    """No argument, and a name that is no module, are errors that say what to write."""
    with pytest.raises(ConfigurationError, match="needs the names"):
        init_tools()
    with pytest.raises(ConfigurationError, match="no module 'no_such_module'"):
        init_tools("no_such_module")


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("target", some(["mytools/"], ["mytools", "mytools/", "./mytools"]))
async def test_the_command_serves_a_package(start: Start, tmp_path: Path, server: str, namespace: str, target: str) -> None:
    """``toolbus worker mytools`` serves every module of the package, by its name or its folder."""
    for place, text in WHOLE.items():
        path = tmp_path / "mytools" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    command = ["-m", "toolbus", "--url", server, "--namespace", namespace, "worker", target]
    worker = start(*command)
    async with ToolBus(server, namespace=namespace) as bus:
        await eventually(lambda: list(bus.tools) == ["Deep-tool", "one", "three", "two"], timeout=20)
        assert (await bus.call("three")).output == "three"
    worker.terminate()
    assert worker.wait(15) == 0
