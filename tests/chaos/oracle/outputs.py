"""Outputs that tools must give for a call."""

from __future__ import annotations

from tests.chaos.plan import Planned, inner, story


def expected(planned: Planned) -> str | None:
    """The whole output of a successful call; None when it can't succeed or differs per run."""
    arguments, key = planned.arguments, planned.work
    match planned.tool:
        case "echo":
            return f"{key}:{arguments['text']}"
        case "nested":
            return f"{key}:({inner(key)}:{arguments['text']})"
        case "revised":
            return f"{key}:{arguments['mark']}"
        case "ask":
            return f"{key}:allowed"
        case "pay":
            return f"{key}:paid"
        case "deep":
            return f"{key}:({inner(key)}:at last)"
        case "silent" | "flaky":
            return f"{key}:at last"
        case "block":
            return f"{key}:unblocked"
        case "story" | "stumble":
            return "".join(story(key, arguments["pieces"]))
        case _:
            return None
