"""Read records that people wrote, who make mistakes that programs do not."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from toolbus.platform.documents import TYPES, Record, parted, read, told
from toolbus.platform.records import GROUP_KEY, RUNTIME_KEY
from toolbus.results import DescriptorError


def read_written(key: str, document: object) -> Record:
    """Return the record in a decoded document, checked; the id may be left out, and unknown fields are refused.

    Raises:
        DescriptorError: it is not to be stored; the message begins with the key, and ends with the field.
    """
    prefix, name = parted(key)
    if not isinstance(document, dict):
        raise DescriptorError(f"{key}: it is no JSON object")
    unknown = next(unknown_fields(document, TYPES[prefix]), None)
    if unknown is not None:
        raise told(key, unknown)
    if prefix == GROUP_KEY and document.get("group_id", name) != name:
        raise DescriptorError(f"{key}: it is of {document['group_id']!r}, and its key is of {name!r}", path="$.group_id")
    if prefix == RUNTIME_KEY:
        document = {"backend_runtime": name, **document}
    elif prefix != GROUP_KEY and isinstance(document.get("meta"), dict):
        document = {**document, "meta": {"tool_id": name, **document["meta"]}}
    return read(key, msgspec.json.encode(document))


def unknown_fields(document: object, type_: Any, path: str = "$") -> Iterator[DescriptorError]:
    """Yield an error for each field that a type does not have."""
    struct = _struct_in(type_)
    if struct is None:
        return
    if isinstance(document, (list, tuple)):
        for index, each in enumerate(document):
            yield from unknown_fields(each, struct, f"{path}[{index}]")
    elif isinstance(document, dict):
        hints = typing.get_type_hints(struct)
        for name, value in document.items():
            if name in hints:
                yield from unknown_fields(value, hints[name], f"{path}.{name}")
            else:
                near = difflib.get_close_matches(str(name), hints, n=1)
                advice = f"; did you mean {near[0]!r}?" if near else ""
                yield DescriptorError(f"there is no field {str(name)!r}{advice}", path=f"{path}.{name}")


def _struct_in(type_: Any) -> Any:
    """Return the struct that a type is or holds; None for types of free content."""
    if isinstance(type_, type) and issubclass(type_, msgspec.Struct):
        return type_
    if typing.get_origin(type_) in {tuple, list, types.UnionType}:
        return next(filter(None, map(_struct_in, typing.get_args(type_))), None)
    return None
