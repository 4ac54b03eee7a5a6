"""Every key and channel name. One hash tag per namespace, so that every script stays in one slot."""

from __future__ import annotations

from collections.abc import Callable

from toolbus.bus.values.canonical import digest
from toolbus.bus.values.naming import DOCUMENT_KINDS


def session_digest(user: str, session: str) -> str:
    """Return what stands for a user's session, conversation or task in key names: the same id of another user is another key."""
    return digest((user, session))


class Keys:
    """The key names of one namespace."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.prefix = f"tb:{{{namespace}}}:"
        self.live = f"{self.prefix}live"
        self.pulse = f"{self.prefix}pulse"
        self.log = f"{self.prefix}log"
        self.services = f"{self.prefix}reg:services"
        self.names = f"{self.prefix}reg:names"
        self.meta = f"{self.prefix}reg:meta"
        self.items = f"{self.prefix}reg:items"
        # What hosts run, and what people decide, stands apart: the server's rights end at keys.
        self.recorded = f"{self.prefix}reg:recorded"
        self.pending = f"{self.prefix}reg:pending"
        self.groups = f"{self.prefix}reg:groups"
        self.pins = f"{self.prefix}reg:pins"
        self._tables: dict[str, str] = {kind: getattr(self, about.table) for kind, about in DOCUMENT_KINDS.items()}
        self.paused = f"{self.prefix}reg:paused"
        self.confirmations = f"{self.prefix}confirms"
        self.confirmed = f"{self.prefix}confirmed"
        self.conversations = f"{self.prefix}convs"
        self.recent = f"{self.prefix}recent"
        self.ended = f"{self.prefix}ended"
        self.format = f"{self.prefix}format"
        self.creations_queued = f"{self.prefix}creations:queued"
        self.creations_running = f"{self.prefix}creations:running"
        self.creations_ended = f"{self.prefix}creations:ended"
        self.creations_told = f"{self.prefix}creations"
        # No queue has an empty name.
        self.wake_all = f"{self.prefix}wake:"
        self.tokens = f"{self.prefix}tokens"
        self.hosts = f"{self.prefix}hosts"
        # Tells of a messenger's connector while it lives.
        self.messenger = f"{self.prefix}messenger"
        self.queue_prefix = f"{self.prefix}q:"
        self.call_prefix = f"{self.prefix}call:"
        self.reply_prefix = f"{self.prefix}rsp:"
        self._name_families()

    def _name_families(self) -> None:
        """Make the functions that return the key of one service, agent, call or the like, by its name, id or digest."""
        # A service's request stream.
        self.queue = self._of("q")
        # A stream's fence: group generation, a counter for each consumer that loses entries, the position of reaps.
        self.fence = self._of("fence")
        # The calls that were cancelled after a worker had taken them, by deadline.
        self.cancelled = self._of("cancelled")
        # The channel on which a service's workers hear of cancellations, pauses, hand-backs and the ends of sessions.
        self.wake = self._of("wake")
        # A service's dead letters.
        self.dead_letters = self._of("dlq")
        # All replies to one agent process.
        self.replies = self._of("rsp")
        # The verdicts of an agent's latest publish flushes.
        self.flushes = self._of("pub")
        # The replies to one call that carries an idempotency key; everyone with the key reads them.
        self.call = self._of("call")
        # An idempotency key's record: its call, with the callers that wait.
        self.shared = self._of("key")
        # A queue's order of sessions: the calls that were published last in each.
        self.order = self._of("order")
        # The mark that a ``once`` handler began.
        self.started = self._of("started")
        # A request that waits for a confirmation, or its recent answer.
        self.confirmation = self._of("confirm")
        # An agent's conversation: its records, and which process continues it.
        self.conversation = self._of("conv")
        # A coding agent's task: its spec, state and log.
        self.creation = self._of("creation")
        # The results of a session's earlier calls.
        self.results = self._of("results")
        # A task's record: where its call is; the digest stands for its user and its id.
        self.task = self._of("task")
        # An MCP client's session; the digest stands for its user and its id.
        self.mcp_session = self._of("mcp")
        # The list of a user's MCP sessions.
        self.mcp_sessions = self._of("mcps")
        # A request in an MCP session that takes long; the digest stands for the session and the request's id.
        self.mcp_request = self._of("mcpreq")
        # A host's routes: where each recorded tool runs that it serves.
        self.routes = self._of("routes")
        # The host that serves a tool alone.
        self.single = self._of("single")
        # The latest output of a recorded tool's programs.
        self.output = self._of("output")
        # A rate: how much of it is used.
        self.rate = self._of("rate")
        # A quota: how much of it is used in its current period.
        self.quota = self._of("quota")
        # One day's usage: the cost of each user's calls of each tool.
        self.usage = self._of("usage")
        # The answers to one who asked the workers for statistics.
        self.answers = self._of("stats")
        # A service's live instances and the publications they serve.
        self.instances = self._of("reg:s")

    def _of(self, family: str) -> Callable[[str], str]:
        return f"{self.prefix}{family}:".__add__

    def tables(self) -> tuple[str, ...]:
        """Return the keys of the registry's documents."""
        return tuple(dict.fromkeys(self._tables.values()))

    def table(self, document: str) -> str:
        """Return the key in which a document of the registry stands (``tool/x``, ``pin/x``, ``recorded/x``)."""
        return self._tables.get(document.partition("/")[0], self.items)

    def shared_by_all(self) -> dict[str, str]:
        """Return the keys of the whole namespace, and the type of each."""
        hashes = dict.fromkeys((self.services, self.names, self.meta, *self.tables(), self.tokens, self.format), "hash")
        others = {self.live: "zset", self.pulse: "string", self.log: "stream", self.paused: "set", self.confirmations: "zset"}
        others |= {self.conversations: "zset", self.recent: "stream", self.ended: "stream", self.hosts: "zset"}
        others |= dict.fromkeys((self.creations_queued, self.creations_running, self.creations_ended), "zset")
        return hashes | others | {self.messenger: "string"}

    def of_workers(self) -> dict[str, str]:
        """Return those of them that workers use."""
        others = {self.tokens, self.conversations, self.messenger, self.hosts, self.format}
        others |= {self.creations_queued, self.creations_running, self.creations_ended, *self.tables()} - {self.items}
        return {key: kind for key, kind in self.shared_by_all().items() if key not in others}

    def of_service(self, service: str, queue: str) -> dict[str, str]:
        """Return the keys of one service, and the type of each."""
        streams = dict.fromkeys((self.queue(queue), self.dead_letters(queue)), "stream")
        return streams | {self.fence(queue): "hash", self.cancelled(queue): "zset", self.instances(service): "hash"}

    def of_agent(self, agent: str) -> dict[str, str]:
        """Return the keys of one agent process, and the type of each."""
        return {self.replies(agent): "stream", self.flushes(agent): "hash"}

    def session(self, queue: str, digest: str) -> str:
        """Return the key of a session's owner, for a service whose calls of one session go to one worker."""
        return f"{self.prefix}sess:{queue}:{digest}"

    def snapshot(self, queue: str, digest: str) -> str:
        """Return the key of the snapshot of a session's state."""
        return f"{self.prefix}snap:{queue}:{digest}"

    def pause(self, queue: str, entry: str) -> str:
        """Return the key of the note of a request's later deadline, whose handler has waited for a confirmation."""
        return f"{self.prefix}pause:{queue}:{entry}"
