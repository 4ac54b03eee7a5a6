"""The real client, worker and scripts in a simulated world: virtual time, a simulated network and server, and faults from a seed."""

# Defaults of the product's functions are clocks, which are bound when it is imported: the world's must be there before.
from tests.simulation import seams

seams.install()
