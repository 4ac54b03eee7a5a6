"""A small image for tests where a daemon answers: busybox, with a page that answers a call with its own body."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from toolbus.platform.records import ToolSource

_COMMANDS = ("sh", "sleep", "cat", "echo", "httpd", "ls", "env", "id", "dd", "seq", "grep", "kill", "touch", "wget", "mount", "nc")
_ECHO = b"#!/bin/sh\nprintf 'Content-Type: application/json\\r\\n\\r\\n'\ncat\n"

IMAGE = f"toolbus-test-busybox:{sha256(repr((_COMMANDS, _ECHO)).encode()).hexdigest()[:12]}"
"""Its name; another content has another name, so that it is made once."""


def image() -> str:
    """Return the image's name; skips the test where no daemon answers."""
    reason = _missing()
    if reason:
        pytest.skip(reason)
    return IMAGE


def source(**changes: object) -> ToolSource:
    """Return a source whose program answers a call with its arguments."""
    fields: dict[str, object] = {
        "image": image(),
        "network": "host",
        "command": ("/bin/httpd", "-f", "-vv", "-p", "127.0.0.1:{port}", "-h", "/www"),
        "endpoint_path": "/cgi-bin/echo",
    }
    return ToolSource(type="docker", **fields | changes)


def docker(*words: str) -> str:
    """Run a command of docker, and return what it says."""
    return subprocess.run(["docker", *words], capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@cache
def _missing() -> str:
    """Return why no container can run here; empty when one can."""
    busybox = shutil.which("busybox")
    if shutil.which("docker") is None or busybox is None:
        return "docker or busybox is not installed (Debian: docker.io, busybox-static), so no container is tried"
    if subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False).returncode:
        return "no docker daemon answers on this machine, so no container is tried"
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, timeout=60, check=False).returncode == 0:
        return ""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in ("tmp", "etc"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
            tar.addfile(entry)
        for name, data in (("bin/busybox", Path(busybox).read_bytes()), ("www/cgi-bin/echo", _ECHO)):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
        for name in _COMMANDS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    done = subprocess.run(["docker", "import", "-", IMAGE], input=made.getvalue(), capture_output=True, timeout=120, check=False)
    return done.stderr.decode() if done.returncode else ""
