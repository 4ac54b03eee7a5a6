"""Publish services and static descriptors, and follow what others publish."""
