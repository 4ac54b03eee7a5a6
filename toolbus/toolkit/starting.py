"""Find the actions to start from by a user's sentence: by words, optionally with an embedding function."""

from __future__ import annotations

import heapq
import inspect
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from operator import mul
from typing import NamedTuple

import msgspec

from toolbus.bus.values.results import ConfigurationError

MAX_TEXT = 16_384
MAX_TERMS = 32

_K1 = 1.2
_B = 0.75
# A word in more texts than this only adds to the scores of texts that rarer words found, which bounds the work of a search.
_COMMON = 1000
_ASCII = re.compile(r"[a-z0-9]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Scripts without spaces between words are indexed as pairs of neighbouring characters.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f]+"
)
_ACCENTS = re.compile("[\u0300-\u036f]+")
# Words without meaning for a search: in a short list of texts the rarest of them would decide.
_ENGLISH = """
a about all an and any are as at be by can could do does for from get give has have how i in into is it its let me my no not of on or our
please so some than that the their them then there these they this to us was we were what when where which who will with would you your
"""
_EMPTY = frozenset(_ENGLISH.split())


def words(text: str) -> list[str]:
    """Return the terms of a text's first 16,384 characters.

    Case, accents, camelCase, underscores and the s of an English plural are ignored. English words without meaning are left out.
    """
    text = _HUMP.sub(" ", text[:MAX_TEXT])
    found = _ASCII.findall(text.lower()) if text.isascii() else _of_any_script(text)
    return [_singular(word) for word in found if word not in _EMPTY]


def _of_any_script(text: str) -> list[str]:
    folded = unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text).casefold()))
    # Letters, digits, and marks, which are parts of words in the scripts of India and others.
    spaced = "".join(character if unicodedata.category(character)[0] in "LNM" else " " for character in folded)
    found: list[str] = []
    for word in _UNSPACED.sub(lambda run: f" {run[0]} ", spaced).split():
        if _UNSPACED.match(word) and len(word) > 1:
            found += [word[index : index + 2] for index in range(len(word) - 1)]
        else:
            found.append(word)
    return found


def _singular(word: str) -> str:
    if len(word) > 3 and word.endswith("s") and word[-2] not in "suai" and word.isascii():
        return word[:-1]
    return word


class Match(NamedTuple):
    """A text that matches.

    Attributes:
        name: the name of the text.
        score: its share of the best possible score, in (0, 1).
        matched: the terms that text and sentence share, the weightiest first.
    """

    name: str
    score: float
    matched: list[str]


class Index:
    """An index of texts by name. It never changes, so any number of threads may search it."""

    def __init__(self, texts: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        counted = [(name, Counter(words(text))) for name, text in dict(texts).items()]
        self._names = [name for name, _ in counted]
        lengths = [sum(terms.values()) for _, terms in counted]
        mean = sum(lengths) / len(lengths) if lengths else 0.0
        raw: dict[str, list[tuple[int, int]]] = {}
        for number, (_, terms) in enumerate(counted):
            for term, count in terms.items():
                raw.setdefault(term, []).append((number, count))
        self._postings: dict[str, dict[int, float]] = {}
        for term, places in raw.items():
            weight = self._weight(len(places))
            self._postings[term] = {
                number: weight * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * lengths[number] / mean)) for number, count in places
            }

    def __len__(self) -> int:
        return len(self._names)

    def _weight(self, texts: int) -> float:
        """Return the inverse document frequency, which is above 0 for every word."""
        return math.log1p((len(self._names) - texts + 0.5) / (texts + 0.5))

    def search(self, sentence: str, limit: int = 10) -> list[Match]:
        """Return the texts that match best, best first and ties by name; only the 32 rarest terms of the sentence count."""
        terms = sorted(set(words(sentence)), key=lambda term: (len(self._postings.get(term, ())), term))[:MAX_TERMS]
        most = sum(self._weight(len(self._postings.get(term, ()))) for term in terms) * (_K1 + 1)
        scores: dict[int, float] = {}
        for term in terms:
            found = self._postings.get(term)
            if found is None:
                continue
            if scores and len(found) > _COMMON:
                for number in scores.keys() & found.keys():
                    scores[number] += found[number]
                continue
            for number, score in found.items():
                scores[number] = scores.get(number, 0.0) + score
        # Finding the greatest scores first means that names are compared among equal scores only.
        least = min(heapq.nlargest(limit, scores.values()), default=0.0)
        good = [(-score, self._names[number], number) for number, score in scores.items() if score >= least]
        best = [(number, -score) for score, _, number in heapq.nsmallest(limit, good)]
        return [Match(self._names[number], score / most, self._matched(number, terms)) for number, score in best]

    def _matched(self, number: int, terms: list[str]) -> list[str]:
        weights = {term: self._postings[term][number] for term in terms if number in self._postings.get(term, ())}
        return sorted(weights, key=lambda term: (-weights[term], term))


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
                if inspect.iscoroutine(given):
                    given.close()  # or Python warns that nobody awaits it
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


def fused(orders: Sequence[Sequence[str]], constant: int = 60) -> dict[str, float]:
    """Return the reciprocal rank fusion (Cormack et al., 2009): the sum of 1 / (constant + rank) over the orders with an item."""
    scores: dict[str, float] = {}
    for order in orders:
        for rank, item in enumerate(order, 1):
            scores[item] = scores.get(item, 0.0) + 1.0 / (constant + rank)
    return scores
