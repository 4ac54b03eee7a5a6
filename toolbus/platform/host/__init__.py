"""The host: serves the recorded tools of a machine as services of the bus, and looks after their programs."""
