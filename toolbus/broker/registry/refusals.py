"""Word the errors of names that belong to others."""

from __future__ import annotations

from toolbus.results import RegistrationRefused


def refused(key: str, owner: str, *, owned: bool) -> RegistrationRefused:
    """Return the error for a key that belongs to another owner."""
    if owned:
        message = f"{key} belongs to {owner!r}; choose another name, or remove it with `toolbus rm {key}`"
    else:
        message = f"{key} is published by {owner!r}; stop that service first, or choose another name"
    return RegistrationRefused(message, {key: owner})
