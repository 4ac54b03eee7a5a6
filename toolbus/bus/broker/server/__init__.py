"""Declare what the server runs and holds: scripts, key names, rights of roles, and bounded readers of answers."""
