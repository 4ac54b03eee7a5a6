"""The tasks extension: calls that a client asks about later, at any server of the namespace."""
