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
        "broker/replies/finish.py", "if not self._patience.holds(self.server, error):", "if True:"
    ),
    "A refusal of a repeated publication is taken for the first answer": Mutant(
        "broker/publish.py", "return isinstance(reply, ReplyError) and reply.repeated and reply.code in REFUSES_ALL", "return False"
    ),
    "Cancellations that were refused are dropped": Mutant(
        "broker/publish.py", "if isinstance(reply, ReplyError) and reply.code in _PASSING and wanted():", "if False:"
    ),
    "A renewal takes back what has moved": Mutant(
        f"{_LUA}/lease/renew.lua",
        "if unmoved or still_owned(queue, consumer, ARGV[i], ARGV[i + 1], generation == ARGV[2]) then",
        "if true then",
    ),
    "A moved entry leaves the fence": Mutant(
        f"{_LUA}/take/_fence.lua", "redis.call('HSET', fence, 'c:' .. consumer, counter:sub(1, 80))", ""
    ),
    "A fence returns after a loss": Mutant(
        f"{_LUA}/take/_fence.lua",
        "string.format('%s.%d.%s', stamp(), count, before:match('%w*$'))",
        "string.format('.%d.%s', count, before:match('%w*$'))",
    ),
    "Two runs have one attempt number": Mutant(f"{_LUA}/recover/hand_back.lua", "      attempt = attempt + 1\n", ""),
    "A service starves": Mutant(f"{_LUA}/take/take.lua", "table.insert(found, 1, last)", "table.insert(found, 1, #KEYS)"),
    "A finished request stays": Mutant(f"{_LUA}/finish/finish.lua", "redis.call('XDEL', queue, unpack(ARGV, 5, first - 1))"),
    "A reply stream lives for ever": Mutant(f"{_LUA}/publish/listen.lua", "redis.call('PEXPIRE', stream, ARGV[1])"),
    "A purged call waits for its deadline": Mutant("broker/admin.py", "error=error, epoch=epoch)", "error=error)"),
    "Who has no lease takes calls": Mutant(
        "broker/take/intake.py", "if not (stream.paused or stream.leaving or stream.unlisted):", "if not (stream.paused or stream.leaving):"
    ),
    "A call is published again once its key is free": Mutant(
        f"{_LUA}/publish/share.lua", "if known[1] ~= call and redis.call('EXISTS', KEYS[3]) == 1 then", "if false then"
    ),
    "Two attempts are called the first": Mutant(f"{_LUA}/recover/reap.lua", "(entry[4] > 1 or was_moved(entry[1]))", "entry[4] > 1"),
    "A worker that drains leaves what it takes over": Mutant(
        "worker/slots.py", "await self.broker.stop_recovering(_ANSWERS_WITHIN)", "pass"
    ),
    "The end of a call overtakes its snapshot": Mutant(
        "broker/take/sessions.py", "if error.code not in _REFUSES_FORGETTING or not delivery.is_held:", "if True:"
    ),
    "Lost replies are told again and again": Mutant(
        "broker/replies/reader.py", "if flat == _LOST and entry != self._told:", "if flat == _LOST:"
    ),
    "A missing group is asked for without a pause": Mutant("broker/take/intake.py", "            if again:", "            if False:"),
}
"""The defects by name."""

OUT_OF_REACH = {
    "Callers that do not read": "no agent leaves so much unread",
    "Ends of sessions": "no rule looks at what a service keeps of sessions",
    "Failover": "the server has no replicas",
    "Mastership": "there are no Sentinels",
    "One end": "a call that has ended is given no frame",
    "Scripts do all or nothing": "there is no cluster that moves its slots",
}
"""Defects that nothing in a world can show, and why; they are searched for only when they are named."""

MISSED: dict[str, str] = {
    "A call is published again once its key is free": "a shared call has to end, and free its key, between two tries to publish it",
    "A purged call waits for its deadline": "few calls are purged that were cut off, or whose group was made anew",
    "A stream is whole": "what is lost has been read nearly always",
    "Order in sessions: over kills": "few sessions have calls that wait in a worker that is killed",
    "Reaping": "few workers are killed while all slots of the others are taken",
    "Runs and attempts": "a run in a group that was made anew has a higher epoch, which would have to be lost, too",
    "Snapshots of sessions": "a worker has to stand still for a lease after its connection was cut while it sent a snapshot",
    "Two attempts are called the first": "the reply with which a dead worker's call is moved has to be lost, and it must have run once",
    "Who has no lease takes calls": "a lease is seldom lost while the connection for registering is half open",
    "`once`: at one server": "an answer has to be under way while the server loses its last second",
    "`once`: past its deadline": "work with little time has to begin right before it is up, and its answer to be late",
}
"""Defects that could show in a world, and that no search has found within its time, and why. One that is found is to be taken out."""

_FOUND = re.compile(r"^found after ([^\n]*)$.*?^VIOLATION ([^\n]*)$.*^seed (\d+) ", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Plant the defects that are named, or all within reach; return how many were not found that should be."""
    about = f"{main.__doc__} They are: {'; '.join(PLANTED)}."
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.planted", description=about)
    parser.add_argument("names", nargs="*", help="defects; all within reach without any, which may take hours")
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long each is searched for (%(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed of each search (%(default)s)")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in PLANTED]:
        parser.error(f"there is no planted defect {unknown[0]!r}; --help names them")
    names, missed = chosen.names or [name for name in PLANTED if name not in OUT_OF_REACH], 0
    print("| Planted defect | Found after | By |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        hidden = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist", "mutants")
        shutil.copytree(ROOT, tree, ignore=hidden)
        for name in names:
            after, what = _search(tree, PLANTED[name], chosen.first, chosen.seconds)
            missed += not after and name not in MISSED
            told = after or f"NOT FOUND{f', as before: {MISSED[name]}' if name in MISSED else ''}"
            print(f"| {name} | {told}{' (take it out of MISSED)' if after and name in MISSED else ''} | {what} |", flush=True)
    print(f"{missed} of {len(names)} were missed that should be found")
    return missed


def _search(tree: Path, defect: Mutant, first: int, seconds: float) -> tuple[str, str]:
    """Plant a defect in a tree; return after how much the simulation finds it, and which rule it breaks; two empty texts if it does not.

    A seed that breaks a rule without the defect as well has not found it.
    """
    file, until, found = tree / defect.path, time.monotonic() + seconds, ("", "")
    before = file.read_text("utf-8")
    while not found[0] and time.monotonic() < until:
        file.write_text(defect.apply(before), "utf-8")
        searched = _simulate(tree, "--first", str(first), "--seconds", str(until - time.monotonic()), "--tries", "0", seconds=seconds)
        file.write_text(before, "utf-8")
        if searched.returncode == 0:
            break
        match = _FOUND.search(searched.stdout)
        if match is None:
            return f"its first seed, from {first} on", (searched.stderr.strip().splitlines() or ["the simulation failed"])[-1]
        first = int(match[3]) + 1
        if _simulate(tree, "--seed", match[3], seconds=seconds).returncode == 0:
            found = match[1], match[2]
        else:
            print(f"seed {match[3]} breaks a promise without any planted defect", file=sys.stderr, flush=True)
    return found


def _simulate(tree: Path, *words: str, seconds: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree}/workers"}
    program = [sys.executable, "-m", "tests.simulation", *words]
    return subprocess.run(program, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds + 300, check=False)


if __name__ == "__main__":
    sys.exit(min(main(), 1))
