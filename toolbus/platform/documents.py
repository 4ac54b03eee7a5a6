"""Read and write the registry's items of the platform: recorded and pending tools, groups and backend runtimes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from toolbus.client.tools.groups import ToolGroup
from toolbus.descriptors import digest
from toolbus.platform.checks import check_group, check_recorded, check_runtime
from toolbus.platform.records import GROUP_KEY, PENDING_KEY, RECORD_KEY, RUNTIME_KEY, BackendRuntime, RecordedTool
from toolbus.results import DescriptorError

Record = RecordedTool | ToolGroup | BackendRuntime

PREFIXES = (RECORD_KEY, PENDING_KEY, GROUP_KEY, RUNTIME_KEY)
"""Begin the keys of the platform's items."""

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
TYPES: Mapping[str, type[Record]] = {
    RECORD_KEY: RecordedTool,
    PENDING_KEY: RecordedTool,
    GROUP_KEY: ToolGroup,
    RUNTIME_KEY: BackendRuntime,
}
"""The type of the items whose keys begin with each prefix."""


def is_platform_key(key: str) -> bool:
    """Return whether an item of this key is one of the platform's."""
    return key.startswith(PREFIXES)


def key_of(record: Record, *, pending: bool = False) -> str:
    """Return the key under which a record is kept."""
    if isinstance(record, RecordedTool):
        return f"{PENDING_KEY if pending else RECORD_KEY}{record.tool_id}"
    return f"{GROUP_KEY}{record.group_id}" if isinstance(record, ToolGroup) else f"{RUNTIME_KEY}{record.backend_runtime}"


def read(key: str, document: bytes) -> Record:
    """Return the record that a stored document is, checked.

    Raises:
        DescriptorError: it can't be used; the message begins with the key, and ends with the field.
    """
    try:
        found = _checked(msgspec.json.decode(document, type=TYPES[parted(key)[0]]), key)
    except _UNREADABLE as error:
        message, _, where = str(error).partition(" - at `")
        raise DescriptorError(f"{key}: {message}", path=where.rstrip("`") or "$") from None
    except DescriptorError as error:
        raise told(key, error) from None
    return found


def encode(record: Record) -> bytes:
    """Return the document of a record, with the keys of its schemas in their order.

    Raises:
        DescriptorError: it is not to be stored; the message begins with the key, and ends with the field.
    """
    key = key_of(record)
    try:
        _checked(record, key)
        return msgspec.json.encode(record)
    except DescriptorError as error:
        raise told(key, error) from None
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise DescriptorError(f"{key} can't be stored: {error}") from None


def digest_of(tool: RecordedTool) -> str:
    """Return the digest of all that a person approves: the descriptor, the sources, how it runs, and its code's digest."""
    return digest(tool)


def told(entry: str, error: DescriptorError) -> DescriptorError:
    """Return an error with the entry that it is about at its beginning."""
    message = str(error).removesuffix(f" - at `{error.path}`")
    return DescriptorError(f"{entry}: {message}", path=error.path)


def parted(key: str) -> tuple[str, str]:
    """Return the prefix and the id of a key.

    Raises:
        DescriptorError: it is none of the platform's.
    """
    for prefix in PREFIXES:
        if key.startswith(prefix):
            return prefix, key.removeprefix(prefix)
    raise DescriptorError(f"{key!r} is none of {', '.join(f'{each}ID' for each in PREFIXES)}")


def _checked(record: Record, key: str) -> Record:
    name = parted(key)[1]
    if isinstance(record, ToolGroup):
        # A group is called by its key.
        return check_group(msgspec.structs.replace(record, group_id=name))
    if isinstance(record, RecordedTool):
        _check_id(record.tool_id, name, "$.meta.tool_id")
        return check_recorded(record)
    _check_id(record.backend_runtime, name, "$.backend_runtime")
    return check_runtime(record)


def _check_id(found: str, expected: str, path: str) -> None:
    if found != expected:
        raise DescriptorError(f"it is of {found!r}, and its key is of {expected!r}", path=path)
