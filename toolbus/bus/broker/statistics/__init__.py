"""Gather statistics of workers, which they answer when they are asked, and their recent calls."""
