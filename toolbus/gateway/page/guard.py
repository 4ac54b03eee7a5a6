"""Refuse requests that a page of another site makes in a person's browser."""

from __future__ import annotations

from starlette.requests import Request

from toolbus.gateway.media_types import require_json
from toolbus.gateway.problems import Problem


def require_own_page(request: Request) -> None:
    """Check who made a request that changes something.

    Browsers say which site's page made a request. A gateway that is open on loopback has no token that another site would lack.

    Raises:
        Problem: 403, a page of another site; 415, the body is not said to be JSON.
    """
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in {"same-origin", "none"}:
        raise Problem(403, "forbidden", f"a page of another site ({site}) may not ask for this")
    require_json(request)
