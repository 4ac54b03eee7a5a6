"""The programs of the official project, which npm brings: the TypeScript SDK, the inspector, and the conformance suite.

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
    "@modelcontextprotocol/inspector@2.12.0",
)
REQUIREMENTS = ("2026-07-28", "2025-11-25")


def environment() -> dict[str, str]:
    """Return the environment in which npm's programs run."""
    return {**os.environ, "PATH": f"{FOLDER / 'node_modules' / '.bin'}:{os.environ['PATH']}"}


def fetch() -> None:
    """Fetch the programs, if they are not there."""
    if (FOLDER / "node_modules" / "@modelcontextprotocol" / "inspector").is_dir():
        return
    FOLDER.mkdir(exist_ok=True)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent", *PACKAGES], cwd=FOLDER, check=True)


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
