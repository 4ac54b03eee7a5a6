"""``python -m tests.simulation``: see ``program``."""

from __future__ import annotations

import sys

from tests.simulation import seams

if __name__ == "__main__":
    # Defaults of the product's functions are clocks, which are bound when it is imported: the world's must be there before.
    seams.install()
    from tests.simulation.program import main

    sys.exit(main())
