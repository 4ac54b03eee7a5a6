"""Read a password from a file, at every connect, so that a rotated one is found."""

from __future__ import annotations

from pathlib import Path

import redis


def read_password(path: str) -> str:
    """Return the password that a file holds, without the blanks around it.

    Raises:
        redis.AuthenticationError: the file can't be read.
    """
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise redis.AuthenticationError(f"the password file can't be read: {error}") from None
