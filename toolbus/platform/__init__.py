"""Tools that are whole programs, containers or APIs, as they are recorded in the registry."""
