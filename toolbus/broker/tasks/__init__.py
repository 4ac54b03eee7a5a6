"""Keep what is needed to find a shared call again by the id of its task."""
