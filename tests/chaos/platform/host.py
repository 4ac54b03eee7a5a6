"""``python -m tests.chaos.platform.host``: ``toolbus platform host`` that tells its stacks when it is asked."""

from __future__ import annotations

import sys

from tests.chaos.platform import stacks
from toolbus.operations.cli import main

if __name__ == "__main__":
    stacks.answer()
    sys.argv[1:1] = ["platform", "host"]
    main()
