"""Look after the instances of one recorded tool: start, choose, check, restart and stop them."""

from toolbus.platform.host.pool.member import Timing
from toolbus.platform.host.pool.pool import Pool

__all__ = ["Pool", "Timing"]
