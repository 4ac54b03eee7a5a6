"""Break each promise of docs/explanation/reliability.md and see that its test fails: ``python -m tests.promises [NAME ...]``.

The page names the tests. Here is, for each promise, a small change of the product that breaks it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/explanation/reliability.md"

# Of one test, and of the tests of one promise. Most end within seconds; a change may also make a wait or a loop endless.
_MOST_OF_ONE, _MOST_SECONDS = 60, 600
_ROW = re.compile(r"^\| ([^|]+) \| (`tests/[^|]+`) \|$", re.MULTILINE)


class Mutant(NamedTuple):
    """A change of one file below ``toolbus/bus``: ``old``, which is in it once, becomes ``new``."""

    file: str
    old: str
    new: str = ""

    @property
    def path(self) -> str:
        """The file's path in the repository."""
        return f"toolbus/bus/{self.file}"

    def apply(self, source: str) -> str:
        """Return the changed text of the file.

        Raises:
            ValueError: what is to be replaced is not in it exactly once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.old!r} is in {self.path} {source.count(self.old)} times")
        return source.replace(self.old, self.new)


_LUA = "broker/server/lua"

MUTANTS = {
    "Every call ends": Mutant(
        "client/calls/call.py",
        "            self._host.inquire(self, error)\n        else:\n            self.give_up(error)",
        "            self._host.inquire(self, error)",
    ),
    "One end": Mutant("client/calls/assembly.py", "if self.finished or frame.run in self._banned:", "if frame.run in self._banned:"),
    "A stream is whole": Mutant("client/calls/assembly.py", "if frame.seq > self._next and not _ends_without_them(frame):", "if False:"),
    "Runs and attempts": Mutant("client/calls/assembly.py", "self._banned.append(self._run)", "pass"),
    "The fence": Mutant(
        f"{_LUA}/finish/finish.lua",
        "if not is_unmoved(generation, counter, ARGV[2], ARGV[3]) then return {generation, counter} end",
    ),
    "Leases": Mutant("broker/lease/thread.py", "return max(0.0, asked + lease / 3 - now)", "return lease / 3"),
    "Leases: lost ones": Mutant(
        "broker/lease/thread.py", "lost = [delivery for delivery in part if delivery.entry in missing]", "lost = []"
    ),
    "Leases: a worker's own": Mutant(
        f"{_LUA}/recover/reap.lua", "if (lease_end_of(KEYS[3], fence, ARGV[2], me, now) or 0) < now then return answer() end"
    ),
    "Reaping": Mutant(
        "broker/lease/recover.py", "            self.postponed[stream] = everything\n            return False", "            return False"
    ),
    "The pulse": Mutant(
        f"{_LUA}/recover/reap.lua", "local judged = not is_silence(last, now, lease) and now >= quiet", "local judged = true"
    ),
    "Sweeping": Mutant("broker/lease/clock.py", "self._quiet_until = self.monotonic() + self._lease", "pass"),
    "Poison": Mutant("worker/slots.py", "if tries >= self._alone_from and not alone:", "if False:"),
    "Poison: dead letters": Mutant("worker/slots.py", "elif tries > self.settings.max_deliveries:", "elif False:"),
    "Draining": Mutant("worker/slots.py", "while self._runs and (left := deadline - self.clock()) > 0:", "while (left := 0):"),
    "Hand-back": Mutant(
        "worker/slots.py", "hand_back(self.broker, [*interrupted, *self._waiting.clear()])", "hand_back(self.broker, self._waiting.clear())"
    ),
    "Hand-back: uncounted": Mutant(f"{_LUA}/recover/reap.lua", "or 0) >= alone", "or 0) * 0 >= alone"),
    "Sessions that stay at one worker": Mutant(
        f"{_LUA}/sessions/own.lua", "elseif owner == me or not owner or not is_live(owner) then", "elseif true then"
    ),
    "Sessions that stay at one worker: after a pause": Mutant(
        "broker/take/sessions.py", "return asked >= since and self.monotonic() < until", "return True"
    ),
    "Order in sessions": Mutant("worker/slots.py", "if request.ordered and not self._lines.admits(delivery):", "if False:"),
    "Order in sessions: over kills": Mutant("broker/replies/finish.py", "ended=index not in gone_elsewhere", "ended=True"),
    "Lost states": Mutant(
        "worker/session_state.py", 'if not self.is_lost_for(delivery) or self.served.session_lost == "restart":', "if True:"
    ),
    "Snapshots of sessions": Mutant(f"{_LUA}/sessions/save.lua", "if not may_keep() then return 0 end"),
    "Snapshots of sessions: calls in them": Mutant("worker/session_state.py", "if delivery.request.id == self._included:", "if False:"),
    "Ends of sessions": Mutant("broker/lease/recover.py", "self.listener.sessions.gone({replies[key] for key in gone})", "pass"),
    "Numbered flushes": Mutant(f"{_LUA}/publish/publish.lua", "if memo[1] then", "if false then"),
    "Comparison": Mutant("client/calls/assembly.py", "events.append(Reset(self.attempt))", "pass"),
    "Frames have no holes": Mutant(
        "broker/transport/link.py", "        self._refusals += 1\n        self._held_up = True", "        self._refusals += 1"
    ),
    "Scripts do all or nothing": Mutant(
        f"{_LUA}/dead_letters/bury.lua",
        "local frees = KEYS[4] and",
        "if KEYS[4] then redis.call('DEL', KEYS[4]) end\nlocal frees = KEYS[4] and",
    ),
    "`once`": Mutant(f"{_LUA}/take/start.lua", "run, 'NX', 'PX', ttl)", "run, 'PX', ttl)"),
    "`once`: at one server": Mutant("broker/publish.py", "same_server=flush.once", "same_server=False"),
    "`once`: after a restart": Mutant(
        "broker/worker.py", "if not accepted_here(self.link, delivery.server) and await may_have_forgotten(self.link):", "if False:"
    ),
    "`once`: past its deadline": Mutant("client/calls/call.py", 'self.request is not None and self.request.effect == "once":', "False:"),
    "Mastership": Mutant(
        "broker/transport/mastership.py", "for report in reports) >= self._discovery.majority", "for report in reports) >= 1"
    ),
    "Callers that are gone": Mutant(
        "broker/lease/recover.py", 'self._stop(replies, ErrorInfo("cancelled", message="the calling agent is gone"))', "pass"
    ),
    "Callers that do not read": Mutant(
        "broker/replies/finish.py", "most = _MOST_KEPT * self._reply_limit if kept else self._reply_limit", "most = 10**9"
    ),
    "Clocks": Mutant(f"{_LUA}/lease/_lease.lua", "if longest > 0 and tonumber(ends) > now + 2 * longest then return now - 1, true end"),
    "Retries": Mutant("worker/service.py", "return attempt < min(self.attempts, most)", "return False"),
    "Finding a call again": Mutant(f"{_LUA}/publish/share.lua", "if answered == 1 then", "if false then"),
    "Connections": Mutant(
        "broker/transport/link.py",
        "command._replace(lost=True) for command in written if command.repeatable and not self._closing",
        "command for command in written",
    ),
    "Connections: refused commands": Mutant(
        "broker/transport/link.py", "self._hold(Refused(command._replace(packed=packed)))", "return False"
    ),
    "Failover": Mutant(
        "broker/transport/mastership.py", "enough = same and isinstance(reply, int) and reply >= self._replicas", "enough = True"
    ),
}


def named_tests() -> dict[str, list[str]]:
    """Return the tests that the page names, by promise."""
    return {found[1]: re.findall(r"`([^`]+)`", found[2]) for found in _ROW.finditer(PAGE.read_text("utf-8"))}


def failing(tree: Path, tests: list[str]) -> str:
    """Run tests in a copy of the repository; return how they failed, or nothing when they passed."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:langsmith_plugin",
        "-n",
        "0",
        f"--timeout={_MOST_OF_ONE}",
        *tests,
    ]
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree}/workers"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {_MOST_SECONDS} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    return "" if done.returncode == 0 else next(iter(lines), f"pytest ended with {done.returncode}")


def main() -> int:
    """Break the promises that are named, or all; return 0 when the tests of each pass without the change and fail with it."""
    names, tests = sys.argv[1:] or list(MUTANTS), named_tests()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        hidden = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist", "mutants")
        shutil.copytree(ROOT, tree, ignore=hidden)
        if failure := failing(tree, [test for name in names for test in tests[name]]):
            print(f"without any change: {failure}")  # noqa: T201
            return 1
        survived = 0
        for name in names:
            file = tree / MUTANTS[name].path
            before = file.read_text("utf-8")
            file.write_text(MUTANTS[name].apply(before), "utf-8")
            failure = failing(tree, tests[name])
            file.write_text(before, "utf-8")
            survived += not failure
            print(f"{name}: {failure or 'SURVIVED'}", flush=True)  # noqa: T201
    print(f"{len(names) - survived} of {len(names)} killed")  # noqa: T201
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
