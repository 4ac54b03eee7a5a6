"""Forms of registering a tool, by every way of serving them: what a file registers is served, and what is left out is told."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

import pytest

from tests.cli.conftest import shell as shell  # noqa: PLC0414 - a fixture
from tests.cli.shell import Shell
from tests.contract import Place
from toolbus import ConfigurationError, ToolBus, ToolService, Worker, init_tools, tool
from toolbus.bus.local import ToolRegistry
from toolbus.bus.worker import function
from toolbus.testing import InvocationEnvironment

pytestmark = pytest.mark.anyio

LIBRARY = '''
import dataclasses
from toolbus import ToolService, tool

def named(name: str = "imported") -> str:
    """Tell the name."""
    return name

def nano(arguments):
    return "nano"

def make(name):
    def product() -> str:
        """Tell the name."""
        return name
    return product

def make_method(name):
    def product(self) -> str:
        """Tell the name."""
        return name
    return product

def register_here(name):
    tool(name, effect="read")(make(name))

class Plain:
    def bound(self) -> str:
        """Tell the name."""
        return "bound"

    @staticmethod
    def static() -> str:
        """Tell the name."""
        return "static"

    def __call__(self) -> str:
        """Tell the name."""
        return "callable"

@dataclasses.dataclass
class Unhashable:
    name: str

    def __call__(self) -> str:
        """Tell the name."""
        return self.name

class Base(ToolService):
    effect = "read"

    @tool
    def inherited(self) -> str:
        """Tell the name."""
        return "inherited"

@tool("own", effect="read")
def own() -> str:
    """Tell the name."""
    return "own"
'''

HEAD = """
import functools
from {library} import Base, Plain, Unhashable, make, make_method, named, nano, register_here
from toolbus import ToolService, tool
"""

# Each form, and the tools that it makes; each returns its own name.
FORMS = {
    "a function": ("@tool(effect='read')\ndef plain() -> str:\n    return 'plain'", ["plain"]),
    "an imported function": ("tool('imported', effect='read')(named)", ["imported"]),
    "a partial": ("tool('partial', effect='read')(functools.partial(named, 'partial'))", ["partial"]),
    "two partials of one function": ("for n in ('p1', 'p2'): tool(n, effect='read')(functools.partial(named, n))", ["p1", "p2"]),
    "a factory's products": ("for n in ('f1', 'f2'): tool(n, effect='read')(make(n))", ["f1", "f2"]),
    "a helper that registers": ("register_here('helped')", ["helped"]),
    "a lambda": ("tool('anonymous', effect='read')(lambda: 'anonymous')", ["anonymous"]),
    "an object's method": ("tool('bound', effect='read')(Plain().bound)", ["bound"]),
    "a class's static method": ("tool('static', effect='read')(Plain.static)", ["static"]),
    "an object": ("tool('callable', effect='read')(Plain())", ["callable"]),
    "unhashable objects": ("for n in ('u1', 'u2'): tool(n, effect='read')(Unhashable(n))", ["u1", "u2"]),
    "one function as two": (
        "def two():\n    from toolbus import invocation\n    return invocation().tool\nfor n in ('t1', 't2'): tool(n, effect='read')(two)",
        ["t1", "t2"],
    ),
    "register()": (
        "from toolbus.compat.nanoclaw import register\nregister('nano', nano, 'Tell the name.', {'type': 'object', 'properties': {}})",
        ["nano"],
    ),
    "methods of a factory": (
        "class Kit(ToolService):\n    effect = 'read'\nfor n in ('m1', 'm2'): setattr(Kit, n, tool(n)(make_method(n)))",
        ["m1", "m2"],
    ),
    "methods of a factory in a body": ("class Body(ToolService):\n    effect = 'read'\n    b1 = tool('b1')(make_method('b1'))", ["b1"]),
    "methods of a factory under other names": (
        "class Other(ToolService):\n    effect = 'read'\nfor n in ('o1', 'o2'): setattr(Other, f'_{n}', tool(n)(make_method(n)))",
        ["o1", "o2"],
    ),
    "one function as two methods": (
        (
            "class Both(ToolService):\n    effect = 'read'\n    @staticmethod\n    def told():\n        from toolbus import invocation\n"
            "        return invocation().tool\n    one, other = tool('w1')(told), tool('w2')(told)"
        ),
        ["w1", "w2"],
    ),
    "one function as methods of two services": (
        (
            "def which(self):\n    from toolbus import invocation\n    return invocation().tool\n"
            "class S1(ToolService):\n    effect = 'read'\nclass S2(ToolService):\n    effect = 'read'\n"
            "for cls, n in ((S1, 's1'), (S2, 's2')): setattr(cls, n, tool(n)(which))"
        ),
        ["s1", "s2"],
    ),
    "a method by another name, too": (
        "class Alias(ToolService):\n    effect = 'read'\n    @tool\n    def aliased(self): return 'aliased'\n    again = aliased",
        ["aliased"],
    ),
    "a method made a tool later": (
        "class Later(ToolService):\n    effect = 'read'\n    def late(self): return 'late'\nLater.late = tool(Later.late)",
        ["late"],
    ),
    "a static method from a factory": (
        "class Fixed(ToolService):\n    effect = 'read'\nsetattr(Fixed, 'fixed', staticmethod(tool('fixed')(make('fixed'))))",
        ["fixed"],
    ),
    "an instance of a class of a function": (
        (
            "def built():\n    class Built(ToolService):\n        effect = 'read'\n    Built.built = tool('built')(make_method('built'))\n"
            "    return Built()\nmade = built()"
        ),
        ["built"],
    ),
    "an imported base": ("class Sub(Base):\n    id = 'sub'", ["inherited"]),
}
TOOLS = sorted(name for _, names in FORMS.values() for name in names)

Write = Callable[..., str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module and its library, which can be imported in this test, and returns its name."""
    name = f"forms{abs(hash(tmp_path)) % 10**9}"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(function, "_by_function", dict(function._by_function))
    monkeypatch.setattr(function, "_by_service", dict(function._by_service))

    def write(*forms: str, head: str = HEAD) -> str:
        (tmp_path / f"{name}_library.py").write_text(LIBRARY)
        (tmp_path / f"{name}.py").write_text("\n".join([head.format(library=f"{name}_library"), *forms, ""]))
        importlib.invalidate_caches()
        return name

    yield write
    for each in (name, f"{name}_library"):
        sys.modules.pop(each, None)


@pytest.fixture
def every(module: Write) -> ModuleType:
    """A module with every form."""
    return importlib.import_module(module(*(text for text, _ in FORMS.values())))


@pytest.mark.parametrize("form", FORMS)
def test_each_form_alone_is_served(module: Write, form: str) -> None:
    """A module that registers in one form only serves that, and nothing of the module that it imports from."""
    text, names = FORMS[form]
    worker = Worker(importlib.import_module(module(text)), url="memory://")
    assert sorted(each.name for served in worker._served.values() for each in served.publication.tools) == names


def as_module(module: ModuleType) -> object:
    return module


def as_list(module: ModuleType) -> object:
    return init_tools(module.__name__)


@pytest.mark.parametrize("given", [as_module, as_list])
async def test_a_worker_serves_every_form(every: ModuleType, namespace: str, given: Callable[[ModuleType], object]) -> None:
    """A worker of the module, or of what ``init_tools`` finds in it."""
    async with Place("memory://", namespace).serving(given(every)) as bus:
        assert list(bus.tools) == TOOLS
        assert [(await bus.call(name)).output for name in TOOLS] == TOOLS


@pytest.mark.usefixtures("slow")
async def test_the_testing_kit_and_a_registry_serve_every_form(every: ModuleType) -> None:
    """Handlers without a bus, and tools of one process."""
    async with InvocationEnvironment() as environment:
        found: dict[str, object] = {}
        for target in init_tools(every.__name__):
            cls = target if isinstance(target, type) else type(target)
            names = function.methods_of(cls) if issubclass(cls, ToolService) else function.definitions_of(target)[-1:]
            found |= {made.name: (await environment.call(target, tool=made.name)).output for made in names}
        assert found == {name: name for name in TOOLS}
    async with ToolRegistry(every) as registry:
        assert [each.name for each in registry.list_tools()] == TOOLS
        assert [(await registry.execute(name)).output for name in TOOLS] == TOOLS


WAYS = {
    "a file": ("worker", "kit.py"),
    "a file elsewhere": ("worker", "./other/kit.py"),
    "a module": ("worker", "kit"),
    "processes": ("worker", "kit.py", "--processes", "2"),
    "dev": ("dev", "--http-port", "0", "kit.py"),
}


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("way", WAYS)
async def test_the_command_line_serves_every_form(shell: Shell, server: str, namespace: str, way: str) -> None:
    """A file, a module, several processes and ``toolbus dev`` all serve the same tools."""
    folder = shell.folder / "other" if "elsewhere" in way else shell.folder
    folder.mkdir(exist_ok=True)
    (folder / "library.py").write_text(LIBRARY)
    (folder / "kit.py").write_text("\n".join([HEAD.format(library="library"), *(text for text, _ in FORMS.values())]))
    shell.start(*WAYS[way])
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(ToolBus(server, namespace=namespace))
        for name in TOOLS:
            await bus.wait_for_tool(name, timeout=30)
            assert (await bus.call(name)).output == name


def said_at_start(shell: Shell) -> dict[str, object]:
    """Start a worker of kit.py, and return the line that says what it serves."""
    worker = shell.start("worker", "kit.py")
    assert worker.stderr is not None
    for line in worker.stderr:
        if '"worker.serving"' in line:
            found = json.loads(line)
            return {name: found[name] for name in ("services", "tools", "left_out", "further", "further_left_out") if name in found}
    pytest.fail("the worker has ended without a word")


def test_a_worker_says_what_it_serves_and_leaves_out(shell: Shell) -> None:
    """One line as it starts names the tools, and for each that is not served the reason."""
    (shell.folder / "library.py").write_text(LIBRARY)
    text = """
from library import Base, own
from toolbus import ToolService, tool

class Store: ...

@tool(effect="read")
def served() -> str:
    return ""

@tool(effect="read")
def poor(store: Store) -> str:
    return ""

class Plain:
    @tool
    def lost(self) -> str:
        return ""

class Over(ToolService):
    effect = "read"
    @tool
    def first(self) -> str:
        return ""
    @tool
    def second(self) -> str:
        return ""

class Under(Over):
    id = "under"
    def second(self) -> str:
        return ""
"""
    (shell.folder / "kit.py").write_text(text)
    said = said_at_start(shell)
    assert (said["services"], said["tools"]) == (["kit", "under"], ["first", "served"])
    reasons = {
        "Base": "library",
        "lost": "Plain.lost is no ToolService",
        "own": "a tool of library",
        "poor": "Store",
        "second": "without @tool",
    }
    left_out = said["left_out"]
    assert isinstance(left_out, dict)
    assert {name: reasons[name] in left_out[name] for name in left_out} == dict.fromkeys(reasons, True)


def test_what_a_worker_says_is_bounded(shell: Shell) -> None:
    """Of many tools, and of many that are left out, it names some and counts the others."""
    text = "from toolbus import tool\nclass Store: ...\ndef poor(store: Store): ...\ndef good(): ...\n"
    text += "for n in range(300): tool(f'g{n}', effect='read')(good); tool(f'p{n}', effect='read')(poor)\n"
    (shell.folder / "kit.py").write_text(text)
    said = said_at_start(shell)
    assert (len(str(said)) < 4_000, said["further"], said["further_left_out"]) == (True, 280, 280)


@pytest.mark.parametrize(
    "text",
    [
        "for n in range(2): tool('same', effect='read')(make('x'))",
        "for n in range(2): tool('same', effect='read')(functools.partial(named, str(n)))",
        "tool('same', effect='read')(named)\ntool('same', effect='read')(nano)",
        "@tool\ndef same(): ...\n@tool\ndef same(): ...",
    ],
)
def test_what_one_file_registers_twice_is_refused(module: Write, text: str) -> None:
    """Of two tools of one name the first would be lost in silence."""
    with pytest.raises(ConfigurationError, match=r"the tool 'same' of service .* is already .* replace=True"):
        init_tools(module(text))


def test_two_services_of_a_factory_have_tools_of_one_name(module: Write) -> None:
    """A class's attribute is its method, and clashes with no other class's."""
    text = "class A(ToolService): ...\nclass B(ToolService): ...\nfor cls in (A, B): cls.run = tool('run')(make_method(cls.__name__))"
    found = init_tools(module(text))
    assert [sorted(made.name for made in function.methods_of(cls)) for cls in found if isinstance(cls, type)] == [["run"], ["run"]]


def test_a_service_beside_functions_of_its_module_keeps_its_methods() -> None:
    """Also when only instances and functions are given, of a class that no module has."""

    class Kit(ToolService):
        effect = "read"

    def method(self: object) -> str:
        return ""

    def beside() -> str:
        return ""

    Kit.method = tool("method_of_kit")(method)  # type: ignore[attr-defined]
    tool("beside_kit", effect="read")(beside)
    worker = Worker([Kit(), beside], url="memory://")
    assert [each.name for each in worker._served["Kit"].publication.tools] == ["method_of_kit"]
    assert "method_of_kit" not in {each.name for each in worker._served[__name__].publication.tools}
