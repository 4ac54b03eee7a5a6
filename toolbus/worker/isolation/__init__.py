"""Handlers in child processes that can be killed: ``@tool(isolation="process")``."""
