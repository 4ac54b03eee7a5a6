"""A program for hosts to run: it does what a call's argument ``do`` says, and starts as its variable ``START`` says."""

from __future__ import annotations

PROGRAM = r"""
import argparse, gzip, json, os, signal, socket, struct, subprocess, sys, threading, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

SEEN = []
PNG = bytes.fromhex("89504e470d0a1a0a") + b"picture"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536

    def log_message(self, *args):
        pass

    def handle_any(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        parts = urlsplit(self.path)
        given = json.loads(body) if body else dict(parse_qsl(parts.query))
        self.given, self.where = given, parts.path
        getattr(self, "do_" + str(given.get("do", "echo")))()

    do_GET = do_POST = do_PUT = do_DELETE = handle_any

    def answer(self, body, kind="application/json", status=200, **headers):
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def raw(self, data):
        self.wfile.write(data)
        self.wfile.flush()
        self.close_connection = True

    def chunks(self, kind, pieces, end=True):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()
        if end:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        else:
            self.close_connection = True

    def do_echo(self):
        if self.where == "/ill":
            return self.answer(b"ill", "text/plain", 500)
        shown = {"arguments": self.given, "path": self.path, "method": self.command, "headers": dict(self.headers.items())}
        shown["hosts"], shown["accepts"] = self.headers.get_all("host"), self.headers.get_all("accept")
        self.answer(json.dumps(shown).encode())

    def do_value(self):
        self.answer(json.dumps(self.given["value"]).encode())

    def do_text(self):
        self.answer("grüß".encode("latin-1"), "text/plain; charset=latin-1")

    def do_empty(self):
        self.send_response(204)
        self.end_headers()

    def do_image(self):
        self.answer(PNG, "image/png")

    def do_file(self):
        self.answer(b"\x00\x01", "application/zip")

    def do_unsaid(self):
        self.answer(PNG, None)

    def do_events(self):
        progress = b'event: progress\ndata: {"done": "soon"}\n\nevent: progress\ndata: {"done": 1, "total": 2, "message": "half"}\n\n'
        ends = b'event: end\ndata: {"pages": 2}\n\n'
        self.chunks("text/event-stream", [progress, b"data: one \n\n", b'data: {"text": "two"}\n\n', b": ping\n\n", ends])

    def do_failing_events(self):
        self.chunks("text/event-stream", [b"data: one\n\n", b'event: error\ndata: {"message": "out of paper"}\n\n'])

    def do_chunked(self):
        self.chunks("text/plain; charset=utf-8", ["gr\xfc".encode()[:3], "gr\xfc".encode()[3:], b"!"])

    def do_slow_text(self):
        def pieces():
            yield b"first"
            while not HURRY.wait(0.01):
                pass
            yield b"last"

        self.chunks("text/plain", pieces())

    def do_hurry(self):
        HURRY.set()
        self.answer(b"true")

    def do_refuse(self):
        self.answer(b'{"detail": "no such page"}', status=404)

    def do_busy(self):
        self.answer(b"come back", "text/plain", 503, Retry_After="7")

    def do_crash(self):
        self.answer(b"Traceback " + b"x" * 100_000, "text/plain", 500)

    def do_redirect(self):
        self.answer(b"", status=307, Location="http://169.254.169.254/latest")

    def do_bad_json(self):
        self.answer(b'{"a": ')

    def do_bad_gzip(self):
        self.answer(b"no gzip at all", Content_Encoding="gzip")

    def do_bomb(self):
        self.answer(gzip.compress(bytes(200_000_000), 1), "application/octet-stream", Content_Encoding="gzip")

    def do_nonsense(self):
        self.raw(b"\x00\xffno http\r\n\r\n")

    def do_endless_head(self):
        with __import__("contextlib").suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for _ in range(100_000):
                self.wfile.write(b"X-Y: " + b"z" * 1000 + b"\r\n")
                self.wfile.flush()
        self.close_connection = True

    def do_short(self):
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nshort")

    def do_cut(self):
        self.chunks("text/plain", [b"begun"], end=False)

    def do_open(self):
        self.send_response(200)
        self.send_header("Content-Type", self.given["kind"])
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(self.given["body"].encode())
        self.wfile.flush()
        if self.given.get("die"):
            os._exit(5)

    def do_close(self):
        self.close_connection = True

    def do_reset(self):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def do_hang(self):
        SEEN.append("begun")
        self.connection.recv(1)
        SEEN.append("closed")
        self.close_connection = True

    def do_work(self):
        SEEN.append("working")
        HURRY.wait()
        self.answer(b"true")

    def do_drip(self):
        SEEN.append("begun")
        try:
            self.chunks("text/plain", iter(lambda: time.sleep(0.01) or b".", None))
        except OSError:
            SEEN.append("closed")
            self.close_connection = True

    def do_seen(self):
        self.answer(json.dumps(SEEN).encode())

    def do_print(self):
        for _ in range(int(self.given["lines"])):
            print("y" * int(self.given["length"]))
        print("printed")
        self.answer(b"true")

    def do_exit(self):
        print("falling over", flush=True)
        os._exit(5)

    def do_environment(self):
        self.answer(json.dumps(sorted(os.environ)).encode())


HURRY = threading.Event()


def main():
    start = os.environ.get("START", "")
    if start == "ends":
        sys.exit("no licence")
    if start == "never":
        print("thinking", flush=True)
        threading.Event().wait()
    if start == "flood":
        for _ in range(300_000):
            print("z" * 100)
        print("x" * 5_000_000)
    if start == "in use":
        sys.exit("OSError: [Errno 98] Address already in use")
    if start in {"stubborn", "family"}:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if start == "family":
        code = "import os,signal,time;signal.signal(15,signal.SIG_IGN);os.setsid();os.fork();time.sleep(600)"
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", code])
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    port = parser.parse_args().port
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("" if start == "everywhere" else "127.0.0.1", port), Handler)
    server.daemon_threads = True
    print("listening on", server.server_address[1], flush=True)
    server.serve_forever()


main()
"""
