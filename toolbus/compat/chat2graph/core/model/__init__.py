"""A package at the path that Chat2Graph uses."""
