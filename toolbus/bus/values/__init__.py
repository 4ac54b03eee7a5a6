"""Hold what travels and what is set: results, envelopes, descriptors, options, settings."""
