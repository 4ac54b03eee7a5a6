"""Call programs and APIs over HTTP: requests from arguments, and results from answers."""
