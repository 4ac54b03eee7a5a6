"""Try tests that failed beside others once more, each alone, and name them.

Tests with real processes and real time limits may miss one on a crowded machine. Such a test passes alone; a defect
mostly does not. At most :data:`MOST` tests get this second try, so that a change that breaks something is never hidden.

Run: ``pytest …; python -m tests.again CODE``, with pytest's exit code.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 3
FAILED = Path(".pytest_cache/v/cache/lastfailed")
_SOME_FAILED = 1  # https://docs.pytest.org/en/stable/reference/exit-codes.html


def try_again(code: int) -> int:
    """Run the tests that failed once more, and return the exit code of the whole."""
    if code != _SOME_FAILED or not FAILED.exists():
        return code
    names = sorted(json.loads(FAILED.read_text()))
    if len(names) > MOST:
        return code
    print(f"== {len(names)} failed beside others; each is tried once more, alone", flush=True)
    for name in names:
        alone = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", name], check=False
        )
        if alone.returncode:
            return code
    print("== unsteady: passed alone, after a failure beside others (shown above). Please mend:")
    for name in names:
        print(f"   {name}")
    return 0


if __name__ == "__main__":
    sys.exit(try_again(int(sys.argv[1])))
