"""Jokes in several styles: one service, and one tool for each style.

It shows the two-tier form: a tool is a descriptor that names a ``style``, and the
service reads that style from its config. The topic alone decides which joke is told,
so that a call which runs again on another worker yields the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from toolbus import ToolError, ToolService

DEFAULT_STYLE = "pun"
DEFAULT_TOPIC = "computers"
MAX_TOPIC = 80
MAX_USER = 80

# A topic may be singular or plural ("the moon", "cats"), so no verb may depend on it and no line may rhyme with it.
JOKES: Mapping[str, tuple[str, ...]] = {
    "pun": (
        "I opened a bakery that is all about {topic}.\nBusiness was slow at first, but now we are on a roll.",
        "I asked the librarian for a book about {topic}.\nShe said it was overdue, and I said I had been thinking that for years.",
        "I knitted a scarf in praise of {topic}.\nIt began as a short story, but it turned into quite a yarn.",
        "The choir that sings only about {topic} locked itself out of rehearsal.\nNobody could find the right key.",
        "I planted a garden in honour of {topic}.\nI was doubtful, but the idea took root and then it grew on me.",
        "My clock will only talk about {topic}.\nIt gets rather wound up, but I always give it the time of day.",
        "The electrician told me a story about {topic}.\nI was shocked. His current version is better grounded.",
        "I named my rowing boat after {topic}.\nIt was either oar, so everyone else went overboard.",
    ),
    "knock-knock": (
        "Lettuce.\nLettuce who?\nLettuce in, we were talking about {topic} and it started to rain!",
        "Olive.\nOlive who?\nOlive the stories about {topic} are true, and I brought the witnesses!",
        "Justin.\nJustin who?\nJustin time for the latest news about {topic}!",
        "Harry.\nHarry who?\nHarry up, the lecture about {topic} starts in five minutes!",
        "Noah.\nNoah who?\nNoah better joke about {topic}? Then you will have to take this one.",
        "Ivan.\nIvan who?\nIvan to tell you everything about {topic}, so put the kettle on!",
        "Wendy.\nWendy who?\nWendy talk turns to {topic}, I come straight over!",
        "Water.\nWater who?\nWater you doing in there with all those books about {topic}?",
    ),
    "limerick": (
        (
            "A baker from somewhere near Kent\nspoke of {topic} wherever she went.\n"
            "Her buns, by and by,\nrose up to the sky,\nand nobody knew what it meant."
        ),
        (
            "There once was a clerk who would write\nabout {topic} for half of the night.\n"
            "His boss read a page,\nflew into a rage,\nthen framed it and said: “He is right.”"
        ),
        (
            "A parrot who lived by the sea\nlearned of {topic} from watching TV.\n"
            "It lectured till dawn,\nand the cat, with a yawn,\nsent a bill for a listening fee."
        ),
        (
            "A robot who worked in a queue\ngave {topic} a careful review.\n"
            "When asked for the time\nit replied with a rhyme,\nand the rest of the workers did too."
        ),
        (
            "A scholar with ink on his nose\nput {topic} in elegant prose.\n"
            "The critics were kind,\nbeing mostly resigned\nto the footnotes, in forty-two rows."
        ),
        (
            "An owl with a doctor's degree\ntaught {topic} at night in a tree.\n"
            "The mice in row one\nnever thought it was fun,\nso they left, rather quickly, at three."
        ),
        (
            "A sailor who sailed with no chart\nhad {topic} engraved on his heart.\n"
            "When lost in the fog\nhe would write in his log:\n“It was going so well at the start.”"
        ),
        (
            "A painter who lived on the moon\nhummed of {topic} from midnight till noon.\n"
            "With no air for the sound\nit just drifted around,\nwhich was lucky: he sang out of tune."
        ),
    ),
}

_OPENINGS = {"knock-knock": "Knock, knock.\nWho's there?\n"}


def style_of(config: Mapping[str, Any]) -> str:
    """Return the style that a tool's config names.

    Raises:
        ToolError: there are no jokes in that style.
    """
    given = config.get("style") or DEFAULT_STYLE
    style = given.strip().lower().replace("_", "-").replace(" ", "-") if isinstance(given, str) else ""
    if style not in JOKES:
        known = ", ".join(sorted(JOKES))
        raise ToolError(
            f"no jokes in the style {str(given)[:MAX_TOPIC]!r}; known styles: {known}", code="unknown_style", type="invalid_arguments"
        )
    return style


def topic_of(arguments: Mapping[str, Any]) -> str:
    """Return the topic as it stands in a joke: one line of limited length.

    Raises:
        ToolError: the topic is not text.
    """
    given = arguments.get("topic")
    if given is None:
        return DEFAULT_TOPIC
    # The two-tier form shows types to the model without enforcing them; a number is a valid topic.
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise ToolError(f"the topic must be a string, not {type(given).__name__}", code="bad_topic", type="invalid_arguments")
    return _one_line(str(given), MAX_TOPIC) or DEFAULT_TOPIC


def joke(style: str, topic: str) -> str:
    """Return the joke about a topic in a known style; equal topics get equal jokes."""
    jokes = JOKES[style]
    # Not hash(), which differs between processes: a worker that takes over must find the same joke.
    key = hashlib.blake2b(f"{style}\n{topic.casefold()}".encode(errors="replace"), digest_size=8).digest()
    return _OPENINGS.get(style, "") + jokes[int.from_bytes(key) % len(jokes)].replace("{topic}", topic)


def parts(user: str, style: str, topic: str) -> Iterator[str]:
    """Yield the answer in the parts in which it is streamed: the greeting, then line by line."""
    yield f"Hey {_one_line(user, MAX_USER) or 'there'}! "
    yield f"Here's a {style} for you:\n\n"
    yield from joke(style, topic).splitlines(keepends=True)


def _one_line(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def _descriptor(name: str, description: str, style: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": description,
        "style": style,
        "arguments": [{"name": "topic", "type": "string", "description": "What the joke is about; may be left out"}],
        "groups": ["examples"],
        "category": "fun",
    }


class JokeService(ToolService):
    """Tells jokes; a tool chooses the style, the caller the topic."""

    id = "joke-service"
    config_params = ["style"]  # noqa: RUF012 - a declaration, read once when the service registers
    effect = "read"
    tools = [  # noqa: RUF012 - as above
        _descriptor("tell-pun", "Tell a pun about a topic", "pun"),
        _descriptor("tell-knock-knock", "Tell a knock-knock joke about a topic", "knock-knock"),
        _descriptor("tell-limerick", "Recite a limerick about a topic", "limerick"),
    ]

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[str]:
        """Stream a joke for ``user``, in the style of ``config``, about the topic in ``arguments``."""
        for part in parts(user, style_of(config), topic_of(arguments)):
            yield part
