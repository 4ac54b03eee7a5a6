"""``python -m toolbus.compat.tool_agent [DIR]``: start the platform as tool_agent's program does, with the same four HTTP interfaces.

It records the tools of ``registry.json``, ``sources.json`` and ``groups.json`` in DIR, and serves ``GET /health``, ``GET /tools``,
``POST /run_tool`` and ``POST /chat`` on port 8001, with the host of the tools, the service agent and the coding agent behind them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from toolbus.operations.cli import main
from toolbus.operations.cli.common import GATEWAY_PORT

_FILES = ("registry.json", "sources.json", "groups.json")


def words_of(arguments: Sequence[str] | None, here: Path) -> list[str]:
    """Return the words of the toolbus command that does the same; tools that the agent writes wait for approval, which they do not there.

    Args:
        arguments: of the command line; None for the process's own.
        here: the folder whose files are taken when none is given.
    """
    parser = argparse.ArgumentParser(
        prog="python -m toolbus.compat.tool_agent", description="Start the platform as that project's program does."
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help=f"folder of {', '.join(_FILES)} (the current one)")
    parser.add_argument("--port", type=int, default=GATEWAY_PORT, help=f"port of the HTTP interfaces ({GATEWAY_PORT})")
    parser.add_argument("--data", type=Path, help="folder in which the server keeps its data; in memory without it")
    given = parser.parse_args(arguments)
    folder = given.folder or (here if any((here / name).is_file() for name in _FILES) else None)
    words = ["platform", "up", "--http-port", str(given.port)]
    words += [] if folder is None else ["--import", str(folder)]
    return words + ([] if given.data is None else ["--data", str(given.data)])


if __name__ == "__main__":
    main(words_of(None, Path.cwd()), prog_name="toolbus")
