"""Tests of toolbus.top."""
