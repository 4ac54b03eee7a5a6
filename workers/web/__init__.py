"""What the tools of the shelf that use the network share: safe fetching, and reading what was fetched."""
