"""The environment variables of a workspace's programs."""

from __future__ import annotations

import functools
import os
import shutil
import sys
from pathlib import Path

from toolbus.backends.confinement import base_python
from toolbus.results import ToolError

# Where packages come from, and how they are reached; only uv gets these, and a program that may reach the network the first ones.
_NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PACKAGES = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NATIVE_TLS", "UV_INDEX_STRATEGY")


def environment_of(folder: Path, where: str, *, network: bool = False) -> dict[str, str]:
    """Return the environment of a program: nothing of this process's own, so no secret.

    Args:
        folder: of the workspace.
        where: where the program begins; a uv project's environment there is active.
        network: whether it is uv, and may reach the network.
    """
    paths = [str(Path(find_uv()).parent), str(Path(sys.base_prefix) / "bin"), "/usr/local/bin", "/usr/bin", "/bin"]
    environment = {
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "TMPDIR": "/tmp",  # noqa: S108 - it is the workspace's own
        "PYTHONUNBUFFERED": "1",
        "UV_CACHE_DIR": str(folder / "home" / ".cache" / "uv"),
        # A file of the shared cache must not be the same as one that the task's programs can change.
        "UV_LINK_MODE": "copy",
        "UV_PYTHON": base_python(),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
    }
    if not network:
        environment["UV_OFFLINE"] = "1"
    virtual = Path(where) / ".venv"
    paths.insert(0, str(virtual / "bin"))
    environment |= {"PATH": ":".join(paths), "VIRTUAL_ENV": str(virtual)}
    if network:
        names = (*_NETWORK, *(name.lower() for name in _NETWORK), *_PACKAGES)
        environment |= {name: os.environ[name] for name in names if name in os.environ}
    return environment


@functools.cache
def find_uv() -> str:
    """Return uv's program.

    Raises:
        ToolError: it is not installed.
    """
    try:
        import uv  # noqa: PLC0415 - it is an extra

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ToolError("uv is not installed at the coding agent: pip install 'toolbus[platform]'", type="unavailable", code="no_uv")
    return found
