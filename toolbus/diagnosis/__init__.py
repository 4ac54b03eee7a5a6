"""Try a deployment with calls of its own: a worker, an agent, and the server between them."""
