"""Recorded tools in an external catalogue: match its items with tools and groups, and keep the links on both sides."""
