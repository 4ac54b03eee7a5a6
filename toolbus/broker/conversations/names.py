"""``Name``: the name of a conversation, checked."""

from __future__ import annotations

import msgspec

from toolbus.broker.reading import MOST_TEXT
from toolbus.display import visible
from toolbus.encoding import whole_text
from toolbus.results import ConfigurationError


class Name(msgspec.Struct, frozen=True):
    """The name of a conversation: each user has their own."""

    user: str
    id: str


def name_of(user: str, id: str) -> Name:
    """Return the name of a user's conversation that there may be.

    Raises:
        ConfigurationError: a part is no text, the id is empty, or one is too long.
    """
    for part in (user, id):
        if not isinstance(part, str) or len(part) > MOST_TEXT or whole_text(part) != part:
            raise ConfigurationError(f"the id of a conversation is a text of 1 to {MOST_TEXT} characters, and so is its user's name")
    if not id:
        raise ConfigurationError("the id of a conversation is empty")
    return Name(user, id)


def name_to_hold(user: str, id: str) -> Name:
    """Return the name of a user's conversation that is begun or continued.

    Raises:
        ConfigurationError: it is none, see ``name_of``, or the id has characters that are invisible, that turn text, or that command a
            terminal.
    """
    name = name_of(user, id)
    if visible(id) != id:
        raise ConfigurationError(f"the id of a conversation has invisible or imitating characters: '{visible(id)}'")
    return name
