"""A container with this machine's Python, for tests where a daemon answers."""

from __future__ import annotations

import importlib.util
import io
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from pathlib import Path

import pytest

from toolbus.platform.records import ToolSource

_IMAGE = "toolbus-test-empty"


def source(folder: Path) -> ToolSource:
    """Return a container that runs the program of a folder; skips the test where no daemon answers."""
    reason = _missing()
    if reason:
        pytest.skip(reason)
    python = Path(sys.base_prefix)
    mounts = [each for each in ("/usr", "/lib", "/lib64", "/bin") if Path(each).exists()]
    return ToolSource(
        type="docker",
        image=_IMAGE,
        mounts=tuple(f"{each}:{each}:ro" for each in dict.fromkeys([*mounts, str(python), str(folder)])),
        network="host",
        command=(str(python / "bin/python3"), f"{folder}/main.py", "--port", "{port}"),
        env={"LD_LIBRARY_PATH": str(python / "lib")},
    )


@cache
def _missing() -> str:
    """Return why no container can run here; empty when one can."""
    if importlib.util.find_spec("toolbus.platform.backends.docker") is None:
        return "containers are not built in"
    if shutil.which("docker") is None:
        return "no docker on this machine, so no container is tried"
    if subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False).returncode:
        return "no docker daemon answers on this machine, so no container is tried"
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as tar:
        for name in ("tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777
            tar.addfile(entry)
    made = subprocess.run(["docker", "import", "-", _IMAGE], input=empty.getvalue(), capture_output=True, timeout=120, check=False)
    return made.stderr.decode() if made.returncode else ""
