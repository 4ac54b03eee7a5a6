"""Bounds of the output of recorded tools that is kept."""

MOST_LINES = 300
"""About as many lines of output are kept of a tool."""

MOST_LINE = 2_048
"""Most characters of a line; the rest is cut off."""

OUTPUT_KEPT = 86_400.0
"""Seconds for which output is kept after its last line."""
