"""Where that project has it."""
