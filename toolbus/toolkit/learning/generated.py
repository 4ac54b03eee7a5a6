"""Generate logs whose true success rates are known, to check estimates against.

The world has actions, each with tools to call and actions that may follow. A tool succeeds in an action with its own
probability, which is lower when the episode's sentence is about another topic than the tool's. Static scores imitate a person's
guesses: close to the truth for some edges, arbitrary for the rest. A policy shows tools and following actions at random, more
often those with a high score and tools of the sentence's topic; each probability is logged. The agent picks among what it is
shown, prefers the topic, retries after some failures, and follows the true transitions as far as they are shown.

With ``noise`` nothing depends on anything: calls succeed with probability 1/2, and agents pick at random; static scores stay.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from toolbus.toolkit.learning.evidence import Edge, EdgeKind, Row, Scores
from toolbus.toolkit.learning.stores import Execution

TOPICS = ("orders", "customers", "invoices", "weather", "papers", "repositories", "messages", "calendars")
_VERBS = ("Count", "Find", "Summarise", "Compare", "List", "Check")
_START = 1_750_000_000.0
_OFF_TOPIC = 0.6

Count = Annotated[int, Meta(ge=1, le=100_000)]


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a generated log, and how wrong its static scores are.

    Attributes:
        seed: the same seed gives the same log.
        episodes, actions, tools: how many there are of each.
        calls, successors: number of edges of each action.
        wrong: share of edges whose static score is unrelated to the truth.
        noise: make outcomes depend on nothing.
        days: days that the log spans.
    """

    seed: int = 0
    episodes: Count = 600
    actions: Count = 10
    tools: Count = 40
    calls: Count = 10
    successors: Count = 4
    wrong: Annotated[float, Meta(ge=0, le=1)] = 0.6
    noise: bool = False
    days: Annotated[float, Meta(gt=0)] = 30.0


class Generated(NamedTuple):
    """A generated log, its static scores, and the truth.

    Attributes:
        executions: the log.
        static: the guessed scores.
        texts: descriptions of the tools, by name.
        truth: the true success probability of each call edge over all sentences, and of each transition if all were shown.
    """

    executions: list[Execution]
    static: Scores
    texts: dict[str, str]
    truth: Scores


def generate(world: World) -> Generated:
    """Generate the log of a world."""
    return _Generator(world).run()


def _scores(calls: Mapping[str, Row], following: Mapping[str, Row]) -> Scores:
    kinds: tuple[tuple[EdgeKind, Mapping[str, Row]], ...] = (("call", calls), ("next", following))
    return Scores(Edge(kind, action, to, score) for kind, rows in kinds for action, row in rows.items() for to, score in row.items())


class _Generator:
    def __init__(self, world: World) -> None:
        self.world = world
        # The world and the events in it have separate generators, so that noise happens in the same world.
        self.random = random.Random(f"world {world.seed}")  # noqa: S311 - a simulation
        self.actions = [f"action-{number:02}" for number in range(world.actions)]
        self.tools = [f"tool-{number:02}" for number in range(world.tools)]
        self.topic = {tool: self.random.choice(TOPICS) for tool in self.tools}
        self.success: dict[str, dict[str, float]] = {}
        self.follows: dict[str, dict[str, float]] = {}
        self.guess: dict[str, dict[str, float]] = {}
        self.next_guess: dict[str, dict[str, float]] = {}
        for action in self.actions:
            self._action(action)

    def _action(self, action: str) -> None:
        world = self.world
        tools = sorted(self.random.sample(self.tools, min(world.calls, world.tools)))
        good = set(self.random.sample(tools, max(1, len(tools) // 3)))
        self.success[action] = {tool: self.random.uniform(0.75, 0.95) if tool in good else self.random.uniform(0.05, 0.4) for tool in tools}
        self.guess[action] = {tool: self._guessed(chance) for tool, chance in self.success[action].items()}
        others = [other for other in self.actions if other != action]
        after = sorted(self.random.sample(others, min(world.successors, len(others))))
        weights = [2.5**-rank for rank in range(len(after))]
        self.random.shuffle(weights)
        self.follows[action] = {other: weight / sum(weights) for other, weight in zip(after, weights, strict=True)}
        self.next_guess[action] = {
            other: self._guessed(chance / max(weights) * sum(weights)) for other, chance in self.follows[action].items()
        }

    def _guessed(self, truth: float) -> float:
        if self.random.random() < self.world.wrong:
            return round(self.random.uniform(0.1, 1.0), 2)
        return round(min(1.0, max(0.05, self.random.gauss(truth, 0.05))), 2)

    def run(self) -> Generated:
        self.random = random.Random(f"{'noise' if self.world.noise else 'events'} {self.world.seed}")  # noqa: S311 - a simulation
        executions: list[Execution] = []
        for number in range(self.world.episodes):
            executions += self._episode(number)
        texts = {tool: f"{self.random.choice(_VERBS)} {topic}" for tool, topic in self.topic.items()}
        return Generated(executions, _scores(self.guess, self.next_guess), texts, self._truth())

    def _truth(self) -> Scores:
        matching = 1 / len(TOPICS)
        factor = matching + (1 - matching) * _OFF_TOPIC
        calls, after = self.success, self.follows
        if self.world.noise:
            calls = {action: dict.fromkeys(row, 0.5 / factor) for action, row in calls.items()}
            after = {action: dict.fromkeys(row, 1 / len(row)) for action, row in after.items()}
        return _scores({action: {tool: chance * factor for tool, chance in row.items()} for action, row in calls.items()}, after)

    def _episode(self, number: int) -> list[Execution]:
        world, topic = self.world, self.random.choice(TOPICS)
        query = f"{self.random.choice(_VERBS).lower()} the {topic} of day {self.random.randint(1, 28)}"
        at = _START + number * world.days * 86_400 / world.episodes
        action = self.random.choice(self.actions)
        made: list[Execution] = []
        for _ in range(self.random.randint(2, 6)):
            shown = {tool: self._shown(score + 0.3 * (self.topic[tool] == topic)) for tool, score in self.guess[action].items()}
            after = {other: self._shown(score) for other, score in self.next_guess[action].items()}
            visible = [tool for tool, chance in shown.items() if self.random.random() < chance]
            for _ in range(2):
                if not visible:
                    break
                tool = self._picked(visible, topic)
                visible.remove(tool)
                success = self.random.random() < self._chance(action, tool, topic)
                ms = round(self.random.lognormvariate(4, 0.6), 1)
                at += ms / 1000 + 1
                made.append(
                    Execution(
                        episode=f"episode-{number:05}",
                        position=len(made),
                        action=action,
                        tool=tool,
                        outcome="success" if success else "failure",
                        at=round(at, 3),
                        ms=ms,
                        shown=shown,
                        next_shown=after,
                        query=query,
                        id=f"{world.seed}-{number}-{len(made)}",
                    )
                )
                if success or self.random.random() < 0.5:
                    break
            offered = [other for other, chance in after.items() if self.random.random() < chance]
            if not offered:
                break
            weights = [1.0 if world.noise else self.follows[action][other] for other in offered]
            action = self.random.choices(offered, weights)[0]
        return made

    def _shown(self, score: float) -> float:
        return round(min(0.95, max(0.1, 0.1 + 0.7 * score)), 4)

    def _picked(self, visible: list[str], topic: str) -> str:
        weights = [1.0 if self.world.noise or self.topic[tool] != topic else 2.0 for tool in visible]
        return self.random.choices(visible, weights)[0]

    def _chance(self, action: str, tool: str, topic: str) -> float:
        if self.world.noise:
            return 0.5
        return self.success[action][tool] * (1.0 if self.topic[tool] == topic else _OFF_TOPIC)
