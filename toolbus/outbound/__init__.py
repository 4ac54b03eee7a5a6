"""HTTP with hosts that may be hostile: which addresses may be reached, and how answers are read."""
