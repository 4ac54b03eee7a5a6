"""Parts of an agent, at the paths that TrustGraph uses."""
