"""Count the words of a text: a program that answers at a port, as hosts run it in a container."""

import argparse
import json
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers a call, whose arguments are the JSON body, and says that it is well."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a call."""
        arguments = json.loads(self.rfile.read(int(self.headers["content-length"])))
        words = Counter(arguments["text"].lower().split())
        self.answer({"words": words.total(), "most": words.most_common(arguments.get("most", 3))})

    def do_GET(self) -> None:
        """Answer a health check."""
        self.answer({"ok": True})

    def answer(self, value: object) -> None:
        """Send a value as JSON."""
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until the container is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    print(f"serving on port {port}", flush=True)
    ThreadingHTTPServer(("", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
