"""The programs of the official project: the TypeScript SDKs, the inspector and the conformance suite from npm, and the older Python SDK.

``make mcp-conformance`` fetches them into a folder of the environment, and runs the suite against a gateway.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.forking import ForkServer
from tests.mcp.conftest import listed
from tests.mcp.site import Site
from toolbus.bus.broker.transport.embedded import EmbeddedServer

FOLDER = Path(sys.prefix) / "mcp-node"
PACKAGES = (
    "node@22",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
    "@modelcontextprotocol/sdk@1.32.2",
    "@modelcontextprotocol/client@2.4.0",
    "@modelcontextprotocol/inspector@2.12.0",
)
# What is installed here is a later one.
OLDER_SDK = "mcp==1.30.0"
REQUIREMENTS = ("2026-07-28", "2025-11-25")


def older_python() -> Path:
    """Return the interpreter of an environment with the older Python SDK."""
    return FOLDER / "python" / "bin" / "python"


def environment() -> dict[str, str]:
    """Return the environment in which npm's programs run."""
    return {**os.environ, "PATH": f"{FOLDER / 'node_modules' / '.bin'}:{os.environ['PATH']}"}


def fetch() -> None:
    """Fetch the programs, if they are not there."""
    FOLDER.mkdir(exist_ok=True)
    if not (FOLDER / "node_modules" / "@modelcontextprotocol" / "client").is_dir():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES], cwd=FOLDER, check=True)
    if not older_python().exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER / "python"], check=True)
        subprocess.run([older_python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", OLDER_SDK], check=True)


def main() -> None:
    """Run the suite for each revision, and print its summary."""
    fetch()
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer() as server, ForkServer() as forks:
        site = Site(forks, Path(folder), server.url)
        try:
            site.worker(str(Path(__file__).with_name("conformance_tools.py")))
            _, url = site.gateway()
            asyncio.run(listed(url, "greet"))
            for revision in REQUIREMENTS:
                words = ["conformance", "server", "--url", url, "--requirements", revision]
                done = subprocess.run(words, env=environment(), cwd=folder, capture_output=True, text=True, check=False, timeout=900)
                sys.stdout.write(f"{revision}{done.stdout.partition('=== SUMMARY ===')[2] or done.stdout + done.stderr}\n")
        finally:
            site.close()


if __name__ == "__main__":
    main()
