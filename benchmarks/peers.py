"""Load the peers of ``peers.toml``, and make their virtual environments."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
VENVS = HERE / ".venvs"
INSTALL_SECONDS = 300.0
NAMESPACE = "bench"

Way = Literal["shipped", "quiet"]
"""``shipped``: workers started as users start them, with their logging as it is, to a file; ``quiet``: nothing is logged on any side."""

WAYS: tuple[Way, ...] = ("shipped", "quiet")


class InstallError(Exception):
    """The environment of a peer could not be made."""


@dataclass(frozen=True)
class PeerSpec:
    """One peer; peers.toml explains the fields."""

    name: str
    adapter: str
    server: Literal["redis", "nats", "none"]
    role: Literal["self", "floor", "peer"]
    tuning: str
    requirements: tuple[str, ...] = ()
    shipped: tuple[str, ...] = ()
    quick: bool = False
    slots: int = 1024
    most: int = 1_000_000
    offers: tuple[str, ...] = ("echo", "nap")
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def python(self) -> Path:
        """The interpreter that runs the peer's adapter."""
        return VENVS / self.name / "bin" / "python" if self.requirements else Path(sys.executable)

    @property
    def version(self) -> str:
        """The pinned version of the peer's package."""
        return self.requirements[0].partition("==")[2] if self.requirements else "this checkout"

    def worker(self, way: Way, url: str, concurrency: int) -> list[str]:
        """Return the command line of a worker: the peer's own if it has one and is measured as shipped, else its adapter's."""
        if way == "shipped" and self.shipped:
            program, *words = (word.format(url=url, concurrency=concurrency, port=url.rpartition(":")[2]) for word in self.shipped)
            return [str(self.python.with_name(program)), *words]
        return self.command("worker", way, url=url, concurrency=concurrency)

    def command(self, subcommand: str, way: Way, **options: Any) -> list[str]:
        """Return the command line of the peer's adapter."""
        words = [str(self.python), "-P", "-m", f"benchmarks.adapters.{self.adapter}", subcommand]
        if way == "quiet":
            words.append("--quiet")
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        return words


def load() -> dict[str, PeerSpec]:
    """Return every peer by name, in the order of the file."""
    tables = tomllib.loads((HERE / "peers.toml").read_text())
    return {name: _spec(name, table) for name, table in tables.items()}


def _spec(name: str, table: dict[str, Any]) -> PeerSpec:
    lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
    return PeerSpec(name=name, **{**table, **lists})


def missing_server(spec: PeerSpec) -> str:
    """Return why a peer can't run on this machine, or an empty text."""
    if spec.server == "nats" and shutil.which("nats-server") is None:
        return "`nats-server` is not on PATH"
    return ""


def environment(way: Way = "quiet", url: str = "") -> dict[str, str]:
    """Return the environment of adapters: this checkout can be imported, settings of the harness are not inherited."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TOOLBUS_", "PYTHON"))}
    made = {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "BENCH_URL": url, "TOOLBUS_NAMESPACE": NAMESPACE}
    if url.startswith("redis"):
        made["TOOLBUS_URL"] = url
    if way == "quiet":
        made["TOOLBUS_LOG_LEVEL"] = "error"
    return {**kept, **made}


def install(spec: PeerSpec) -> None:
    """Make the environment of a peer, unless it already exists with the pinned versions.

    Raises:
        InstallError: pip failed; the message is the last line that it wrote.
    """
    if not spec.requirements:
        return
    home = VENVS / spec.name
    stamp = home / "requirements.sha256"
    wanted = hashlib.sha256("\n".join((sys.version, *spec.requirements)).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted and spec.python.exists():
        return
    print(f"installing {spec.name}: {' '.join(spec.requirements)}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _step(spec, [sys.executable, "-m", "venv", str(home)])
    _step(spec, [str(spec.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *spec.requirements])
    stamp.write_text(wanted)


def _step(spec: PeerSpec, command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise InstallError(f"{spec.name} was not installed within {INSTALL_SECONDS:.0f} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise InstallError(f"{spec.name} was not installed: {lines[-1] if lines else f'exit code {done.returncode}'}")
