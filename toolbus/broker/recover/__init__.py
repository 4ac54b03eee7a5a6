"""Take over what dead or leaving workers left, and mend keys that nobody could use."""
