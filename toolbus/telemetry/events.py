"""Log events: every name of them, and the logger that passes them on to the application's own logging."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import structlog
from opentelemetry import trace

NAME = "toolbus"

# Every event that is logged. Arguments, results and secrets are never among the fields.
EVENTS: Mapping[str, str] = {
    "agent.close_incomplete": "the agent could not remove its reply stream; its TTL will",
    "agent.resync_failed": "the agent could not read its replies and the registry afresh; it is tried again",
    "bury.refused": "the server refused to set a request aside as a dead letter",
    "call.abandoned": "a queued call was not run, because its caller is gone",
    "call.alone": "a call that may have killed its workers runs while nothing else does",
    "call.crashed": "a handler raised; the traceback follows",
    "call.failed": "a call was answered with an error",
    "call.finished": "a call was answered",
    "call.lost": "another worker has this call now",
    "cancel.done": "a call was cancelled; `outcome` says how far it had come",
    "cancel.failed": "a call could not be cancelled",
    "cancelled.unread": "the set of cancelled calls could not be read; it is read again",
    "definition.name_refused": "two tools have one name for models; the first keeps it, the other is left out of definitions",
    "definition.set_aside": "a tool's schema can't be carried by a format; the tool is left out of its definitions",
    "descriptor.mended": "the parameters of a tool were no JSON Schema; what was meant is published, as the changes say",
    "descriptor.invalid": "a descriptor in the registry is invalid and is left out; the error names its field",
    "confirmation.asked": "a call waits for a person's permission",
    "confirmation.not_shared": "other processes could not be asked about a call; the confirmer here is",
    "confirmation.settled": "a person's answer came, or nobody answered in time; `outcome` is `allowed` or why not",
    "confirmation.unreadable": "a confirmation request on the server can't be read and is left out",
    "confirmation.failed": "asking a person about a call raised, so the call was not allowed; the traceback follows",
    "executions.dropped": "executions were not recorded, because too many waited or the store refused them",
    "executions.torn_line": "the end of a log of executions was cut off by a crash and is left out",
    "execution.bug": "a bug: making a call for a model raised; the traceback follows",
    "execution.crashed": "a call for a model ended because its handler raised",
    "execution.failed": "a call for a model ended with an error",
    "execution.finished": "a call for a model succeeded",
    "execution.started": "an executor began a call for a model",
    "finish.refused": "the server refused the answers of a batch of calls",
    "frame.malformed": "a response frame can't be read and is left out",
    "frames.refused": "the server refused frames for one agent",
    "isolation.nursery_lost": "the process that starts isolated tools' processes has ended, and they with it; the next call starts another",
    "lease.beat_failed": "leases could not be renewed; it is tried again at once",
    "link.callback_failed": "a bug: a reply's callback raised",
    "link.lost": "the connection to the server ended; it is being restored",
    "link.protocol_error": "the server sent something that is not RESP",
    "link.reconnect_failed": "an attempt to reconnect failed; another follows after `retry_in` seconds",
    "link.refused": "the server refused commands because it is a replica now, is loading, or lost the slot; another connection is made",
    "link.restored": "the connection is back, unanswered writes were sent again",
    "link.server_restarted": "the server is another one than before, or was restarted",
    "link.side_failed": "the cluster node that a slot moves to can't be reached; the commands are sent again",
    "link.subscribe_refused": "the server refused a subscription: cancellations and hand-backs are noticed late; permit the channel",
    "link.stalled": "the server has not answered for too long; the connection is given up",
    "middleware.failed": "a middleware around a call raised; the traceback follows",
    "nanoclaw.left_out": "ready-made tools of the nanoClaw facade are not installed and are left out",
    "nested.unavailable": "the server could not be reached for a handler's nested call; it is tried again",
    "observer.failed": "an observer of executions raised; the traceback follows",
    "registry.unreadable": "a service's entry in the registry can't be read and is left out",
    "replies.read_failed": "the reply stream could not be read; it is tried again",
    "request.buried": "a request was set aside as a dead letter",
    "replies.recreated": "this agent's reply stream was gone and was made anew",
    "request.malformed": "a request can't be read; it was answered or set aside",
    "requests.group_missing": "a request stream or its group is gone; the service registers again",
    "requests.recovered": "requests of a worker that died were taken over",
    "requests.taken_back": "requests that a draining worker handed back were taken",
    "requests.take_failed": "requests could not be taken; it is tried again",
    "server.evicts": "the server may evict keys when its memory is full; an evicted key is a lost call",
    "service.cleanup_failed": "a service's cleanup() raised; the traceback follows",
    "session.cleanup_failed": "a service's cleanup(session) raised or was not done in time",
    "session.ended": "a session ended at this worker; `reason` says why",
    "session.handed_over": "a call was given to the worker that has its session",
    "session.untold": "workers could not be told that sessions are over; they end there when they are idle",
    "sessions.unsettled": "the server did not say which workers have some calls' sessions; the calls are taken anew after a lease",
    "retry.failed": "a failed call could not be kept for another attempt; another worker takes it over",
    "run.bug": "a bug: running a handler raised outside of the handler",
    "service.paused": "the service takes no more requests until it is resumed",
    "service.refused": "the registry refused a service whose name belongs to another owner",
    "service.register_failed": "a service could not register; it is tried again",
    "service.registered": "a service and its tools are callable",
    "service.registered_again": "a service was missing from the registry and is back",
    "service.resumed": "the service takes requests again",
    "trustgraph.invoke_failed": "a tool service of the TrustGraph facade raised; the traceback follows",
    "trustgraph.unavailable": "the server can't be reached to launch a tool service; it is tried again",
    "toolkit.action_unknown": "an edge was left out, because the action that it was to connect is not in the toolkit graph",
    "toolkit.left_out": "a published preset can't be read and is left out of the toolkit graph; the error names the place",
    "toolkit.tool_unreachable": "a tool was taken out of the toolkit graph, because nothing leads to it",
    "toolkit.group_unreachable": "no action calls this group of tools, so it is never recommended",
    "tool.name_taken": "two services offer a tool of this name; the first keeps it",
    "tool.left_out": "a tool has a parameter for a service that nobody provides, and is not served; see `toolbus.provide`",
    "tools.refused": "some tools' names belong to another owner; the rest are registered",
    "tools.undeclared_effect": "tools that don't say what a second execution would do may be re-run after a crash",
    "supervisor.killing": "a worker process did not drain within its grace period and is killed",
    "supervisor.reloading": "a file changed; the worker processes are restarted",
    "supervisor.restarting": "a worker process ended and is started again",
    "upkeep.failed": "reaping or sweeping failed; it is tried again in the next turn",
    "usage.uncounted": "the server refused to count what calls cost",
    "worker.close_incomplete": "the worker could not sign off; its leases will run out",
    "worker.draining": "the worker takes nothing more and finishes what runs",
    "worker.grace_ended": "the grace period is over; what still runs is handed to other workers",
    "worker.hand_back_failed": "unanswered calls could not be handed back; they are taken over when their leases end",
    "worker.handed_back": "unanswered calls were given to other workers",
    "worker.killed": "a second signal ended the worker at once",
    "worker.loop_blocked": "a handler blocks the event loop; the stack shows where",
    "worker.stopped": "the worker has stopped",
    "worker.stuck": "half of the slots are held by handlers that can't be stopped; the worker drains so that it can be replaced",
    "worker.unregister_failed": "the worker could not take its services out of the registry; their leases will run out",
}


logger = logging.getLogger(NAME)
"""Where events go; what is below it is the application's choice."""

logger.addHandler(logging.NullHandler())

logs = logger.isEnabledFor
"""Whether a level (``logging.DEBUG``, …) is logged; cheap enough for the hot path."""

_PASSED_ON = ("exc_info", "stack_info", "stacklevel")
FIELDS = "toolbus"
"""The attribute of a LogRecord that carries an event's fields."""


def _add_trace(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


def _to_logging(_logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """The last processor: a line for whatever handlers the application has, and the fields for those that know them."""
    passed = {key: event.pop(key) for key in _PASSED_ON if key in event}
    if method == "exception":
        passed.setdefault("exc_info", True)
    name = event.pop("event")
    line = " ".join([str(name), *(f"{key}={word(value)}" for key, value in event.items())])
    return {"msg": line, "extra": {FIELDS: {"event": name, **event}}, "stacklevel": 4, **passed}


def word(value: object) -> str:
    """A value as one word of a log line: quoted when it is not one, so that it can't forge fields or lines."""
    text = value if isinstance(value, str) else str(value)
    plain = text != "" and text.isprintable() and not any(character in text for character in ' "=')
    return text if plain else json.dumps(text)


log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logger,
    processors=[structlog.stdlib.filter_by_level, _add_trace, _to_logging],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
    cache_logger_on_first_use=True,
).bind()
"""``log.info("call.finished", tool=…, id=…, ms=…)``; where it goes is the application's choice."""
