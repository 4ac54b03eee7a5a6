"""Break hosts and the programs of recorded tools at random, and check what callers are told and what is left."""
