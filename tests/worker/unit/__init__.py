"""Tests of a worker's parts without a server: a broker that records, and an event loop whose time passes at once."""
