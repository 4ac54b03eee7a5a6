"""The service agent: a chat about the tools, with a memory for each conversation."""
