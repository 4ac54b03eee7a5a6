"""Fetch pages safely and read what was fetched, for the tools that use the network."""
