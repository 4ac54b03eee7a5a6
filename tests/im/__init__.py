"""Tests of the messenger connector."""
