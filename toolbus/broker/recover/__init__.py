"""Take over from dead or leaving workers."""
