"""Adapters without the packages that they adapt to."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from toolbus import adapters

# What each adapter imports that its extra installs; None where the application brings the package's objects itself.
PACKAGES: dict[str, tuple[str, str] | None] = {
    "anthropic": None,
    "home": None,
    "langchain": ("langchain_core", "langchain"),
    "openai": None,
    "openai_agents": ("agents", "openai-agents"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai"),
}


def test_every_adapter_is_listed_here() -> None:
    """A new adapter says what it needs here, and its extra exists."""
    assert PACKAGES.keys() == {each.name for each in pkgutil.iter_modules(adapters.__path__)}
    extras = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras.keys() >= {needed[1] for needed in PACKAGES.values() if needed}


@pytest.mark.parametrize("adapter", PACKAGES)
def test_a_missing_package_is_told_with_what_to_install(adapter: str) -> None:
    """The import fails with the command that mends it; where nothing is imported, it works."""
    needed = PACKAGES[adapter]
    missing = {"anthropic", "openai"} if needed is None else {needed[0]}
    program = f"import sys; sys.modules.update(dict.fromkeys({sorted(missing)})); import toolbus.adapters.{adapter}"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if needed is None:
        assert ran.returncode == 0, ran.stderr
    else:
        last = ran.stderr.strip().splitlines()[-1]
        assert last.startswith("ModuleNotFoundError: the adapter needs ")
        assert f"pip install 'toolbus[{needed[1]}]'" in last
