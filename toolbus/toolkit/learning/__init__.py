"""Scores that are learned from what calls came to."""
