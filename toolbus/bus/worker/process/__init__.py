"""The process that a worker runs in: event loop, health file, supervisor."""
