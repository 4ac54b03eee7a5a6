"""The real client, worker and scripts in a simulated world: virtual time, a simulated network and server, and faults from a seed."""
