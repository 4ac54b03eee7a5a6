"""Requests to hosts that a model or a document names: which addresses they may reach, and how much is read of an answer."""
