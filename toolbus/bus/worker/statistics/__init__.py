"""Counts of what a worker has run, for those who ask, and for the record of recent calls."""
