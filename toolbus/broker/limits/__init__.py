"""Count rates, quotas and usage for all processes together."""
