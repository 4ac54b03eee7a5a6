"""Serve the files of the page: HTML, CSS and ES modules, as they are in the package."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from toolbus.edges.gateway.bodies import Problem

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The content security policy: nothing from elsewhere, no inline scripts or styles, and no text may become markup."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""Headers of every file of the page."""

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX = "index.html"


class File(NamedTuple):
    """A file of the page: its bytes, the same compressed, its media type and its tag."""

    data: bytes
    packed: bytes
    kind: str
    tag: str


@cache
def files() -> dict[str, File]:
    """Return the files of the page by name; they are read once."""
    root = resources.files("toolbus.edges.gateway.page").joinpath("static")
    found = dict(_read(root, ""))
    # Naming the toolkit as a package would import it, and its extra may be missing.
    drawing = resources.files("toolbus").joinpath("toolkit", "assets", "drawing.js").read_bytes()
    found["graph-drawing.js"] = drawing + b"\nexport { drawGraph };\n"
    modules = sorted(name for name in found if name.endswith(".js") and name != "app.js")
    # Modules that are named up front are loaded side by side, instead of one level of imports after the other.
    links = "\n".join(f'<link rel="modulepreload" href="ui/static/{name}">' for name in modules)
    found[_INDEX] = found[_INDEX].replace(b"%%MODULES%%", links.encode())
    return {name: _file(name, data) for name, data in found.items()}


def _read(folder: Traversable, before: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _read(each, f"{before}{each.name}/")
        elif each.name.rpartition(".")[2] in _TYPES:
            found.append((f"{before}{each.name}", each.read_bytes()))
    return found


def _file(name: str, data: bytes) -> File:
    tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
    return File(data, gzip.compress(data, mtime=0), _TYPES[name.rpartition(".")[2]], tag)


async def index(request: Request) -> Response:
    """Answer the page."""
    return _answer(request, _INDEX)


async def static(request: Request) -> Response:
    """Answer a file of the page.

    Raises:
        Problem: 404, there is none of that name.
    """
    return _answer(request, request.path_params["path"])


def _answer(request: Request, name: str) -> Response:
    found = files().get(name)
    if found is None:
        raise Problem(404, "no_such_path", f"{request.method} {request.url.path}: the page has no such file")
    headers = {**HEADERS, "ETag": found.tag, "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(None, 304, headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, 200, {**headers, "Content-Encoding": "gzip"}, found.kind)
    return Response(found.data, 200, headers, found.kind)


ROUTES = [Route("/", index), Route("/ui/static/{path:path}", static)]
