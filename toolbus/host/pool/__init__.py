"""Look after the instances of one recorded tool: start, choose, check, restart and stop them."""

from toolbus.host.pool.pool import Pool
from toolbus.host.pool.timing import Timing

__all__ = ["Pool", "Timing"]
