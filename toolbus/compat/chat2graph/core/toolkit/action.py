"""``Action``: toolbus's own class has the same fields in the same order."""

from toolbus.toolkit.graph import Action

__all__ = ["Action"]
