"""``toolbus demo``: run the main features with real processes and check each of them."""
