"""Thin adapters to agent frameworks; each is imported by its own name and needs its package."""
