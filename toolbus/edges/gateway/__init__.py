"""Serve the bus over HTTP: tools for programs in any language, and a page for people."""
