"""Carry commands to the server: connections, discovery, the wire, and links that come back."""
