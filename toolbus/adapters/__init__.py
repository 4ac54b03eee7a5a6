"""Thin adapters to the packages in which agents are written; each is imported by its own name, and needs its package."""
