"""Refuse bodies that are not said to be JSON."""

from __future__ import annotations

from starlette.requests import Request

from toolbus.gateway.problems import Problem


def require_json(request: Request) -> None:
    """Check the type of a body. A page of any site may send others to a gateway on its reader's machine, without asking first.

    Raises:
        Problem: 415, it is not JSON.
    """
    said = request.headers.get("content-type", "")
    if said == "application/json":
        return
    kind = said.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    given = f"not {kind[:50]!r}" if kind else "and none is given"
    detail = f"the Content-Type of the body must be application/json, {given}; with curl, use --json in place of -d"
    raise Problem(415, "unsupported_media_type", detail, {"Accept": "application/json"})
