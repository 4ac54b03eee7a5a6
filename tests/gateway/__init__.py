"""The gateway: real servers, workers and gateways, each in a process of its own."""
