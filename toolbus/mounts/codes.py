"""Error codes of ours in answers that never came from a server."""

from __future__ import annotations

TOO_LONG = -32_099
"""An answer was too long to be read."""
