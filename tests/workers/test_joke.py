"""The joke service: its format, its styles, and the same joke for the same call."""

import asyncio
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toolbus_workers.joke import DEFAULT_TOPIC, JOKES, MAX_TOPIC, JokeService, joke, parts, style_of, topic_of

from toolbus import ToolError


def answer(user, config, arguments):
    async def collect():
        return [part async for part in JokeService().invoke(user, config, arguments)]

    return asyncio.run(collect())


@pytest.mark.parametrize("style", sorted(JOKES))
def test_an_answer_greets_names_the_style_and_tells_the_joke_behind_a_blank_line(style):
    """The text is exactly the greeting with user and style, a blank line, and the joke about the topic."""
    streamed = answer("alice", {"style": style}, {"topic": "the moon"})
    head, blank, body = "".join(streamed).partition("\n\n")
    assert head == f"Hey alice! Here's a {style} for you:"
    assert blank == "\n\n"
    assert body == joke(style, "the moon")
    assert "the moon" in body
    assert len(streamed) > 3


def test_style_defaults_to_a_pun_and_topic_to_something():
    """Without config and arguments there still is a joke: a pun."""
    assert "".join(answer("bob", {}, {})) == f"Hey bob! Here's a pun for you:\n\n{joke('pun', DEFAULT_TOPIC)}"


@pytest.mark.parametrize("topic", [None, "", "  \n "])
def test_an_empty_topic_is_the_default_topic(topic):
    """An absent, null or blank topic counts as none."""
    assert topic_of({"topic": topic}) == topic_of({}) == DEFAULT_TOPIC


@pytest.mark.parametrize("given_style", ["limerick", "Limerick", " LIMERICK "])
def test_a_style_is_read_with_tolerance(given_style):
    """Case and outer spaces of a style do not matter."""
    assert style_of({"style": given_style}) == "limerick"


def test_spaces_and_underscores_in_a_style_count_as_hyphens():
    """A descriptor may spell knock-knock in any way."""
    assert style_of({"style": "knock knock"}) == style_of({"style": "knock_knock"}) == "knock-knock"


@pytest.mark.parametrize("style", ["haiku", 7, ["pun"]])
def test_an_unknown_style_fails_and_lists_the_known_ones(style):
    """The error says which styles there are."""
    with pytest.raises(ToolError, match="knock-knock, limerick, pun") as failure:
        answer("alice", {"style": style}, {})
    assert (failure.value.error.type, failure.value.error.code) == ("invalid_arguments", "unknown_style")


@pytest.mark.parametrize("topic", [["cats"], {"a": 1}, True])
def test_a_topic_that_is_no_text_fails(topic):
    """Types are not enforced on the way, so the service refuses what it can't put into a sentence."""
    with pytest.raises(ToolError, match="the topic must be a string"):
        answer("alice", {}, {"topic": topic})


def test_a_number_may_be_a_topic():
    """Models pass 42 for "42"."""
    assert "42" in "".join(answer("alice", {}, {"topic": 42}))


@settings(deadline=None)
@given(st.sampled_from(sorted(JOKES)), st.text(max_size=200), st.text(max_size=200))
def test_the_same_call_yields_the_same_parts_and_never_fails_on_text(style, user, topic):
    """A joke depends on style and topic alone, whatever the characters, and its topic stays on one line."""
    shown = topic_of({"topic": topic})
    assert list(parts(user, style, shown)) == list(parts(user, style, shown))
    assert shown in joke(style, shown)
    assert len(shown) <= MAX_TOPIC
    assert "\n" not in shown


def test_a_joke_is_the_same_in_another_process():
    """The choice does not hang on Python's per-process string hashes."""
    code = "from toolbus_workers.joke import joke; print([joke('pun', str(n)) for n in range(20)])"
    outputs = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout for _ in range(2)}
    assert outputs == {f"{[joke('pun', str(n)) for n in range(20)]}\n"}


@pytest.mark.parametrize("style", sorted(JOKES))
def test_every_joke_can_be_chosen(style):
    """Topics spread over all jokes of a style."""
    told = {joke(style, str(number)).replace(str(number), "{topic}") for number in range(1000, 1400)}
    assert len(told) == len(JOKES[style])


@pytest.mark.parametrize("text", [text for jokes in JOKES.values() for text in jokes])
def test_every_joke_weaves_the_topic_in_once(text):
    """No joke ignores its topic."""
    assert text.count("{topic}") == 1


def test_topics_with_braces_are_left_alone():
    """A topic is data, never a template."""
    assert "{user} {0}" in joke("pun", "{user} {0}")


@pytest.mark.parametrize("descriptor", JokeService.tools, ids=lambda descriptor: descriptor["name"])
def test_every_tool_has_a_known_style_and_an_optional_topic(descriptor):
    """Three tools of different styles share the service."""
    assert style_of(descriptor) == descriptor["style"]
    assert [argument["name"] for argument in descriptor["arguments"]] == ["topic"]
    assert not descriptor["arguments"][0].get("required")
