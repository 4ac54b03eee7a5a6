"""Build, serve and publish the documentation site: ``python -m website build|serve|publish``."""

from __future__ import annotations

import argparse
import functools
import http.server
import subprocess
import sys
from pathlib import Path

from website.build import build
from website.publish import DEVELOPMENT, publish, version_of
from website.stage import ROOT, SiteError

SITE = ROOT / "build" / "site"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m website", description="The documentation site of toolbus.")
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build the site; a warning is an error")
    building.add_argument("--ref", default="main", help="branch or tag that links into the repository lead to (default: main)")
    serving = commands.add_parser("serve", help="build the site and serve it to this machine")
    serving.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (default: 8000)")
    publishing = commands.add_parser("publish", help="build the site and put it among the published versions")
    publishing.add_argument("tag", help=f"the release, such as v1.4.2, or {DEVELOPMENT!r}")
    publishing.add_argument(
        "--into", type=Path, required=True, metavar="FOLDER", help="the folder that is served, with earlier versions in it"
    )
    for each in (building, serving, publishing):
        each.add_argument("--site", type=Path, default=SITE, metavar="FOLDER", help="where the site is built (default: build/site)")
    return parser


def main(words: list[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    given = parser().parse_args(words)
    try:
        if given.command == "publish":
            _publish(given)
        else:
            build(given.site, ref=getattr(given, "ref", "main"))
            print(f"built {given.site}")
            if given.command == "serve":
                _serve(given.site, given.port)
    except (SiteError, OSError, subprocess.TimeoutExpired) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _publish(given: argparse.Namespace) -> None:
    """Build the site of a version, and add it to the published ones."""
    version_of(given.tag)
    build(given.site, ref="main" if given.tag == DEVELOPMENT else given.tag)
    given.into.mkdir(parents=True, exist_ok=True)
    print(f"published {', '.join(publish(given.site, given.into, given.tag))} in {given.into}")


def _serve(site: Path, port: int) -> None:
    """Serve the site to this machine until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/  (Ctrl-C ends it)", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
