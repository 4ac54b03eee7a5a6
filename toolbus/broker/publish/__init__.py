"""Publish requests: flushes, idempotency keys, and cancellation of what was published."""
