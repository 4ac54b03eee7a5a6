"""Handlers in child processes that can be killed: ``@tool(isolation="process")``."""

inside = False
"""True in a fork server or a child, where a module that is imported must not start a worker: it would never end."""
