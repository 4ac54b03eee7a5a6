"""Runs the command line as users do: as processes, in a folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forking import ForkServer, Program

# Steps through a table of all commands: `make test` tries some of them, and `make test-slow` all.
STEPS = [pytest.param(8, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]


class Shell:
    """Runs toolbus commands in one folder, on one server and namespace."""

    def __init__(self, forks: ForkServer, folder: Path, url: str, namespace: str) -> None:
        self._forks = forks
        self.folder = folder
        # Tests write a tool file and change it within a second: a compiled one could be taken for the new.
        self.environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "1",
            "TOOLBUS_URL": url,
            "TOOLBUS_NAMESPACE": namespace,
            "TOOLBUS_LOG_FORMAT": "json",
        }
        self.started: list[Program | subprocess.Popen[str]] = []

    def start(self, *words: str) -> Program:
        """Start a command that runs on."""
        pipe = subprocess.PIPE
        program = self._forks.start(
            "-m", "toolbus", *words, folder=self.folder, environment=self.environment, stdout=pipe, stderr=pipe, session=True
        )
        self.started.append(program)
        return program

    def start_anew(self, *words: str) -> subprocess.Popen[str]:
        """Start a command that runs on in a new interpreter."""
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
        return self._forks.run("-m", "toolbus", *words, folder=self.folder, environment=self.environment, given=given)

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
