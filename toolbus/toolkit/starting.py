"""Find the actions to start from by a user's sentence: by words, optionally with an embedding function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from operator import mul

import msgspec

from toolbus.results import ConfigurationError
from toolbus.toolkit.learning.ranking import fused
from toolbus.toolkit.lexical import Index, Match

Vectors = Sequence[Sequence[float]]
Embed = Callable[[list[str]], Vectors | Awaitable[Vectors]]
"""A function that turns texts into vectors of equal length, in their order; plain or async."""

BATCH = 256
KEPT_SENTENCES = 1000
_DEPTH = 50
_CONSTANT = 60


class Start(msgspec.Struct, frozen=True):
    """An action to start from.

    Attributes:
        action: the action's id.
        score: how well it fits, in (0, 1]; comparable within one answer.
        why: the reason in words.
    """

    action: str
    score: float
    why: str


class Starter:
    """Ranks actions by a sentence: ``Starter({"count": "Count the orders of a month", …}).rank("How many orders in March?")``.

    With an embedding function the two orders are combined by reciprocal rank. The actions are embedded when the first sentence
    comes, 256 texts at a time, and never again; the vectors of the last 1,000 sentences are kept.

    Args:
        actions: the description of each action, by id.
        embed: an embedding function.
        similarity: lowest cosine of a match; it depends on the embedding.
    """

    def __init__(
        self, actions: Mapping[str, str] | Iterable[tuple[str, str]], *, embed: Embed | None = None, similarity: float = 0.3
    ) -> None:
        self._texts = dict(actions)
        self._index = Index(self._texts)
        self._embed = embed
        self._similarity = similarity
        self._vectors: dict[str, list[float]] = {}
        self._sentences: dict[str, list[float]] = {}
        self._length = 0

    def __len__(self) -> int:
        return len(self._texts)

    def rank(self, sentence: str, limit: int = 5) -> list[Start]:
        """Return the actions that fit a sentence, best first; none when nothing matches.

        Raises:
            ConfigurationError: the embedding function is async (``await arank(…)`` takes both), or returned no valid vectors.
        """
        lexical = self._index.search(sentence, _depth(limit))
        if self._embed is None:
            return _worded(lexical, limit)
        for vectors, texts in self._missing(sentence):
            given = self._embed(texts)
            if inspect.isawaitable(given):
                _dispose(given)
                raise ConfigurationError("the embedding function is async; use `await starter.arank(sentence)`")
            self._keep(vectors, texts, given)
        return self._combined(sentence, lexical, limit)

    async def arank(self, sentence: str, limit: int = 5) -> list[Start]:
        """Do the same with an async embedding function; a plain one is called in the event loop.

        Raises:
            ConfigurationError: the embedding function returned no valid vectors.
        """
        lexical = self._index.search(sentence, _depth(limit))
        if self._embed is None:
            return _worded(lexical, limit)
        for vectors, texts in self._missing(sentence):
            given = self._embed(texts)
            self._keep(vectors, texts, await given if inspect.isawaitable(given) else given)
        return self._combined(sentence, lexical, limit)

    def _missing(self, sentence: str) -> Iterator[tuple[dict[str, list[float]], list[str]]]:
        """Yield the texts to embed before the sentence can be ranked, in batches, with the dict for their vectors."""
        texts = list(dict.fromkeys(text for text in self._texts.values() if text not in self._vectors))
        for start in range(0, len(texts), BATCH):
            yield self._vectors, texts[start : start + BATCH]
        if sentence not in self._sentences:
            yield self._sentences, [sentence]

    def _keep(self, vectors: dict[str, list[float]], texts: list[str], given: Vectors) -> None:
        made = [_unit(vector) for vector in given]
        if len(made) != len(texts):
            raise ConfigurationError(f"the embedding function gave {len(made)} vectors for {len(texts)} texts")
        self._length = self._length or len(made[0])
        if any(len(vector) != self._length for vector in made):
            raise ConfigurationError("the embedding function gave vectors of different lengths")
        vectors.update(zip(texts, made, strict=True))
        while len(self._sentences) > KEPT_SENTENCES:
            del self._sentences[next(iter(self._sentences))]

    def _combined(self, sentence: str, lexical: list[Match], limit: int) -> list[Start]:
        # Moved to the end, so that the sentence whose last use is longest ago is dropped first.
        vector = self._sentences[sentence] = self._sentences.pop(sentence)
        near = {action: sum(map(mul, vector, self._vectors[text])) for action, text in self._texts.items()}
        matched = {match.name: match for match in lexical}
        # Words decide between actions that vectors can't tell apart.
        by_words = {match.name: rank for rank, match in enumerate(lexical)}

        def last(action: str) -> tuple[int, str]:
            return by_words.get(action, len(by_words)), action

        similar = [action for action in near if near[action] >= self._similarity]
        similar = sorted(similar, key=lambda action: (-near[action], last(action)))[: _depth(limit)]
        scores = fused([[*matched], similar], _CONSTANT)
        best = sorted(scores, key=lambda action: (-scores[action], last(action)))[:limit]
        most = 2 / (_CONSTANT + 1)
        return [Start(action, scores[action] / most, _reason(matched.get(action), near[action], action in similar)) for action in best]


def _depth(limit: int) -> int:
    return max(limit, _DEPTH)


def _worded(found: list[Match], limit: int) -> list[Start]:
    return [Start(match.name, match.score, _reason(match, 0.0, similar=False)) for match in found[:limit]]


def _reason(match: Match | None, near: float, similar: bool) -> str:
    reasons = [] if match is None else ["has the words " + ", ".join(match.matched)]
    return "; ".join([*reasons, f"similarity {near:.2f}"] if similar else reasons)


def _unit(vector: Sequence[float]) -> list[float]:
    """Return a vector scaled to length 1, so that a dot product is a cosine; a zero vector stays as it is."""
    numbers = [float(number) for number in vector]
    length = math.sqrt(sum(map(mul, numbers, numbers)))
    if not math.isfinite(length):
        raise ConfigurationError("the embedding function gave a vector that is not of finite numbers")
    return [number / length for number in numbers] if length > 0 else numbers


def _dispose(awaitable: Awaitable[Vectors]) -> None:
    """Close a coroutine that will not be awaited, so that Python does not warn about it."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()
