"""Keep the leases of a worker and its requests, and take over what lost its lease; judge both by the server's clock."""
