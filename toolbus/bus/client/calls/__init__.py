"""Calls in the caller's hand: publishing them, putting their frames together, and ending them in time."""
