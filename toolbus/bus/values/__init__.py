"""What travels and what is set: results, envelopes, descriptors, options, settings."""
