"""The worker's side: services, function tools, and the process that runs them."""
