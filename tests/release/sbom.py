"""Software bills of materials: the packages of each pinned set, as CycloneDX."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.release.project import PINNED, ROOT, variable, version

_TOOLS = Path(sys.executable).parent


def write(folder: Path) -> list[Path]:
    """Write the bill of each set into a folder, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(kind, folder / f"toolbus-{version()}{kind and f'-{kind}'}.cdx.json") for kind in PINNED]


def bill(kind: str) -> dict[str, Any]:
    """Return the bill of a set."""
    with tempfile.TemporaryDirectory() as folder:
        content: dict[str, Any] = json.loads(_write(kind, Path(folder) / "bill.json").read_text("utf-8"))
        return content


def _write(kind: str, file: Path) -> Path:
    """Install a set into an environment of its own, and let the tool of the CycloneDX project list it."""
    with tempfile.TemporaryDirectory() as folder:
        _run(_TOOLS / "uv", "venv", "--quiet", "--python", sys.executable, folder)
        python = Path(folder) / "bin" / "python"
        pinned = ROOT / "deploy" / PINNED[kind]
        _run(_TOOLS / "uv", "pip", "install", "--quiet", "--python", python, "--no-deps", "--require-hashes", "-r", pinned)
        about = ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "application" if kind == "image" else "library"]
        # Checking the bill of everything by its schema takes twelve seconds; a test checks the form with a smaller one.
        _run(_TOOLS / "cyclonedx-py", "environment", "--output-reproducible", "--no-validate", *about, "-o", file, python)
    return file


def _run(*words: str | Path) -> None:
    environment = {**os.environ, "SOURCE_DATE_EPOCH": variable("EPOCH")}
    subprocess.run(list(map(str, words)), env=environment, check=True, capture_output=True, text=True, timeout=600)
