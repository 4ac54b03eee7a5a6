"""A namespace, watched in the terminal; the only module that imports textual."""
