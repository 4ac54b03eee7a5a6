"""Keep the tasks of coding agents, each run by one process at a time."""
