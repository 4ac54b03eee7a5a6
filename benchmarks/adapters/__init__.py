"""One program per peer; ``contract.py`` describes their common interface."""
