"""Read what arrives for an agent."""
