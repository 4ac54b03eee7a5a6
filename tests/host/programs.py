"""A program that answers as its calls say, for pools that start real processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from toolbus.platform.records import RecordedTool, Running, ToolMeta, ToolSource

PROGRAM = r"""
import argparse, json, os, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Without it, headers and body leave in two packets, and the second waits for an acknowledgement of the first.
    wbufsize = 65536

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.answer({"fine": True})

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        what = given.get("do", "")
        if given.get("note"):
            with open(given["note"], "a") as file:
                file.write(f"{given.get('number', 0)}\n")
        if what == "die" or (what == "die once" and not os.path.exists(given["mark"])):
            if what == "die once":
                open(given["mark"], "w").close()
            os._exit(7)
        if what == "die slowly once" and not os.path.exists(given["mark"]):
            open(given["mark"], "w").close()
            self.server.dying = True
            self.connection.shutdown(2)
            time.sleep(0.7)
            os._exit(9)
        if what == "sleep":
            time.sleep(given["seconds"])
        if what == "stream":
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(3):
                self.wfile.write(b"2\r\n%d,\r\n" % number)
                self.wfile.flush()
                if given.get("break") == number:
                    os._exit(8)
            self.wfile.write(b"0\r\n\r\n")
            return
        self.answer({"number": given.get("number"), "pid": os.getpid()})

    def answer(self, document):
        body = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    dying = False

    def verify_request(self, request, address):
        # Connections are taken until the process is gone, and nobody answers there.
        return not self.dying


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
port = parser.parse_args().port
print("listening on", port, flush=True)
Server(("127.0.0.1", port), Handler).serve_forever()
"""


def recorded(folder: Path, tool_id: str = "image_stitcher", *, stream: bool = False, **running: Any) -> RecordedTool:
    """Write the program into a folder, and return its record; this Python runs it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "main.py").write_text(PROGRAM)
    source = ToolSource(
        type="local", host_dir=str(folder), command=(sys.executable, "-S", "main.py", "--port", "{port}"), ready="path:/", ready_within=30.0
    )
    return RecordedTool(meta=ToolMeta(tool_id=tool_id, stream_support=stream), sources=(source,), running=Running(**running))


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False
