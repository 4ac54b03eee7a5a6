"""Keep the records of bearer tokens, for every gateway of a namespace."""
