"""Plant defects and see how soon the simulation finds each: ``python -m tests.simulation.planted [NAME ...]``.

They are the changes with which each promise of the reliability page is broken, and some that outside reviews have found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.promises import MUTANTS, ROOT, Mutant

_LUA = "broker/server/lua"

PLANTED = MUTANTS | {
    "Flushes overtake each other": Mutant(
        f"{_LUA}/publish/publish.lua",
        "if earlier and tonumber((memo[2] or ''):match('^%d+') or -1) < tonumber(earlier) then",
        "if false then",
    ),
    "Frames that were refused are dropped": Mutant(
        "broker/replies/finish.py", "if not self._patience.holds(self._server, error):", "if True:"
    ),
    "A refusal of a repeated publication is taken for the first answer": Mutant(
        "broker/publish.py", "return isinstance(reply, ReplyError) and reply.repeated and _code(reply) in REFUSES_ALL", "return False"
    ),
    "Cancellations that were refused are dropped": Mutant(
        "broker/publish.py", "if isinstance(reply, ReplyError) and _code(reply) in _PASSING and wanted():", "if False:"
    ),
    "A renewal takes back what has moved": Mutant(
        f"{_LUA}/lease/renew.lua",
        "if unmoved or still_owned(queue, consumer, ARGV[i], ARGV[i + 1], generation == ARGV[2]) then",
        "if true then",
    ),
    "A moved entry leaves the fence": Mutant(
        f"{_LUA}/take/_fence.lua", "local bumped = redis.pcall('HINCRBY', fence, 'c:' .. consumer, 1)", "local bumped = 1"
    ),
    "A finished request stays": Mutant(f"{_LUA}/finish/finish.lua", "redis.call('XDEL', queue, unpack(ARGV, 5, first - 1))"),
    "A reply stream lives for ever": Mutant(f"{_LUA}/publish/listen.lua", "redis.call('PEXPIRE', stream, ARGV[1])"),
}
"""The defects by name."""

OUT_OF_REACH = {
    "Callers that do not read": "no agent leaves so much unread",
    "Failover": "the server has no replicas",
    "Mastership": "there are no Sentinels",
    "Snapshots of sessions": "no service restores states",
    "Snapshots of sessions: calls in them": "no service restores states",
}
"""Defects that nothing in a world can show, and why; they are searched for only when they are named."""

_FOUND = re.compile(r"^VIOLATION (.*)$", re.MULTILINE)


def main() -> int:
    """Plant the defects that are named, or all within reach; return how many were not found."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted")
    parser.add_argument("names", nargs="*", help="defects; all within reach without any")
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long each is searched for")
    chosen = parser.parse_args()
    names, survived = chosen.names or [name for name in PLANTED if name not in OUT_OF_REACH], 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        hidden = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist", "mutants")
        shutil.copytree(ROOT, tree, ignore=hidden)
        for name in names:
            began, file = time.monotonic(), tree / PLANTED[name].path
            before = file.read_text("utf-8")
            file.write_text(PLANTED[name].apply(before), "utf-8")
            found = _search(tree, chosen.seconds)
            file.write_text(before, "utf-8")
            survived += not found
            print(f"{name}: {found or 'NOT FOUND'} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"{len(names) - survived} of {len(names)} found")
    return survived


def _search(tree: Path, seconds: float) -> str:
    """Return what the simulation finds in a tree within so many seconds, or an empty text."""
    program = [sys.executable, "-m", "tests.simulation", "--first", "1", "--seconds", str(seconds), "--tries", "0"]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree}/workers"}
    done = subprocess.run(program, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds + 300, check=False)
    if done.returncode == 0:
        return ""
    return next(iter(_FOUND.findall(done.stdout)), done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "it failed")


if __name__ == "__main__":
    sys.exit(min(main(), 1))
