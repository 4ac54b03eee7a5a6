"""Put images beside or below each other: a tool that is a program of its own.

A host starts it with ``uv run python main.py --port PORT``. It tells its progress as server-sent events, and its result with the last one.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import io
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from PIL import Image, UnidentifiedImageError

MOST_IMAGES = 50
MOST_PIXELS = 50_000_000
MOST_BODY = 100_000_000


class Unfit(Exception):
    """The arguments are not what they must be; the text says why."""


def stitched(arguments: dict[str, Any]) -> Iterator[tuple[int, int, Image.Image | None]]:
    """Yield how many images are done, of how many, and at the end the picture."""
    images, direction = arguments.get("images"), arguments.get("direction", "horizontal")
    if not isinstance(images, list) or not 1 <= len(images) <= MOST_IMAGES:
        raise Unfit(f"images: give 1 to {MOST_IMAGES} images, each as base64")
    if direction not in {"horizontal", "vertical"}:
        raise Unfit("direction: give horizontal or vertical")
    loaded = [_image(number, text) for number, text in enumerate(images)]
    across = direction == "horizontal"
    width = sum(each.width for each in loaded) if across else max(each.width for each in loaded)
    height = max(each.height for each in loaded) if across else sum(each.height for each in loaded)
    if width * height > MOST_PIXELS:
        raise Unfit(f"the picture would have more than {MOST_PIXELS:,} pixels")
    canvas, at = Image.new("RGB", (width, height), "white"), 0
    for number, each in enumerate(loaded):
        canvas.paste(each, (at, 0) if across else (0, at))
        at += each.width if across else each.height
        yield number + 1, len(loaded), None
    yield len(loaded), len(loaded), canvas


def _image(number: int, text: object) -> Image.Image:
    try:
        return Image.open(io.BytesIO(base64.b64decode(str(text), validate=True))).convert("RGB")
    except (binascii.Error, UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise Unfit(f"images[{number}]: it is no image in base64 ({type(error).__name__})") from None


class Handler(BaseHTTPRequestHandler):
    """Answers one call."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Stitch, and tell how far it is."""
        try:
            length = int(self.headers.get("Content-Length", 0))
            if length > MOST_BODY:
                raise Unfit("the images are too large")
            arguments = json.loads(self.rfile.read(length))
            steps = stitched(arguments if isinstance(arguments, dict) else {})
            first = next(steps)
        except (Unfit, ValueError) as error:
            self._answer(400, json.dumps({"detail": str(error)}).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        self._step(first)
        for step in steps:
            self._step(step)

    def _step(self, step: tuple[int, int, Image.Image | None]) -> None:
        done, total, picture = step
        if picture is None:
            self._event("progress", {"done": done, "total": total, "message": f"image {done} of {total}"})
            return
        written = io.BytesIO()
        picture.save(written, "PNG")
        self._event("text", {"text": f"{total} images, {picture.width} x {picture.height} pixels"})
        self._event("blob", {"media_type": "image/png", "data": base64.b64encode(written.getvalue()).decode()})
        self._event("end", {"width": picture.width, "height": picture.height})

    def _event(self, name: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    ThreadingHTTPServer.request_queue_size = 128
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
