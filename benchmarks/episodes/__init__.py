"""Stateful episodes through every way of making a turn, compared call by call with the same classes in one process."""
