"""The toolkit imports only the packages that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("package", "module", "extra"), [("networkx", "toolbus.toolkit", "toolkit"), ("matplotlib", "toolbus.toolkit.draw", "draw")]
)
def test_a_missing_package_is_told_with_what_to_install(package: str, module: str, extra: str) -> None:
    """The error of the import names the package and the extra that brings it."""
    done = run(f"import sys; sys.modules[{package!r}] = None; import {module}")
    assert f"{package}: pip install 'toolbus[{extra}]'" in done.stderr.splitlines()[-1]


def test_toolbus_and_the_graph_load_nothing_they_do_not_need() -> None:
    """Importing toolbus loads no networkx, and building, asking and showing a page of a graph loads no matplotlib."""
    done = run(
        "import sys, toolbus; assert 'networkx' not in sys.modules\n"
        "from toolbus.toolkit import Action, Tool, ToolkitWrapper\n"
        "from toolbus.toolkit.picture import page\n"
        "wrapper = ToolkitWrapper().chain(Action('a', 'A'), Tool('t', 'T'))\n"
        "assert len(wrapper.service.recommend_tools_actions(['a'])[0]) == 1 and page(wrapper.toolkit)\n"
        "assert 'matplotlib' not in sys.modules"
    )
    assert done.returncode == 0, done.stderr
