"""The documentation site: built from ``docs/`` and docstrings, checked, served here, and published by version."""
