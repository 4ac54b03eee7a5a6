"""Send frames, and finish requests with their last ones."""
