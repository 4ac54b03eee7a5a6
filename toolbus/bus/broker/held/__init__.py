"""Hold what features keep from one process to the next: conversations, tasks, routes, tokens, confirmations, limits."""
