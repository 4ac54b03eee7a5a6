"""Calls that outlive the process that began them, found again by the id of a task."""
