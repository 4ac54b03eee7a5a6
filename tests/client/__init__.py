"""Tests of the caller's side."""
