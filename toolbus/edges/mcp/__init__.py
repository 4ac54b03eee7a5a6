"""Serve the tools of a bus to clients of the Model Context Protocol."""
