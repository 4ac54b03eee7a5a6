"""The slots of a worker: which request runs next, and where."""
