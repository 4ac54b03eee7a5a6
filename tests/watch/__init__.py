"""Tests of toolbus.watch."""
