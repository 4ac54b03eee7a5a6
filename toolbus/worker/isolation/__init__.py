"""Handlers in child processes that can be killed: ``@tool(isolation="process")``."""

inside = False
"""Whether this process is a nursery or a child: a worker that a module starts here, when it is imported, would never end."""
