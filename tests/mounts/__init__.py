"""Tests of mounts: MCP servers, FastMCP objects and APIs as services of the bus."""
