"""From sentences to starting actions: words of many scripts, embeddings, and bounds."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolbus import ConfigurationError
from toolbus.toolkit.starting import Index, Starter, words

ACTIONS = {
    "count": "Count the orders of a month",
    "customers": "Find customers by name or city",
    "forecast": "Tell the weather of a city",
    "refund": "Refund an order and write to its customer",
}


def test_a_sentence_finds_its_action() -> None:
    """The action whose rarer words the sentence has comes first, with a score in (0, 1) and the words that decided."""
    first, second = Starter(ACTIONS).rank("How many orders were there in March? count the orders of March")
    assert (first.action, second.action) == ("count", "refund")
    assert 0 < second.score < first.score < 1
    assert first.why == "has the words count, order"


@pytest.mark.parametrize("sentence", ["", "   ", "what is the of a", "xylophone", "?!…", "\x00\ud800"])
def test_nothing_matches_nothing(sentence: str) -> None:
    """A sentence that shares no telling word with any action finds none; neither does a starter without actions."""
    assert Starter(ACTIONS).rank(sentence) == []
    assert Starter({}).rank("count") == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("countOrders_of2025 HTTPServer", ["count", "order", "of2025", "httpserver"]),
        ("Cafés à la CRÈME", ["cafe", "la", "creme"]),
        ("Straße ＡＢＣ ﬁne", ["strasse", "abc", "fine"]),
        ("注文を数える", ["注文", "文を", "を数", "数え", "える"]),
        ("查询2024年orders", ["查询", "2024", "年", "order"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("주문 건수", ["주문", "건수"]),
        ("status analysis bus classes", ["status", "analysis", "bus", "classe"]),
    ],
)
def test_words_of_many_scripts(text: str, expected: list[str]) -> None:
    """Case, accents, width, camelCase and a plural's s make no difference; unspaced scripts are pairs of characters."""
    assert words(text) == expected


def test_chinese_sentences_find_chinese_actions() -> None:
    """Without spaces a sentence matches by its parts."""
    starter = Starter({"orders": "统计某月的订单数量", "weather": "查询城市天气"})
    assert [each.action for each in starter.rank("三月份的订单有多少")] == ["orders"]


@given(st.text(max_size=300))
def test_any_text_has_words(text: str) -> None:
    """No text breaks the tokeniser, and its words are found by themselves."""
    found = words(text)
    assert all(found)
    if found:
        assert [each.name for each in Index({"a": text}).search(text)] == ["a"]


def test_scores_are_bm25() -> None:
    """A score is the formula's, as a share of the best that any text could have."""
    index = Index({"a": "apple banana", "b": "apple apple cherry date", "c": "elder"})
    (match, other) = index.search("apple")
    # idf ln(1 + 1.5/2.5); lengths 2 and 4 of a mean of 7/3; k1 = 1.2, b = 0.75.
    b = 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / (7 / 3)))
    a = 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / (7 / 3)))
    assert [match.name, other.name] == ["b", "a"]
    assert [match.score, other.score] == pytest.approx([b / 2.2, a / 2.2])


@pytest.mark.usefixtures("slow")
def test_ten_thousand_actions_are_ranked_in_milliseconds() -> None:
    """Each of 10,000 actions is found by its own words; a query takes milliseconds, also one of common words, and results are bounded."""
    draw = random.Random(1)
    vocabulary = [f"{draw.getrandbits(40):x}" for _ in range(5000)]
    weights = [1 / (rank + 1) for rank in range(5000)]
    texts = {f"action-{number}": " ".join(draw.choices(vocabulary, weights, k=20)) + f" own{number}" for number in range(10_000)}
    starter = Starter(texts)
    assert starter.rank(f"do own{77} please")[0].action == "action-77"
    took = []
    for _ in range(60):
        sentence = " ".join(draw.choices(vocabulary, weights, k=10))
        began = time.process_time()
        assert len(starter.rank(sentence, limit=7)) == 7
        took.append(time.process_time() - began)
    assert sorted(took)[len(took) // 2] < 0.005
    began = time.process_time()
    starter.rank(" ".join(vocabulary))
    assert time.process_time() - began < 0.5


# An embedding in which only cities and months are told apart.
AXES = (("city", "oslo", "weather"), ("month", "march"), ("refund", "money"))


def embedded(texts: list[str]) -> list[list[float]]:
    """Texts as counts of a few words."""
    return [[sum(word in text.lower() for word in axis) for axis in AXES] for text in texts]


class Counting:
    """An embedding function that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str]) -> Sequence[Sequence[float]]:
        self.asked.append(texts)
        return embedded(texts)


def test_embeddings_find_what_words_do_not() -> None:
    """An action that is in both orders comes before one that is in one of them, and each reason says which."""
    starter = Starter(ACTIONS, embed=embedded)
    found = starter.rank("rain in Oslo, city of weather")
    assert [each.action for each in found[:2]] == ["forecast", "customers"]
    assert "has the words" in found[0].why
    assert "similarity" in found[0].why
    (only,) = starter.rank("give me my money back")
    assert (only.action, only.why, only.score) == ("refund", "similarity 1.00", 0.5)
    assert starter.rank("xylophone") == []


@pytest.mark.usefixtures("slow")
def test_embeddings_are_computed_once() -> None:
    """Actions are embedded in batches with the first sentence, sentences when they come, and neither again."""
    embed = Counting()
    starter = Starter({f"a{number}": f"text {number}" for number in range(600)} | {"same": "text 5"}, embed=embed)
    for sentence in ("one", "two", "one", "text 5"):
        starter.rank(sentence)
    assert [len(texts) for texts in embed.asked] == [256, 256, 88, 1, 1, 1]
    assert embed.asked[3:] == [["one"], ["two"], ["text 5"]]
    for number in range(1000):
        starter.rank(f"s{number}")
    starter.rank("one")
    assert embed.asked[-1] == ["one"]


def test_async_embeddings_are_awaited() -> None:
    """``arank`` takes both kinds of functions; ``rank`` refuses an async one, and leaves no coroutine behind."""

    async def embed(texts: list[str]) -> list[list[float]]:
        await asyncio.sleep(0)
        return embedded(texts)

    async def main() -> list[list[str]]:
        starters = (Starter(ACTIONS), Starter(ACTIONS, embed=embed), Starter(ACTIONS, embed=embedded))
        return [[each.action for each in await starter.arank("weather of the city")] for starter in starters]

    lexical, one, other = asyncio.run(main())
    assert one == other == lexical == ["forecast", "customers"]
    # A coroutine that nobody awaits is a warning, and warnings are errors here.
    with pytest.raises(ConfigurationError, match=r"await starter\.arank"):
        Starter(ACTIONS, embed=embed).rank("weather")
    gc.collect()


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        ([[1.0]], "1 vectors for 4 texts"),
        ([[1.0], [1.0, 2.0], [1.0], [1.0]], "different lengths"),
        ([[float("nan")]] * 4, "finite"),
        ([[1e200, 1e200]] * 4, "finite"),
    ],
)
def test_wrong_vectors_are_an_error(vectors: list[list[float]], said: str) -> None:
    """Anything but one vector of numbers per text is refused, and the error says what is wrong."""
    with pytest.raises(ConfigurationError, match=said):
        Starter(ACTIONS, embed=lambda _: vectors).rank("weather")
