"""The text tools: what they find, that they stream it, and that they bear any text."""

import asyncio
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolbus_workers import text as module
from toolbus_workers.text import (
    Heading,
    headings,
    paragraphs,
    parts,
    sentences,
    text_outline,
    text_search,
    text_stats,
    text_stream,
    text_summary,
)

from toolbus import Progress, ToolError, ToolResult
from toolbus.bus.schema.derivation import derive

DOCUMENT = """---
title: A guide
---
# The guide #

Some *words* about the [guide](https://example.org/a). It was written by Dr. Brown, e.g. for you.

Setext
======

```python
# not a heading
```

Second
---

- an item
---
> # quoted text
### Third ##
#hashtag
    # indented code
"""


def run(items):
    """Return the text, the other items before the end, and the result of a handler's stream."""
    listed = list(items)
    assert isinstance(listed[-1], ToolResult)
    assert listed[-1].success
    text = "".join(item for item in listed if isinstance(item, str))
    return text, [item for item in listed[:-1] if not isinstance(item, str)], listed[-1].data


def stream(*arguments, **options):
    async def collect():
        return [item async for item in text_stream(*arguments, **options)]

    return run(asyncio.run(collect()))


def failure_of(call):
    with pytest.raises(ToolError) as failure:
        list(call())
    assert failure.value.error.type == "invalid_arguments"
    return failure.value.error


def test_headings_of_both_styles_are_found_and_code_and_front_matter_left_out():
    """Headings are those that a Markdown reader would show, with level and line."""
    assert list(headings(DOCUMENT)) == [
        Heading(1, "The guide", 4),
        Heading(1, "Setext", 8),
        Heading(2, "Second", 15),
        Heading(3, "Third", 21),
    ]


def test_an_outline_is_indented_by_level_and_cut_at_the_depth_asked_for():
    """Each heading is one line of text and one entry of data."""
    text, _, data = run(text_outline(DOCUMENT, depth=2))
    assert text == "The guide (line 4)\nSetext (line 8)\n  Second (line 15)\n"
    assert data["headings"][2] == {"level": 2, "title": "Second", "line": 15}


def test_a_text_without_headings_says_so():
    """An empty outline is an answer, not an empty one."""
    assert run(text_outline("plain"))[::2] == ("The text has no headings.\n", {"headings": []})


def test_a_long_outline_ends_with_a_note():
    """The number of headings is bounded."""
    text, _, data = run(text_outline("# a\n" * (module.MAX_HEADINGS + 1)))
    assert len(data["headings"]) == module.MAX_HEADINGS
    assert text.endswith(f"… only the first {module.MAX_HEADINGS} headings are listed\n")


LINES = "\n".join(["zero", "Alpha one", "two", "three", "alpha four", "five", "six", "seven", "ALPHA eight", "nine"])


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (0, "2: Alpha one\n--\n5: alpha four\n--\n9: ALPHA eight\n"),
        (1, "1- zero\n2: Alpha one\n3- two\n4- three\n5: alpha four\n6- five\n--\n8- seven\n9: ALPHA eight\n10- nine\n"),
        (2, "1- zero\n2: Alpha one\n3- two\n4- three\n5: alpha four\n6- five\n7- six\n8- seven\n9: ALPHA eight\n10- nine\n"),
    ],
)
def test_a_search_shows_each_match_with_its_context_and_no_line_twice(context, expected):
    """Matching lines carry a colon, others a dash, and gaps are marked, as grep does."""
    text, _, data = run(text_search(LINES, "alpha", context=context))
    assert text == expected
    assert data["total"] == 3
    assert data["matches"][1] == {"line": 5, "column": 1, "text": "alpha four"}


def test_a_search_streams_each_match_as_it_is_found():
    """A match is handed over before the rest of the text is looked at."""
    items = text_search(LINES, "alpha", context=0)
    assert next(items) == "2: Alpha one\n"
    assert next(items) == "--\n5: alpha four\n"


def test_matches_beyond_the_bound_are_counted_only():
    """The total is exact even where not every match is shown."""
    text, _, data = run(text_search("x\n" * 100, "x", context=0, max_matches=2))
    assert text == "1: x\n2: x\n… 98 more matching lines\n"
    assert (data["total"], len(data["matches"])) == (100, 2)


def test_a_search_is_literal():
    """A query is a phrase, never a pattern."""
    assert run(text_search("a.c\nabc", "a.c"))[2]["total"] == 1


def test_a_search_without_a_match_says_so():
    """No match is an answer."""
    assert run(text_search("abc", "x"))[0] == "No line contains 'x'.\n"


def test_a_match_in_a_long_line_is_shown_with_its_surroundings():
    """Lines are cut, but never so that the match is lost."""
    text, _, data = run(text_search("a" * 5000 + "needle" + "b" * 5000, "NEEDLE"))
    assert "needle" in text
    assert len(text) < 250
    assert data["matches"][0]["column"] == 5001


def test_stats_count_what_is_there():
    """Counts, the most frequent words without the usual ones, and the reading time."""
    text, _, data = run(text_stats("The cat saw the dog. The dog ran!\n\nA cat's dog? It's the dog’s cat-flap.\n", top=2))
    assert data == {
        "characters": 73,
        "lines": 3,
        "paragraphs": 2,
        "words": 15,
        "unique_words": 10,
        "sentences": 4,
        "reading_seconds": 4,
        "top_words": [{"word": "dog", "count": 3}, {"word": "cat", "count": 1}],
    }
    assert "most frequent words: dog (3), cat (1)" in text
    assert "reading time: 0 min 4 s" in text


def test_stats_of_nothing_are_zero():
    """An empty text has no words, and that is fine."""
    _, _, data = run(text_stats(""))
    assert data["words"] == data["lines"] == data["sentences"] == data["reading_seconds"] == 0
    assert data["top_words"] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("It was Dr. Brown. He left.", ["It was Dr. Brown.", "He left."]),
        ("Use tools, e.g. This one. J. R. Smith did.", ["Use tools, e.g. This one.", "J. R. Smith did."]),
        ("Version 3.11 is out... not quite. “Really?” She asked.", ["Version 3.11 is out... not quite.", "“Really?”", "She asked."]),
        ("今天好。明天呢？走吧", ["今天好。", "明天呢？", "走吧"]),
        (
            "# Title.\n\nA line\nthat wraps. End\n\n| a. | b. |\n- item one\n- item two",
            ["A line that wraps.", "End", "item one", "item two"],
        ),
        ("See [the *guide*](x.html) and `code_name`, __now__.", ["See the guide and code_name, now."]),
    ],
)
def test_sentences_are_those_of_the_prose(text, expected):
    """Abbreviations and numbers end no sentence; headings, tables and markup are not prose."""
    assert list(sentences(text)) == expected


ARTICLE = """# Bees

Bees make honey in a hive. The weather was fine on Tuesday afternoon.
A hive of bees needs flowers to make honey all summer. Somebody else once owned a red bicycle.
Honey from a hive keeps for years. Yes.
"""


def test_a_summary_quotes_the_most_telling_sentences_in_their_order():
    """Sentences made of the text's frequent words are chosen, and quoted as they follow each other."""
    text, _, data = run(text_summary(ARTICLE, sentences=2))
    assert data == {
        "sentences": ["Bees make honey in a hive.", "A hive of bees needs flowers to make honey all summer."],
        "total": 6,
    }
    assert text == "".join(f"{sentence}\n" for sentence in data["sentences"])


@pytest.mark.parametrize(("text", "expected"), [("", "The text has no sentences.\n"), ("Yes. No.", "Yes.\nNo.\n")])
def test_a_summary_of_next_to_nothing_is_all_there_is(text, expected):
    """The first sentences are quoted when none is worth choosing."""
    assert run(text_summary(text))[0] == expected


def test_a_document_is_streamed_back_unchanged_with_progress():
    """Parts joined are the document, and the last progress says that all of it was sent."""
    text, progress, data = stream(DOCUMENT, part=40)
    assert text == DOCUMENT
    assert progress[-1] == Progress(len(DOCUMENT), len(DOCUMENT), f"part {data['parts']} of {data['parts']}")
    assert data["characters"] == len(DOCUMENT)


def test_progress_does_not_double_the_frames_of_a_long_stream():
    """Progress comes about a hundred times for any number of parts."""
    _, progress, data = stream("word " * 12_000, part=16)
    assert data["parts"] > 3000
    assert len(progress) <= 101


def test_a_delay_spreads_the_stream_over_time():
    """The delay lies between the parts, neither before the first nor after the last."""
    started = time.monotonic()
    stream("sixteen letters\n" * 3, part=16, delay_ms=50)
    assert 0.09 <= time.monotonic() - started < 5


def test_an_empty_document_has_no_parts():
    """Streaming nothing is fine."""
    assert stream("") == ("", [], {"parts": 0, "characters": 0})


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: text_outline("x" * (module.MAX_TEXT + 1)), "too_long"),
        (lambda: text_search("x", ""), "bad_query"),
        (lambda: text_search("x", " "), "bad_query"),
        (lambda: text_search("x", "a\nb"), "bad_query"),
        (lambda: stream("a\n\n" * 60_000, part=16), "too_many_parts"),
        (lambda: stream("a\n\n" * 400, part=16, delay_ms=1000), "too_slow"),
    ],
)
def test_too_much_at_once_fails_before_anything_is_sent(call, code):
    """The error says what is wrong and what it may be."""
    assert failure_of(call).code == code


@pytest.mark.parametrize(
    ("function", "argument", "value"),
    [
        (text_outline, "depth", 0),
        (text_outline, "depth", 7),
        (text_search, "context", 21),
        (text_search, "max_matches", 0),
        (text_stats, "top", -1),
        (text_summary, "sentences", 0),
        (text_stream, "part", 15),
        (text_stream, "delay_ms", 1001),
    ],
)
def test_numbers_out_of_bounds_are_refused_by_the_schema(function, argument, value):
    """Bounds stand in the schema, so a call that breaks one never reaches the handler."""
    with pytest.raises(ToolError, match=rf"\$\.{argument}"):
        derive(function).bind({"text": "x", argument: value} | ({"query": "x"} if function is text_search else {}))


@settings(deadline=None)
@given(st.text(max_size=2000), st.integers(1, 60))
def test_parts_joined_are_the_text_and_none_is_too_long(text, size):
    """No character is lost or repeated however a text is cut."""
    cut = list(parts(text, size))
    assert "".join(cut) == text
    assert all(0 < len(part) <= size for part in cut)
    assert "".join(paragraphs(text)) == text


MARKDOWN = st.lists(
    st.sampled_from(
        [
            "#",
            " ",
            "\n",
            "---",
            "===",
            "```",
            "~~~",
            "`",
            "* ",
            "1. ",
            ">",
            "|",
            "[a](b)",
            "[",
            "](",
            "Word",
            "word. ",
            "Dr. ",
            "!",
            "。",
            "\r",
            "\t",
        ]
    )
    | st.text(max_size=5),
    max_size=60,
).map("".join)


@settings(deadline=None)
@given(MARKDOWN, st.text(st.characters(exclude_characters="\n"), min_size=1, max_size=3), st.integers(0, 3))
def test_every_tool_bears_any_text_and_repeats_itself(text, query, context):
    """Each tool ends with a result whatever the text, and with the same one the second time."""
    calls = [lambda: text_outline(text), lambda: text_stats(text), lambda: text_summary(text, sentences=2)]
    if query.strip():
        calls.append(lambda: text_search(text, query, context=context))
    for call in calls:
        assert run(call()) == run(call())


@settings(deadline=None)
@given(st.lists(st.sampled_from(["x", "hit", "a hit here", ""]), max_size=30), st.integers(0, 4), st.integers(1, 10))
def test_a_search_shows_lines_in_order_and_once(lines, context, bound):
    """The lines shown are exactly those within the context of the matches shown, in order."""
    text, _, data = run(text_search("\n".join(lines), "hit", context=context, max_matches=bound))
    hits = [number for number, line in enumerate(lines) if "hit" in line]
    near = {n for hit in hits[:bound] for n in range(hit - context, hit + context + 1) if 0 <= n < len(lines)}
    shown = [line for line in text.splitlines() if line[:1].isdigit()]
    assert [int(line.replace(":", "-").split("-")[0]) - 1 for line in shown] == sorted(near)
    assert data["total"] == len(hits)


HOSTILE = [
    "." * 100_000,
    ". " * 50_000,
    "[" * 100_000,
    "[x](" * 25_000,
    "`" * 100_000,
    "# " * 50_000,
    "\n" * 100_000,
    "a'" * 50_000,
    "_" * 100_000,
]
HOSTILE += [
    " " * 100_000 + "x",
    "#" + " " * 100_000 + "x",
    "-" * 100_000 + "x",
    "> " * 50_000,
    '."' * 50_000,
    "x" * 100_000,
    "a-" * 50_000,
    "```\n" * 25_000,
]
HOSTILE += ["# a" + " #" * 50_000 + "x", "```" + "`a" * 50_000, "1. " * 32_000, "a.b." * 25_000]


@pytest.mark.few(5)
@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text[:6]))
def test_no_text_makes_a_tool_slow(text):
    """Time grows with the length of a text, not with its square."""
    # Of this process: a busy machine is no reason to fail.
    started = time.process_time()
    for call in (text_outline(text), text_stats(text), text_summary(text), text_search(text, "needle")):
        run(call)
    list(parts(text, 16))
    assert time.process_time() - started < 3


def test_short_paragraphs_share_a_part_and_long_ones_are_cut():
    """A part holds whole paragraphs where they fit."""
    assert list(parts("one\n\ntwo\n\n" + "word " * 6 + "\n\nend", 16)) == [
        "one\n\ntwo\n\n",
        "word word word ",
        "word word word ",
        "\n\nend",
    ]
