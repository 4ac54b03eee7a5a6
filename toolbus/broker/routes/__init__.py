"""Routes of recorded tools: hosts under their leases, tools that one host alone serves, and the output of programs."""
