"""Sessions that a worker has open."""
