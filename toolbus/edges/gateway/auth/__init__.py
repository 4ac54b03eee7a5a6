"""Find out who sends a request to the gateway: bearer tokens from a file or the server, and JSON Web Tokens."""
