"""Releases with different versions of the protocol side by side."""
