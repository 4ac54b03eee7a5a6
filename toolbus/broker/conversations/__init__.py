"""Keep the conversations of agents, each continued by one process at a time."""
