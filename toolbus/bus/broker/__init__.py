"""The only folder that speaks Redis."""
