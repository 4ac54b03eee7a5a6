"""Faults as operators meet them: made on real processes, and named by alerts, by ``toolbus doctor`` and by the page."""
