"""``toolbus demo``: the whole main job with real processes, checked as it goes."""
