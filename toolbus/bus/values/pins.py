"""Pins: which form of a tool an operator has approved."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from toolbus.bus.values.canonical import digest, own_digest
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import ConfigurationError, DescriptorError

KEY = "pin/"
"""The beginning of a pin's key among the static documents; the tool's name follows."""

PinState = Literal["approved", "rejected"]

LEAST_DIGITS = 16
"""Fewest digits of a digest that name a form: other forms that begin with fewer can be found by trying."""

_MOST_TOLD = 300
# Bytes.
_DIGEST = 32
_Told = Annotated[str, msgspec.Meta(max_length=1_000)]


class Pin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The decision about a tool.

    Attributes:
        state: ``approved`` for the form with this digest alone; ``rejected`` for every form.
        digest: see ``digest_of``.
        canonical: the same of canonical JSON, which other languages can make, too; empty in pins of earlier releases.
        parts: the digest of each field that is not at its default, to say later which of them have changed.
        by, reason: who decided it and why, for people.
        at: seconds since 1970.
    """

    state: PinState
    digest: Annotated[str, msgspec.Meta(max_length=128)] = ""
    canonical: Annotated[str, msgspec.Meta(max_length=128)] = ""
    parts: dict[str, str] = {}
    by: _Told = ""
    reason: _Told = ""
    at: float = 0.0


_pins = msgspec.json.Decoder(Pin)


def digest_of(tool: ToolDescriptor) -> str:
    """Return the digest of what an operator approves: 256 bits of BLAKE2b, in hexadecimal.

    It is of everything that the publisher says of a tool, but for its time limit and the length of its observations: of what a model is
    shown, what it may send, who may call it, and what runs then.
    """
    return own_digest(_pinned(tool), _DIGEST)


def approves(pin: Pin, tool: ToolDescriptor) -> bool:
    """Return whether a pin approves a tool as it is."""
    if pin.state != "approved":
        return False
    return pin.canonical == _canonical_of(tool) if pin.canonical else pin.digest == digest_of(tool)


def check_prefix(digest: str) -> None:
    """Refuse a beginning of a digest that is too short to name one form; none at all is no choice of a form.

    Raises:
        ConfigurationError: see there.
    """
    if digest and len(digest) < LEAST_DIGITS:
        raise ConfigurationError(
            f"{len(digest)} digits of a digest are too few to name one form; give {LEAST_DIGITS} or more, or all of it"
        )


def approved(tool: ToolDescriptor, *, by: str = "", reason: str = "", at: float = 0.0) -> Pin:
    """Return a pin that approves a tool as it is."""
    return Pin("approved", digest_of(tool), _canonical_of(tool), _parts(tool), by, reason, at)


def changes(pin: Pin, tool: ToolDescriptor) -> list[str]:
    """Return the fields of a tool that are not as they were approved, sorted."""
    now = _parts(tool)
    return sorted(name for name in pin.parts.keys() | now.keys() if pin.parts.get(name) != now.get(name))


def read(document: bytes) -> Pin:
    """Return a pin from its JSON.

    Raises:
        DescriptorError: it is none.
    """
    try:
        return _pins.decode(document)
    except DECODE_ERRORS as error:
        raise DescriptorError(str(error)[:_MOST_TOLD]) from None


def encoded(pin: Pin) -> bytes:
    """Return the JSON of a pin."""
    return msgspec.json.encode(pin)


def _pinned(tool: ToolDescriptor) -> ToolDescriptor:
    return msgspec.structs.replace(tool, timeout=0.0, output_limit=0)


def _canonical_of(tool: ToolDescriptor) -> str:
    fields = msgspec.to_builtins(tool)
    return digest({name: value for name, value in fields.items() if name not in {"timeout", "output_limit"}}, _DIGEST)


def _parts(tool: ToolDescriptor) -> dict[str, str]:
    fields: dict[str, Any] = msgspec.to_builtins(_pinned(tool))
    return {name: own_digest(value, _DIGEST) for name, value in fields.items()}
