"""From definitions to what a worker publishes, with the handler of each tool."""
