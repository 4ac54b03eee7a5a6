"""Chaos: real processes, a real server, faults from a seed, and an oracle that judges what everybody wrote down."""
