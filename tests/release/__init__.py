"""Releases: what is built, what it consists of, and the workflow that publishes it."""
