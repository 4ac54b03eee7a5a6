"""The connector between a messenger's WebSocket and the service agent."""
