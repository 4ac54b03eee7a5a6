"""Runs the command line as users do: as processes, in a folder of their own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.servers import eventually


def eventually_sync(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, for a bounded time."""
    asyncio.run(eventually(condition, timeout=20, interval=0.1))


class Shell:
    """Runs toolbus commands in one folder, on one server and namespace."""

    def __init__(self, folder: Path, url: str, namespace: str) -> None:
        self.folder = folder
        self.environment = {**os.environ, "TOOLBUS_URL": url, "TOOLBUS_NAMESPACE": namespace, "TOOLBUS_LOG_FORMAT": "json"}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that runs on."""
        process = subprocess.Popen(
            [sys.executable, "-m", "toolbus", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *words: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "toolbus", *words],
            cwd=self.folder,
            env=self.environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def json(self, *words: str) -> Any:
        """Return the JSON that a command prints, which must succeed."""
        done = self.run(*words, "--output", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def close(self) -> None:
        """Stop what still runs."""
        for process in self.started:
            if process.poll() is None:
                process.terminate()
            try:
                process.communicate(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
