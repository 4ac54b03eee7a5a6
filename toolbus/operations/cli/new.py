"""``new``: write a tool file and its test, alone or in a project."""

from __future__ import annotations

import importlib.util
import keyword
import sys
from pathlib import Path

import click

from toolbus.operations.cli.common import fail
from toolbus.operations.cli.output import say

_TOOL = '''"""Tools of {name}. Serve them with: toolbus worker {name}.py"""

from toolbus import tool


@tool(effect="read")
async def {name}(text: str, times: int = 1):
    """Repeat a text, a line at a time.

    Args:
        text: what to repeat
        times: how often
    """
    for number in range(times):
        yield f"{{number + 1}}: {{text}}\\n"
'''

_TEST = '''"""The tools of {name}, called in process: no server is needed."""

import asyncio

import {name}
from toolbus import ToolBus, Worker


def test_{name}_repeats_its_text():
    """The text comes back as often as was asked for."""

    async def main():
        async with Worker({name}, url="memory://"), ToolBus("memory://") as bus:
            return await bus.call("{name}", {{"text": "hello", "times": 2}})

    result = asyncio.run(main())
    assert result.success
    assert result.output == "1: hello\\n2: hello\\n"
'''


_PROJECT = """[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["toolbus"]

[dependency-groups]
dev = ["pytest"]

[tool.pytest.ini_options]
pythonpath = ["workers"]
testpaths = ["tests"]
"""


@click.command("new")
@click.argument("name")
@click.option("--project", is_flag=True, help="Write a folder NAME with pyproject.toml, workers/ and tests/.")
def new_command(name: str, *, project: bool) -> None:
    """Write NAME.py, a tool to start from, and test_NAME.py, its test.

    \b
    Examples:
      toolbus new weather && pytest test_weather.py && toolbus worker weather.py
      toolbus new weather --project && cd weather && pytest && toolbus worker workers/weather.py
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise click.UsageError(f"{name!r} can't be the name of a Python module: use letters, digits and _")
    if name in sys.stdlib_module_names:
        fail(f"{name} is a module of Python itself, which {name}.py would hide; choose another name")
    files = {Path(f"{name}.py"): _TOOL, Path(f"test_{name}.py"): _TEST}
    if project:
        folder = Path(name)
        files = {
            folder / "pyproject.toml": _PROJECT,
            folder / "workers" / f"{name}.py": _TOOL.replace("worker {name}.py", "worker workers/{name}.py"),
            folder / "tests" / f"test_{name}.py": _TEST,
        }
    for path in (Path(name),) if project else files:
        if path.exists():
            fail(f"{path} is there already, and is left as it is")
    if importlib.util.find_spec(name) is not None:
        fail(f"{name} is an installed package, which {name}.py would hide; choose another name")
    for path, template in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.format(name=name), "utf-8")
        say(f"wrote {path}")
    say(
        f"next: cd {name} && pytest && toolbus worker workers/{name}.py"
        if project
        else f"next: pytest test_{name}.py && toolbus worker {name}.py"
    )
