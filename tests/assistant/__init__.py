"""Tests of the service agent."""
