"""Stand in for uvloop where it is to be missing: see ``benchmarks.features``."""

raise ImportError("this measurement runs on asyncio's own event loop")
