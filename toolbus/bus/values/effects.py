"""``Effect``: what a second run of a tool would do."""

from __future__ import annotations

import difflib
from typing import Literal, get_args

Effect = Literal["", "read", "idempotent", "once"]
EFFECTS: tuple[str, ...] = get_args(Effect)


def effect_flaw(effect: object) -> str:
    """Return what is wrong with an effect and list the valid ones; return "" when it is valid."""
    if isinstance(effect, str) and effect in EFFECTS:
        return ""
    words = [word for word in EFFECTS if word]
    near = difflib.get_close_matches(effect.lower(), words, n=1) if isinstance(effect, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"there is no effect {effect!r} (choose one of {', '.join(map(repr, words))}, or leave it out){hint}"
