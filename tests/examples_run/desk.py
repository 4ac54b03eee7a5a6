"""A copy of ``examples/`` with a server and the tools beside it, in which commands are run as a reader runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.examples_run.pages import EXAMPLES
from tests.servers import eventually_sync
from toolbus.bus.broker.transport.embedded import free_port

# A busy machine takes its time to import a framework.
PATIENCE = 100.0


class Desk:
    """The folder and the environment of a reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "examples"
        shutil.copytree(EXAMPLES, self.folder, ignore=shutil.ignore_patterns("__pycache__", "scripts"))
        self.url = f"redis://127.0.0.1:{free_port()}"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        mine = {"PATH": path, "HOME": str(folder), "TOOLBUS_URL": self.url, "PYTHONUNBUFFERED": "1", "NO_PROXY": "127.0.0.1,localhost"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLBUS_", "PYTEST_", "OPENAI_", "ANTHROPIC_"))}
        self.environment = kept | mine

    def run(self, command: str) -> str:
        """Run a command, which must succeed, and return all that it prints."""
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(["sh", "-c", command], cwd=self.folder, env=self.environment, timeout=PATIENCE, check=False, **streams)
        assert done.returncode == 0, done.stdout
        return done.stdout

    @contextmanager
    def running(self, command: str, ready: str) -> Iterator[Running]:
        """Run a command beside this, from when it has printed a text; stop it with Ctrl-C."""
        file = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with file.open("w") as log:
            words = ["sh", "-c", f"exec {command}"]
            process = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        made = Running(process, file)
        try:
            eventually_sync(lambda: ready in made.printed or process.poll() is not None, timeout=PATIENCE)
            assert process.poll() is None, made.printed
            yield made
            made.stop()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


class Running:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[bytes], file: Path) -> None:
        self._process = process
        self._file = file
        self._told = False

    @property
    def printed(self) -> str:
        """Its output so far."""
        return self._file.read_text("utf-8")

    def interrupt(self) -> None:
        """Tell it to stop, as Ctrl-C does, once."""
        if self._process.poll() is None and not self._told:
            self._told = True
            self._process.send_signal(signal.SIGINT)

    def stop(self) -> int:
        """Stop it, and return its exit code."""
        self.interrupt()
        return self._process.wait(PATIENCE)
