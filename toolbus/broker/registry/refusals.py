"""Refusals of names that belong to others, with the ways out of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from toolbus.results import RegistrationRefused

OPERATOR = "operator"
"""Owns the names of static descriptors."""

_OTHER_SERVICE = " (service "


def registration_refused(owner: str, names: Mapping[str, str], waits: Mapping[str, float], cooldown: float) -> RegistrationRefused:
    """Return the error for a registration, with each name's owner and what to do.

    Args:
        owner: who was to be registered.
        names: the refused names (``tool/…``, ``tool-service/…``, ``queue/…``) and their owners.
        waits: seconds until a name is free, of those that no worker holds any more.
        cooldown: seconds that a name stays its owner's after its service is gone.
    """
    listed = ", ".join(f"{name} belongs to {holder!r}" for name, holder in names.items())
    ways = [*_operators(names), *_services(names), *_others(names, waits, cooldown)]
    return RegistrationRefused(f"not registered as {owner!r}: {listed}. {' '.join(ways)}", dict(names))


def item_refused(key: str, owner: str, *, owned: bool, cooldown: float, record: str = "") -> RegistrationRefused:
    """Return the error for a static document.

    Args:
        key: the document's key.
        owner: who has its name.
        owned: whether it was to be an owner's.
        cooldown: seconds that a name stays its owner's after its service is gone.
        record: where the server says so.
    """
    said = f" (record {record})" if record else ""
    if owned:
        message = f"{key} belongs to {owner!r}{said}; choose another name, or remove it with `toolbus rm {key}`"
    else:
        message = (
            f"{key} is published by {owner!r}{said}; choose another name, or stop that service first: its names are free "
            f"{cooldown:g} s later, or at once after `toolbus rm --force {key}`"
        )
    return RegistrationRefused(message, {key: owner})


def _operators(names: Mapping[str, str]) -> list[str]:
    removing = [f"`toolbus rm {name}`" for name, holder in names.items() if holder == OPERATOR]
    return [f"An operator put it there: {removing[0]} removes it."] if removing else []


def _services(names: Mapping[str, str]) -> list[str]:
    taken = any(_OTHER_SERVICE in holder for holder in names.values())
    return ["A name is one service's alone: choose another, or stop the other service."] if taken else []


def _others(names: Mapping[str, str], waits: Mapping[str, float], cooldown: float) -> list[str]:
    others = {name: holder for name, holder in names.items() if holder != OPERATOR and _OTHER_SERVICE not in holder}
    if not others:
        return []
    holder = next(iter(others.values()))
    freeing = next((name for name in others if name.startswith("tool")), next(iter(others)))
    if all(name in waits for name in others):
        wait = f"It is free in {math.ceil(max(waits[name] for name in others))} s"
    else:
        wait = f"It is free {cooldown:g} s after the last worker of its owner has stopped"
    return [
        f"If this is the same program, start it with TOOLBUS_OWNER={holder!r}. {wait};",
        f"with that owner's workers stopped, `toolbus rm --force {freeing}` frees it at once.",
    ]
