"""Records as the files ``registry.json``, ``sources.json`` and ``groups.json`` of a folder."""
