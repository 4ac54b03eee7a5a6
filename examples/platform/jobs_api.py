"""A small API that the tools of the group ``job_lifecycle`` call: it pretends to rent machines.

JOBS_TOKEN=secret python jobs_api.py --port 8765
"""

from __future__ import annotations

import argparse
import hmac
import itertools
import json
import os
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = re.compile(r"/jobs(?:/(?P<job>[^/]+)(?P<run>/run)?)?")
PAUSE = 0.1

jobs: dict[str, str] = {}
numbers = itertools.count(1)


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65_536

    def do_POST(self) -> None:
        """Launch a job, or run a command in one."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found, arguments = self._allowed(), json.loads(body or b"{}")
        if found is None:
            return
        if found["job"] is None:
            job = f"j{next(numbers)}"
            jobs[job] = str(arguments.get("size", ""))
            self._answer(200, {"job_id": job})
        elif found["job"] not in jobs:
            self._answer(404, {"detail": f"there is no job {found['job']}; launch one first"})
        else:
            self._run(str(arguments.get("command", "")), jobs[found["job"]])

    def do_DELETE(self) -> None:
        """Stop a job; a job that is stopped already is no error."""
        found = self._allowed()
        if found is not None:
            self._answer(200, {"stopped": jobs.pop(str(found["job"]), None) is not None})

    def _allowed(self) -> re.Match[str] | None:
        """Return the parts of the path; answers by itself when there are none, or the token is wrong."""
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given, f"Bearer {os.environ['JOBS_TOKEN']}"):
            self._answer(401, {"detail": "give the token"})
            return None
        found = PATH.fullmatch(self.path)
        if found is None:
            self._answer(404, {"detail": "there is nothing here"})
        return found

    def _run(self, command: str, size: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for line in (f"{command}: begun on a {size} machine\n", f"{command}: done\n"):
            self.wfile.write(line.encode())
            self.wfile.flush()
            time.sleep(PAUSE)

    def _answer(self, status: int, document: object) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8765)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
