"""The bus itself: callers, workers, the broker between them, and what travels."""
