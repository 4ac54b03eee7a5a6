"""Fetch pages safely and read them, for the tools that use the network."""
