"""Rank short texts in many scripts by BM25, with an inverted index whose scores are computed when it is built."""

from __future__ import annotations

import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
