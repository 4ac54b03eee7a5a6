"""Answer operators who ask a worker for its statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from toolbus.bus import telemetry
from toolbus.bus.broker.lease.recover import Upkeep
from toolbus.bus.broker.server import scripts
from toolbus.bus.broker.server.reading import MOST_DOCUMENT
from toolbus.bus.broker.statistics.answers import InstanceAnswer, ServedService, ToolStatistics
from toolbus.bus.broker.step import WorkerStep
from toolbus.bus.broker.transport.command import Reply
from toolbus.bus.telemetry.output import shortened
from toolbus.bus.values.results import BrokerError

_KEPT_MS = 10_000
_MOST_ANSWERS = 10_000
# Whoever floods the channel with questions does not keep the worker from its work.
_MOST_A_SECOND = 20
_MOST_TOOLS = 5_000
_MOST_TROUBLE = 300


class Answering(WorkerStep, eq=False):
    """Answers questions for statistics. Nothing is counted or computed here while nobody asks.

    Args:
        trouble: returns why nothing can be taken now; empty when that is possible.
    """

    upkeep: Upkeep
    trouble: Callable[[], str]
    _began: float = 0.0
    _second: float = 0.0
    _answered: int = 0

    def __post_init__(self) -> None:
        self._began = self.clock.monotonic()

    def answer(self, question: str) -> None:
        """Answer a question. Returns at once; without a connection it stays unanswered."""
        now = self.clock.monotonic()
        if now - self._second >= 1:
            self._second, self._answered = now, 0
        self._answered += 1
        if self._answered > _MOST_A_SECOND or not self.link.connected:
            return
        args = (_MOST_ANSWERS, _KEPT_MS, 2, "a", _encoded(self._statistics(now)))
        self.link.run(scripts.APPEND, (self.keys.answers(question),), args, _told)

    def _statistics(self, now: float) -> InstanceAnswer:
        found = self.listener.answer()
        link = self.link.statistics()
        return msgspec.structs.replace(
            found,
            instance=self.instance,
            started=self.clock.server_time(self._began),
            uptime=now - self._began,
            services=tuple(map(self._served, found.services)),
            tools=with_retaken(found.tools, self.upkeep.retaken),
            calls=tuple(
                msgspec.structs.replace(each, since=self.clock.server_time(each.since)) if each.since else each for each in found.calls
            ),
            commands=link.commands,
            connects=link.connects,
            trouble=shortened(self.trouble(), _MOST_TROUBLE),
        )

    def _served(self, service: ServedService) -> ServedService:
        stream = self.streams.get(service.id)
        if stream is None:
            return service
        return msgspec.structs.replace(service, paused=stream.paused, unlisted=shortened(stream.unlisted, _MOST_TROUBLE))


def with_retaken(tools: Sequence[ToolStatistics], retaken: Mapping[tuple[str, str], int]) -> tuple[ToolStatistics, ...]:
    """Return the counts of tools, with how many requests of dead workers were gone on with, by service and tool."""
    left = dict(retaken)
    counted = [msgspec.structs.replace(each, retaken=left.pop((each.service, each.tool), 0)) for each in tools]
    # A request that its tool has refused, for example.
    return (*counted, *(ToolStatistics(service, tool, retaken=count) for (service, tool), count in left.items()))


def _encoded(answer: InstanceAnswer) -> bytes:
    """Return the document of an answer, without the tools that were called least when all are too many."""
    tools = sorted(answer.tools, key=lambda tool: sum(tool.buckets), reverse=True)[:_MOST_TOOLS]
    document = msgspec.json.encode(msgspec.structs.replace(answer, tools=tuple(tools)))
    while len(document) > MOST_DOCUMENT and tools:
        tools = tools[: len(tools) // 2]
        document = msgspec.json.encode(msgspec.structs.replace(answer, tools=tuple(tools), sessions=(), calls=()))
    return document


def _told(reply: Reply) -> None:
    if isinstance(reply, BrokerError):
        telemetry.log.warning("statistics.refused", error=str(reply))
