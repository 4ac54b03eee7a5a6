"""Tests of the coding agent's tools."""
