"""Procedures of the runbooks, carried out as they are written."""
