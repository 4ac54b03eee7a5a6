"""The toolkit: a graph of actions and tools whose scores say what is worth showing to a model."""
