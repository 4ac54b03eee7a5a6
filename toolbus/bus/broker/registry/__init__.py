"""Publish services and static descriptors, follow what others publish, and decide which versions and forms are approved."""
