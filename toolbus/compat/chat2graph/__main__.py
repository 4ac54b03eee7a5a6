"""``python -m toolbus.compat.chat2graph chat2graph.yml``: write a file's preset, and what is wrong with the file."""

from __future__ import annotations

import argparse
import sys

import msgspec

from toolbus.bus.values.results import ToolbusError
from toolbus.compat.chat2graph.importer import import_config


def main(arguments: list[str] | None = None) -> int:
    """Write the preset as JSON to standard output and one line for each problem to standard error; return 1 if there is any."""
    parser = argparse.ArgumentParser(prog="python -m toolbus.compat.chat2graph", description=__doc__.partition(": ")[2])
    parser.add_argument("file", help="the chat2graph.yml")
    parser.add_argument("--rename", action="append", default=[], metavar="OLD=NEW", help="another beginning of modules' names")
    parser.add_argument("--connect", action="store_true", help="ask MCP servers for their tools, which starts them")
    given = parser.parse_args(arguments)
    for each in given.rename:
        if "=" not in each:
            parser.error(f"--rename takes OLD=NEW, not {each!r}")
    try:
        found = import_config(given.file, rename=dict(each.split("=", 1) for each in given.rename), connect=given.connect)
        preset = found.preset()
    except ToolbusError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for problem in found.problems:
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(preset), indent=2).decode() + "\n")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
