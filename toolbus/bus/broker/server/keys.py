"""Every key and channel name. One hash tag per namespace, so that every script stays in one slot."""

from __future__ import annotations

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

    def queue(self, name: str) -> str:
        """Return the key of a service's request stream."""
        return f"{self.queue_prefix}{name}"

    def fence(self, name: str) -> str:
        """Return the key of a stream's fence: group generation, a counter for each consumer that loses entries, the position of reaps."""
        return f"{self.prefix}fence:{name}"

    def cancelled(self, name: str) -> str:
        """Return the key of the calls that were cancelled after a worker had taken them, by deadline."""
        return f"{self.prefix}cancelled:{name}"

    def wake(self, name: str) -> str:
        """Return the channel on which a service's workers hear of cancellations, pauses, hand-backs and the ends of sessions."""
        return f"{self.prefix}wake:{name}"

    def dead_letters(self, name: str) -> str:
        """Return the key of a service's dead letters."""
        return f"{self.prefix}dlq:{name}"

    def replies(self, agent: str) -> str:
        """Return the key of all replies to one agent process."""
        return f"{self.reply_prefix}{agent}"

    def flushes(self, agent: str) -> str:
        """Return the key of the verdicts of an agent's latest publish flushes."""
        return f"{self.prefix}pub:{agent}"

    def call(self, call: str) -> str:
        """Return the key of the replies to one call that carries an idempotency key; everyone with the key reads them."""
        return f"{self.call_prefix}{call}"

    def shared(self, digest: str) -> str:
        """Return the key of an idempotency key's record: its call, with the callers that wait."""
        return f"{self.prefix}key:{digest}"

    def session(self, queue: str, digest: str) -> str:
        """Return the key of a session's owner, for a service whose calls of one session go to one worker."""
        return f"{self.prefix}sess:{queue}:{digest}"

    def snapshot(self, queue: str, digest: str) -> str:
        """Return the key of the snapshot of a session's state."""
        return f"{self.prefix}snap:{queue}:{digest}"

    def order(self, queue: str) -> str:
        """Return the key of a queue's order of sessions: the calls that were published last in each."""
        return f"{self.prefix}order:{queue}"

    def started(self, call: str) -> str:
        """Return the key of the mark that a ``once`` handler began."""
        return f"{self.prefix}started:{call}"

    def confirmation(self, id: str) -> str:
        """Return the key of a request that waits for a confirmation, or of its recent answer."""
        return f"{self.prefix}confirm:{id}"

    def conversation(self, digest: str) -> str:
        """Return the key of an agent's conversation: its records, and which process continues it."""
        return f"{self.prefix}conv:{digest}"

    def creation(self, id: str) -> str:
        """Return the key of a coding agent's task: its spec, state and log."""
        return f"{self.prefix}creation:{id}"

    def results(self, digest: str) -> str:
        """Return the key of the results of a session's earlier calls."""
        return f"{self.prefix}results:{digest}"

    def task(self, digest: str) -> str:
        """Return the key of a task's record: where its call is; the digest stands for its user and its id."""
        return f"{self.prefix}task:{digest}"

    def mcp_session(self, digest: str) -> str:
        """Return the key of an MCP client's session; the digest stands for its user and its id."""
        return f"{self.prefix}mcp:{digest}"

    def mcp_sessions(self, digest: str) -> str:
        """Return the key of the list of a user's MCP sessions."""
        return f"{self.prefix}mcps:{digest}"

    def mcp_request(self, digest: str) -> str:
        """Return the key of a request in an MCP session that takes long; the digest stands for the session and the request's id."""
        return f"{self.prefix}mcpreq:{digest}"

    def pause(self, queue: str, entry: str) -> str:
        """Return the key of the note of a request's later deadline, whose handler has waited for a confirmation."""
        return f"{self.prefix}pause:{queue}:{entry}"

    def routes(self, host: str) -> str:
        """Return the key of a host's routes: where each recorded tool runs that it serves."""
        return f"{self.prefix}routes:{host}"

    def single(self, tool: str) -> str:
        """Return the key of the host that serves a tool alone."""
        return f"{self.prefix}single:{tool}"

    def output(self, tool: str) -> str:
        """Return the key of the latest output of a recorded tool's programs."""
        return f"{self.prefix}output:{tool}"

    def rate(self, digest: str) -> str:
        """Return the key of a rate: how much of it is used."""
        return f"{self.prefix}rate:{digest}"

    def quota(self, digest: str) -> str:
        """Return the key of a quota: how much of it is used in its current period."""
        return f"{self.prefix}quota:{digest}"

    def usage(self, day: str) -> str:
        """Return the key of one day's usage: the cost of each user's calls of each tool."""
        return f"{self.prefix}usage:{day}"

    def answers(self, question: str) -> str:
        """Return the key of the answers to one who asked the workers for statistics."""
        return f"{self.prefix}stats:{question}"

    def instances(self, service: str) -> str:
        """Return the key of a service's live instances and the publications they serve."""
        return f"{self.prefix}reg:s:{service}"
