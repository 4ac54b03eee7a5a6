"""The forms of the server's answers, by script and by command: of which types they are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

Form = type[msgspec.Struct]
"""A form, against which ``msgspec.convert((reply,), form)`` checks an answer without a call of Python code; its name is for people."""

_OTHERS: dict[Form, Form] = {}

Flat = list[bytes]
Entries = list[tuple[bytes, Flat | None]]
Found = dict[bytes, Entries] | None
Some = Annotated[Flat, msgspec.Meta(min_length=1)]


def fits(reply: object, form: Form) -> bool:
    """Return whether an answer has a form, or one of its alternatives."""
    wanted: Form | None = form
    while wanted is not None:
        try:
            msgspec.convert((reply,), wanted)
        except msgspec.ValidationError:
            wanted = _OTHERS.get(wanted)
        else:
            return True
    return False


def _form(name: str, kind: Any) -> Form:
    """Return the form of a type; of a list of types, the first is the usual one."""
    usual, *others = kind if isinstance(kind, list) else [kind]
    made = msgspec.defstruct(name, [("answer", usual)], array_like=True)
    if others:
        _OTHERS[made] = _form(name, others)
    return made


def _forms(kinds: Mapping[str, Any]) -> Mapping[str, Form]:
    return MappingProxyType({name: _form(name.rpartition("/")[2], kind) for name, kind in kinds.items()})


SCRIPTS = _forms(
    {
        "publish/publish": bytes,
        "publish/cancel": bytes,
        "publish/share": [tuple[bytes, bytes | int], tuple[bytes, bytes, bytes], tuple[bytes]],
        "publish/leave": bytes,
        "publish/listen": int,
        "finish/send": list[int],
        "finish/finish": [tuple[bytes, bytes, list[int], Flat, int], tuple[bytes, bytes]],
        "finish/finish_each": tuple[bytes, bytes, list[int], Flat, int],
        "lease/beat": tuple[bytes, list[int], Flat],
        "lease/renew": tuple[bytes, bytes, Flat],
        "recover/reap": tuple[bytes, bytes, list[tuple[bytes, int, int, Flat | None, bytes, bytes]], int, bytes],
        "recover/rescue": tuple[int, bytes],
        "recover/hand_back": int,
        "recover/hand_over": int,
        "recover/outlive": tuple[int, bytes, int],
        "recover/retire": int,
        "recover/mend": list[int | bytes],
        "take/start": Flat,
        "take/count": int,
        "take/take": Annotated[list[int | bytes | Entries], msgspec.Meta(min_length=2)],
        "dead_letters/bury": int,
        "dead_letters/redrive": [tuple[bytes, bytes | int], tuple[bytes]],
        "dead_letters/purge": int,
        "sessions/own": tuple[bytes, bytes, bytes, Flat],
        "sessions/disown": int,
        "recover/pass_on": int,
        "sessions/line": Flat,
        "sessions/save": int,
        "sessions/forget": int,
        "sessions/load": Flat,
        "sessions/elsewhere": Flat,
        "registry/register": [tuple[bytes, int, bytes, bytes], Some],
        "registry/unregister": int,
        "registry/sweep": int,
        "registry/item": tuple[bytes, bytes | int],
        "registry/replace": tuple[bytes, bytes | int],
        "registry/transfer": int,
        "registry/overview": tuple[int, int, int, int, int],
        "results/keep": int,
        "registry/overviews": list[tuple[int, int, int, int, int]],
        "limits/spend": int,
        "limits/quota": int,
        "limits/usage": bytes,
        "confirmations/ask": [tuple[bytes], tuple[bytes, bytes | int]],
        "confirmations/answer": [tuple[bytes], tuple[bytes, bytes]],
        "confirmations/withdraw": bytes | None,
        "confirmations/extend": bytes,
        "confirmations/pause": bytes,
        "conversations/hold": [tuple[bytes, bytes, int, int, int], tuple[bytes, bytes, int], tuple[bytes]],
        "conversations/append": [tuple[bytes], tuple[bytes, int]],
        "conversations/renew": int,
        "conversations/remove": [tuple[bytes], tuple[bytes, int]],
        "creations/submit": [tuple[bytes], tuple[bytes, int]],
        "creations/claim": tuple[bytes],
        "creations/write": bytes,
        "creations/end": int,
        "creations/stop": bytes,
        "recent/note": int,
        "statistics/tell": int,
        "routes/renew": tuple[int, list[int]],
        "routes/release": int,
        "routes/output": int,
    }
)
"""The form of each script's answer."""

ANYTHING = _form("the command", Any)
"""The form of every answer."""

PUSHED = _form("SUBSCRIBE", Literal["its answer is pushed"])
"""The form of what no reply is the answer to."""

COMMANDS = _forms(
    {
        "CLIENT": int,
        "DEL": int,
        "EXISTS": int,
        "HDEL": int,
        "GET": bytes | None,
        "HGET": bytes | None,
        "HMGET": list[bytes | None],
        "HSCAN": tuple[bytes, Flat],
        "HSET": int,
        "INFO": bytes,
        "LRANGE": Flat,
        "PING": bytes,
        "PTTL": int,
        "PUBLISH": int,
        "ROLE": list,
        "SCAN": tuple[bytes, Flat],
        "SET": bytes | None,
        "SISMEMBER": int,
        "SREM": int,
        "TIME": tuple[bytes, bytes],
        "WAIT": int,
        "XADD": bytes | None,
        "XDEL": int,
        "XLEN": int,
        "XRANGE": list[tuple[bytes, Flat]],
        "XREAD": Found,
        "XREADGROUP": Found,
        "XREVRANGE": list[tuple[bytes, Flat]],
        "XTRIM": int,
        "ZRANGE": Flat,
        "ZREVRANGE": Flat,
        "ZSCAN": tuple[bytes, list[bytes | float]],
    }
)
"""The form of the answer to each command that goes out alone."""
