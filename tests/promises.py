"""Break each promise of docs/explanation/reliability.md and see that its test fails: ``python -m tests.promises [NAME ...]``.

Here are, for each promise, its test, and a small change of the product that breaks it.
"""

from __future__ import annotations

import os
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


# The test of each promise, which fails when it is broken.
TESTS = {
    "Every call ends": "tests/client/test_call_ends.py::test_a_call_expires",
    "One end": "tests/client/test_assembly.py::test_nothing_is_heard_after_the_end",
    "A stream is whole": "tests/client/test_assembly.py::test_a_gap_that_closes_is_not_noticed",
    "Runs and attempts": "tests/client/test_assembly_reruns.py::test_a_rerun_in_the_same_attempt_bans_the_run_before",
    "The fence": "tests/broker/test_finish_script.py::test_when_something_was_moved_nothing_is_done",
    "Leases": "tests/broker/test_leases.py::test_a_late_answer_leaves_less_time_until_the_next_beat",
    "Leases: lost ones": "tests/broker/test_steps.py::test_renewals_are_bounded_and_tell_what_is_lost",
    "Leases: a worker's own": "tests/broker/test_reap.py::test_who_has_no_lease_takes_nothing",
    "Reaping": "tests/broker/test_recover.py::test_what_there_is_no_slot_for_is_postponed",
    "The pulse": "tests/broker/test_reap.py::test_nothing_is_taken_when_the_server_has_not_heard_the_living",
    "Sweeping": "tests/broker/test_steps.py::test_after_any_connect_an_agent_judges_no_lease_for_one_lease",
    "Poison": "tests/worker/unit/test_taking.py::test_a_suspect_runs_alone",
    "Poison: dead letters": "tests/worker/unit/test_starting.py::test_a_request_with_too_many_attempts_becomes_a_dead_letter",
    "Draining": "tests/worker/unit/test_leaving.py::test_a_drain_lets_calls_end",
    "Hand-back": "tests/worker/unit/test_leaving.py::test_a_drain_hands_back_what_does_not_end_in_time",
    "Hand-back: uncounted": "tests/broker/test_reap.py::test_what_leaving_workers_cut_off_is_no_suspect",
    "Sessions that stay at one worker": "tests/faults/test_sessions.py::test_a_call_is_handed_to_the_sessions_owner_alone",
    "Sessions that stay at one worker: after a pause": "tests/broker/test_ownership.py::test_a_lease_that_lapsed_makes_sessions_uncertain",
    "Order in sessions": "tests/test_contract_order.py::test_calls_of_a_session_run_in_the_order_of_their_publication",
    "Order in sessions: over kills": "tests/broker/test_finish.py"
    "::test_calls_in_the_order_of_sessions_are_told_of_when_their_ends_are_accepted",
    "Lost states": "tests/test_contract_lost_sessions.py::test_calls_that_were_published_before_the_loss_was_told_do_not_run",
    "Snapshots of sessions": "tests/broker/test_take_script.py::test_who_has_lost_a_request_or_its_session_keeps_no_snapshot",
    "Snapshots of sessions: calls in them": "tests/test_contract_snapshots.py::test_a_call_that_is_in_the_snapshot_does_not_run_again",
    "Ends of sessions": "tests/broker/test_recover.py::test_the_sessions_of_dead_callers_end_some_at_a_time",
    "Numbered flushes": "tests/broker/test_publish_script.py::test_a_flush_that_is_written_again_gets_the_same_verdicts",
    "Comparison": "tests/client/test_assembly_reruns.py::test_a_different_or_shorter_rerun_resets",
    "Frames have no holes": "tests/broker/test_link.py::test_nothing_overtakes_what_was_refused",
    "Scripts do all or nothing": "tests/faults/test_migrating.py::test_a_script_does_everything_or_changes_nothing",
    "`once`": "tests/broker/test_take_script.py::test_once_work_begins_once",
    "`once`: at one server": "tests/broker/test_publisher.py::test_scripts_are_bounded",
    "`once`: after a restart": "tests/broker/test_begin.py::test_another_server_process_starts_no_once_work",
    "`once`: past its deadline": "tests/client/test_call_ends.py::test_a_once_call_is_inquired_about",
    "Mastership": "tests/broker/test_mastership.py::test_a_majority_makes_it_sure",
    "Callers that are gone": "tests/broker/test_recover.py::test_calls_of_dead_callers_end",
    "Callers that do not read": "tests/broker/test_slow_callers.py::test_a_caller_that_reads_too_slowly_is_told_of",
    "Clocks": "tests/broker/test_reap.py::test_a_lease_that_ends_too_far_ahead_was_written_before_the_clock_was_set_back",
    "Retries": "tests/worker/unit/test_retries.py::test_a_failed_run_is_run_again_after_its_delay",
    "Finding a call again": "tests/broker/test_publish_script.py::test_calls_with_one_key_are_one_call",
    "Connections": "tests/broker/test_link.py::test_what_may_be_repeated_is_written_again_and_the_rest_is_told",
    "Connections: refused commands": "tests/broker/test_link.py::test_nothing_overtakes_what_was_refused",
    "Failover": "tests/faults/test_failover.py::test_once_work_that_no_replica_confirms_does_not_run",
}


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
    "A stream is whole": Mutant("client/calls/assembly.py", "if frame.seq > self.run.next and not _ends_without_them(frame):", "if False:"),
    "Runs and attempts": Mutant("client/calls/assembly.py", "self._banned.append(self.run.token)", "pass"),
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
        "broker/take/sessions.py", "return asked >= since and self.clock.monotonic() < until", "return True"
    ),
    "Order in sessions": Mutant("worker/slots.py", "if request.ordered and not self._has_turn(delivery):", "if False:"),
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
    "`once`: after a restart": Mutant("broker/worker.py", 'return "unsure"', "pass"),
    "`once`: past its deadline": Mutant("client/calls/call.py", 'self.request is not None and self.request.effect == "once":', "False:"),
    "Mastership": Mutant(
        "broker/transport/mastership.py", "for report in reports) >= self._discovery.majority", "for report in reports) >= 1"
    ),
    "Callers that are gone": Mutant(
        "broker/lease/recover.py", 'self._stop(replies, ErrorInfo("cancelled", message="the calling agent is gone"))', "pass"
    ),
    "Callers that do not read": Mutant(
        "broker/replies/finish.py", "most = _MOST_KEPT * self.settings.reply_limit if kept else self.settings.reply_limit", "most = 10**9"
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
    names = sys.argv[1:] or list(MUTANTS)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        hidden = shutil.ignore_patterns(".*", "__pycache__", "node_modules", "build", "dist", "mutants")
        shutil.copytree(ROOT, tree, ignore=hidden)
        if failure := failing(tree, [TESTS[name] for name in names]):
            print(f"without any change: {failure}")  # noqa: T201
            return 1
        survived = 0
        for name in names:
            file = tree / MUTANTS[name].path
            before = file.read_text("utf-8")
            file.write_text(MUTANTS[name].apply(before), "utf-8")
            failure = failing(tree, [TESTS[name]])
            file.write_text(before, "utf-8")
            survived += not failure
            print(f"{name}: {failure or 'SURVIVED'}", flush=True)  # noqa: T201
    print(f"{len(names) - survived} of {len(names)} killed")  # noqa: T201
    return min(survived, 1)


if __name__ == "__main__":
    sys.exit(main())
