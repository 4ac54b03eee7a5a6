"""Faults that are planted into a worker and an agent, the check that finds each, and the page that lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolbus.operations.conformance.agent_checks import AGENT
from toolbus.operations.conformance.checks import Table
from toolbus.operations.conformance.worker_checks import WORKER

# The check that finds each, and what the fault is.
WORKER_FAULTS = {
    "no-tools": ("registers", "publishes without one of its tools"),
    "bad-tool": ("registers", "publishes tools with an effect that does not exist"),
    "no-end": ("answers", "forgets the frame with end_of_stream"),
    "two-ends": ("answers", "answers twice"),
    "seq-from-one": ("answers", "counts seq from 1"),
    "wrong-id": ("answers", "answers under another id"),
    "keeps-entries": ("answers", "never acknowledges"),
    "one-run": ("draws-runs", "uses one run token for all calls"),
    "ascii-only": ("keeps-text", "writes letters of other alphabets as question marks"),
    "loses-some": ("answers-many", "forgets a request when many come at once"),
    "runs-unknown": ("refuses-unknown-tools", "answers for tools that it does not have"),
    "any-version": ("refuses-other-versions", "accepts any envelope version"),
    "strict-fields": ("ignores-unknown-fields", "refuses requests with fields that it does not know"),
    "runs-expired": ("leaves-expired-requests", "runs what has expired"),
    "trusts-d": ("survives-hostile-deadlines", "ends at a deadline that is no number"),
    "trusts-requests": ("survives-unreadable-requests", "ends at a request that is no JSON"),
    "makes-streams": ("survives-callers-that-left", "writes to a caller that left with XADD"),
    "answers-nobody": ("answers-nobody", "makes a reply stream of nobody"),
    "fixed-instance": ("draws-instances", "has the same instance id in each process"),
    "no-beat": ("beats", "never beats"),
    "no-again": ("registers-again", "never registers again"),
    "no-nogroup": ("makes-its-group-again", "waits for a group that is gone"),
    "evalsha-only": ("sends-scripts-again", "never sends a script again"),
    "stays": ("leaves", "stays in the registry when it ends"),
    "exit-code": ("leaves", "ends with an exit code that says it failed"),
    "skips-seq": ("streams", "leaves a number out of seq"),
    "all-at-end": ("streams", "sends all text with the end"),
    "splits-utf8": ("cuts-between-characters", "cuts text between bytes"),
    "huge-pieces": ("cuts-between-characters", "sends pieces of any size"),
    "no-start": ("tells-starts", "sends no start frame"),
    "big-ends": ("cuts-large-ends", "sends ends of any size"),
    "big-data": ("cuts-large-data", "sends data of any size in the end"),
    "ignores-cancel": ("cancels", "never hears of cancellations"),
    "goes-on-after-cancel": ("cancels", "sends text after the end of a cancelled call"),
    "no-catch-up": ("catches-up-on-cancellations", "runs what was cancelled before it subscribed"),
    "ignores-deadline": ("keeps-deadlines", "lets calls run beyond their deadline"),
    "ignores-gone": ("stops-for-callers-that-leave", "goes on for callers that have gone"),
    "leaks-slots": ("frees-slots", "loses a slot with each expired call"),
    "no-renew": ("renews", "never renews what it holds"),
    "goes-on-when-lost": ("stops-what-it-lost", "goes on with what a renewal calls lost"),
    "no-fence": ("drops-what-it-lost", "never asks the fence"),
    "unfenced-ends": ("drops-what-it-lost", "asks the fence when it renews, and not when it finishes"),
    "drops-all": ("finishes-each", "drops all calls when one was lost"),
    "writes-lost": ("finishes-each", "answers calls that were lost"),
    "runs-set-back": ("leaves-what-was-delivered", "runs a call twice when the group was set back"),
    "no-reap": ("takes-over", "takes nothing over"),
    "same-attempt": ("takes-over", "calls every attempt the first"),
    "no-count": ("counts-attempts", "runs further attempts without counting them"),
    "reruns-poison": ("buries-poison", "runs a request however often it failed"),
    "buries-silently": ("buries-poison", "sets a request aside without an answer"),
    "other-reason": ("buries-poison", "writes a reason into the dead letter that nobody knows"),
    "suspects-together": ("runs-suspects-alone", "runs suspects beside other calls"),
    "takes-beside-suspects": ("runs-suspects-alone", "takes other calls beside a suspect"),
    "reaps-rarely": ("takes-what-was-handed-back", "looks for what was handed back once in four leases"),
    "reaps-when-told": ("takes-what-was-handed-back", "looks for what was handed back only when it is told"),
    "counts-back": ("takes-what-was-handed-back", "counts the delivery to whoever handed a call back"),
    "no-rescue": ("rescues", "leaves what the group passed over"),
    "no-check": ("restores-its-registration", "never looks whether it is registered"),
    "checks-row-only": ("restores-its-registration", "looks at the service's row alone"),
    "no-pause": ("pauses", "does not know pauses"),
    "pause-by-message-only": ("pauses", "hears of pauses by messages alone"),
    "keeps-reading": ("pauses", "takes what a read brings that waited when the pause came"),
    "refuses-other-revisions": ("hands-over", "answers not_found to calls of other revisions"),
    "no-hand-over": ("hands-over", "hands nothing over to workers of other revisions"),
    "no-slow": ("ends-slow-callers", "never looks whether callers read"),
    "drops-unreadable": ("sets-aside-unreadable-requests", "deletes requests that it can't read"),
    "another-reason": ("sets-aside-unreadable-requests", "writes a reason into the dead letter that nobody knows"),
    "silent-unreadable": ("sets-aside-unreadable-requests", "does not answer requests that it can't read"),
    "cuts-at-end": ("drains", "hands back at once what runs when it is told to end"),
    "takes-while-leaving": ("takes-nothing-while-it-leaves", "takes requests while it leaves"),
    "drops-at-end": ("hands-back", "drops what runs when it is told to end"),
    "counts-no-hand-back": ("hands-back", "hands a call back under the number of the run that it cut off"),
    "no-retire": ("retires", "leaves its consumer and its keys behind"),
    "any-namespace": ("checks-the-namespace", "serves in a namespace of any version"),
    "any-tenant": ("checks-tenants", "runs tools for users who are none of their tenants"),
    "sends-any-length": ("bounds-output", "sends more than 16 MiB"),
    "sends-on": ("sends-in-order", "sends frames of a call before those before them were answered"),
    "forgets-refused": ("sends-in-order", "never sends again what was refused"),
    "no-role": ("leaves-replicas", "never asks for the role of the server"),
    "blocks-beats": ("beats-beside-handlers", "beats in the thread in which handlers run"),
    "runs-abandoned": ("drops-old-requests", "runs requests whose caller left long ago"),
    "retries-uncounted": ("counts-retries", "tries again without counting it"),
    "retries-as-one-run": ("counts-retries", "tries again under the run token of the first attempt"),
    "leaves-its-revision": ("outlives-its-revision", "leaves behind what comes for its revision"),
    "begun-or-not": ("reports-not-begun", "does not say that a cancelled `once` call never began"),
    "no-mark": ("marks-once", "runs `once` calls without a mark"),
    "reruns-once": ("runs-once", "runs `once` calls again"),
    "ignores-run-id": ("asks-for-the-server", "runs `once` calls of another server process"),
    "shared-to-agent": ("answers-shared-calls", "sends frames of shared calls to one agent"),
    "no-extend": ("extends", "does not know of later deadlines"),
    "late-extend": ("extends", "forgets a later deadline that comes before its call"),
    "keeps-keys": ("frees-keys", "keeps the keys of calls that failed"),
    "no-own": ("owns-sessions", "never asks for sessions"),
    "keeps-foreign-sessions": ("passes-sessions-on", "runs calls of sessions that others have"),
    "no-order": ("keeps-order", "runs the calls of a session side by side"),
    "ignores-p": ("waits-for-the-one-before", "does not look for an earlier call elsewhere"),
    "ignores-state": ("reports-lost-states", "does not say that a state was lost"),
    "keeps-sessions": ("gives-sessions-up", "keeps sessions that were closed"),
}

AGENT_FAULTS = {
    "short-id": ("publishes", "draws ids of 32 bits"),
    "wrong-deadline": ("publishes", "gives every call a minute"),
    "one-agent-id": ("draws-agent-ids", "has the same agent id in each process"),
    "no-ttl": ("keeps-its-reply-stream", "makes a reply stream that is never removed"),
    "no-renew": ("renews-its-reply-stream", "never renews its reply stream"),
    "random-flushes": ("counts-flushes", "draws flush numbers at random"),
    "ignores-errors": ("tells-errors", "takes every end for a success"),
    "mixes-calls": ("tells-them-apart", "gives each answer to the call that waits for the longest"),
    "waits-for-absent": ("knows-absent-services", "waits for services that do not exist"),
    "ignores-full": ("sees-full-queues", "waits for calls that the queue had no room for"),
    "trusts-frames": ("survives-unreadable-frames", "ends at frames that are no JSON"),
    "never-gives-up": ("gives-up-in-time", "waits for ever"),
    "evalsha-only": ("sends-scripts-again", "never sends a script again"),
    "leaves-keys": ("leaves", "leaves its keys behind"),
    "tells-at-end": ("streams", "tells the text with the end only"),
    "ignores-texts": ("streams", "does not know `texts`"),
    "keeps-repeats": ("drops-repeats", "takes repeated frames in"),
    "tells-out-of-order": ("waits-for-missing-frames", "tells frames as they come"),
    "mixes-texts": ("follows-new-runs", "puts the text of a new run behind that of the old one"),
    "mixes-runs": ("follows-new-runs", "takes late frames of an old run in"),
    "takes-earlier-attempts": ("ignores-earlier-attempts", "follows earlier attempts"),
    "ignores-epochs": ("ignores-earlier-attempts", "compares attempts, and not their epochs"),
    "ignores-resets": ("takes-resets", "does not know `reset`"),
    "ignores-output": ("joins-long-output", "does not know `output`"),
    "skips-other-kinds": ("counts-other-kinds", "counts frames of other kinds as missing"),
    "tells-every-end": ("ends-once", "tells an end for each that comes"),
    "cancels-silently": ("cancels", "tells nobody of cancelled calls"),
    "abandons": ("cancels-at-its-timeout", "tells nobody of calls whose time is up"),
    "no-reason": ("cancels-at-its-timeout", "does not say what error the caller has"),
    "never-trims": ("trims", "never trims its reply stream"),
    "resets-always": ("hides-equal-runs", "tells a reset with each new run"),
    "waits-for-gaps": ("tells-gaps", "waits for missing frames until the call's time is up"),
    "waits-for-refused": ("waits-for-no-refused-frames", "waits for frames that were refused"),
    "ignores-malformed": ("ends-at-malformed-frames", "waits when an end can't be read"),
    "no-remake": ("makes-its-stream-again", "never makes its reply stream again"),
    "no-registry": ("reads-the-registry", "never reads the registry"),
    "no-log": ("follows-the-log", "never reads the log"),
    "ignores-gaps": ("sees-gaps-in-the-log", "does not see that entries of the log are missing"),
    "ignores-token": ("looks-at-the-token", "never looks at the registry's token"),
    "all-or-nothing": ("leaves-out-unreadable-tools", "leaves out a publication with one wrong tool"),
    "takes-wrong-tools": ("leaves-out-unreadable-tools", "calls tools with an effect that does not exist"),
    "new-numbers": ("publishes-once", "draws a new flush number for each retry"),
    "gives-up-on-cuts": ("publishes-once", "ends calls whose flush a lost connection left open"),
    "skips-after-cut": ("reads-on", "goes on at the newest entry after a lost connection"),
    "ends-with-connections": ("reconnects", "ends with its connections"),
    "fails-on-notyet": ("sends-refused-flushes-again", "takes NOTYET for an error"),
    "fails-on-loading": ("sends-refused-commands-again", "takes a refusal for an error"),
    "any-namespace": ("checks-the-namespace", "calls in a namespace of any version"),
    "unnamed-flushes": ("names-open-flushes", "does not name the flush that is unanswered"),
    "no-pins": ("keeps-pins", "never reads pins"),
    "any-form": ("keeps-pins", "calls another form of a tool than the one that was approved"),
    "ignores-unreadable-pins": ("keeps-pins", "takes a pin that it can't read for none"),
    "any-arguments": ("checks-arguments", "publishes arguments that the tool does not take"),
    "any-user": ("hides-tenants", "calls tools for users who are none of their tenants"),
    "keeps-sessions-open": ("closes-sessions", "tells nobody that a session is closed"),
    "ends-with-another": ("begins-joined-calls-again", "ends a call that it joined when another caller cancels it"),
    "time-runs-on": ("waits-for-people", "lets the caller's time go on while a handler waits for a person"),
    "no-server": ("publishes-once-work", "does not say which server process is to know of `once` calls"),
    "once-as-others": ("ends-with-unknown-outcomes", "says of `once` calls that may have run that they did not"),
    "no-share": ("shares", "publishes calls with one key apart"),
    "joins-at-end": ("shares", "does not tell who joins a call what came before"),
    "cancels-for-all": ("leaves-shared-calls", "cancels a call that others wait for"),
    "no-order": ("orders-sessions", "publishes the calls of sessions without their order"),
    "forgets-states": ("remembers-states", "forgets the tokens of states"),
    "leaves-silently": ("announces-its-end", "tells nobody that it leaves"),
    "no-sweep": ("sweeps", "leaves dead workers in the registry"),
}

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
_MARK = "\n## Workers\n"


def _rows(table: Table[Any], faults: dict[str, tuple[str, str]]) -> str:
    lines = ["| Number | Level | Requirement | Check | Faults that it finds |", "|---|---|---|---|---|"]
    for each in sorted(table.requirements, key=lambda each: int(each.id[1:])):
        found = "; ".join(f"`{name}`: {about}" for name, (check, about) in faults.items() if check == each.name)
        check = f"`{each.name}`" if each.run else f"not checked: {each.unchecked}"
        lines.append(f"| {each.id} | {each.level} | {each.meaning} | {check} | {found} |")
    return "\n".join(lines)


def page() -> str:
    """Return the page of requirements: what stands at its beginning, and the tables as the code has them."""
    beginning, _, _ = PAGE.read_text("utf-8").partition(_MARK)
    workers, agents = _rows(WORKER, WORKER_FAULTS), _rows(AGENT, AGENT_FAULTS)
    return f"{beginning}{_MARK}\n{workers}\n\n## Agents\n\n{agents}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
