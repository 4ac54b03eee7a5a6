"""Answer the definitions of the tools for a model, in the formats of those who serve models."""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import Response

from toolbus.client.tools.formats import FORMATS
from toolbus.encoding import encode_data
from toolbus.gateway.gateway import gateway_of
from toolbus.gateway.principals import Principal
from toolbus.gateway.problems import Problem

_WORDS = {"true": True, "1": True, "": True, "false": False, "0": False}


def definitions(request: Request, principal: Principal, format: str) -> Response:
    """Answer the definitions of the tools that a principal may call, as a JSON list; ``If-None-Match`` spares what has not changed.

    The query has ``strict``, ``namespaces`` (of ``responses`` alone), and ``group``, ``category`` and ``name``, which may be repeated.

    Raises:
        Problem: 422, there is no such format, or a flag is neither true nor false.
    """
    if format not in FORMATS:
        raise Problem(422, "invalid_query", f"there is no format {format[:50]!r} (there are: {', '.join(FORMATS)})")
    query = request.query_params
    view = principal.sees(gateway_of(request).bus).filter(
        groups=query.getlist("group") or None, categories=query.getlist("category") or None, names=query.getlist("name") or None
    )
    strict, namespaces = _flag(request, "strict", usual=False), _flag(request, "namespaces", usual=True)
    document = encode_data(view.definitions(format, strict=strict, namespaces=namespaces))
    tag = f'"{hashlib.blake2b(document, digest_size=16).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(document, headers=headers, media_type="application/json")


def _flag(request: Request, name: str, *, usual: bool) -> bool:
    said = request.query_params.get(name)
    if said is None:
        return usual
    found = _WORDS.get(said.lower())
    if found is None:
        raise Problem(422, "invalid_query", f"{name} is true or false, not {said[:50]!r}")
    return found
