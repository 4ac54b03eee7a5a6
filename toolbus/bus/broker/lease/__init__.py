"""Keep the leases of a worker and its requests, and the server's clock by which they are judged."""
