"""Say where a secret value is, and read it there: an environment variable, or a file."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from toolbus.bus.values.results import ConfigurationError

PREFIX = "TOOLBUS_"
_WITHIN = re.compile(r"\{((?:env|file):[^{}]+)\}")


class Secret(msgspec.Struct, frozen=True):
    """A value that is kept out of arguments and logs: an environment variable, or a file that is read each time.

    Attributes:
        source: ``env:NAME`` or ``file:PATH``.
        before: what stands before it, such as ``Bearer``.
    """

    source: str
    before: str = ""

    def value(self) -> str:
        """Return the value.

        Raises:
            ConfigurationError: there is none.
        """
        kind, _, place = self.source.partition(":")
        try:
            found = os.environ.get(place) if kind == "env" else Path(place).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigurationError(f"the value of {self.source} can't be read: {getattr(error, 'strerror', '') or error}") from None
        found = (found or "").strip()
        if not found:
            raise ConfigurationError(f"{self.source} has no value: set the variable, or write the file")
        if not found.isprintable() or not found.isascii():
            raise ConfigurationError(f"{self.source} has characters that a header can't hold")
        return f"{self.before}{found}"


def secret(source: str, before: str = "") -> Secret:
    """Return a value's source.

    Raises:
        ConfigurationError: it names none; the text itself is not repeated, since it may be the secret.
    """
    if not is_source(source):
        raise ConfigurationError("give where a secret is, not the secret: env:VARIABLE or file:PATH")
    return Secret(source, before)


def is_source(text: str) -> bool:
    """Return whether a text says where a value is."""
    kind, colon, place = text.partition(":")
    return kind in {"env", "file"} and bool(colon and place)


def value_of(text: str) -> str:
    """Return the value that a text says the place of; of other texts, the text with the values of ``{env:NAME}`` and ``{file:PATH}`` in it.

    Records can't name our own settings, which hold what every agent and worker is let in by.

    Raises:
        ConfigurationError: there is nothing at that place.
    """
    return _value(text) if is_source(text) else _WITHIN.sub(lambda found: _value(found[1]), text)


def _value(source: str) -> str:
    if source.startswith(f"env:{PREFIX}"):
        raise ConfigurationError(f"{source} is a setting of toolbus, which is not given to tools")
    return Secret(source).value()
