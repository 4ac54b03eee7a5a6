"""Doors to other protocols: HTTP, MCP, and the services of others."""
