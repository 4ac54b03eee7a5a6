"""The caller's side: the bus, its calls, and the live catalogue."""
