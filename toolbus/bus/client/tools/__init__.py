"""The tools of a namespace as an agent sees them, kept up to date from the registry."""
