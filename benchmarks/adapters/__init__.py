"""One program per peer; ``contract.py`` says what they have in common."""
