"""One run of a handler, from its delivery to its last frame."""
