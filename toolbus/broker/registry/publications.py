"""Publications as they stand in the registry: read tool by tool, so that a bad one hides none of its siblings."""

from __future__ import annotations

import msgspec

from toolbus.broker.protocols import ALL_TOOLS, RefusedTool, ServiceRecord
from toolbus.broker.registry.pieces import elements, member
from toolbus.broker.versions import check_versions
from toolbus.descriptors import Publication, ServiceDescriptor, ToolDescriptor, check_service, check_tool
from toolbus.display import one_line
from toolbus.results import DescriptorError

_MOST_REASON = 300
# The parser takes half a surrogate pair right before the end for a document that was cut off, and would give that as the reason.
_BLANKS = b" " * 8
_UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, DescriptorError)


class _Named(msgspec.Struct):
    name: str


class _Apart(msgspec.Struct):
    """A publication whose tools are not read yet."""

    service: ServiceDescriptor
    tools: msgspec.Raw = msgspec.Raw(b"[]")
    owner: str = ""
    digest: str = ""
    versions: tuple[int, int] | None = None


_publications = msgspec.json.Decoder(Publication)
_apart = msgspec.json.Decoder(_Apart)
_lists = msgspec.json.Decoder(list[msgspec.Raw])
_tools = msgspec.json.Decoder(ToolDescriptor)
_names = msgspec.json.Decoder(_Named)
_texts = msgspec.json.Decoder(str)


def read_record(value: bytes) -> ServiceRecord:
    """Return a service's record from its table value: ``+`` for live or ``-``, and the publication.

    Raises:
        DescriptorError: the service itself can't be read, with the reason.
    """
    live, document = value[:1] == b"+", value[1:]
    try:
        publication = _publications.decode(document)
        check_versions(publication.versions)
        check_service(publication.service)
        for tool in publication.tools:
            check_tool(tool)
    except _UNREADABLE:
        return _read_apart(document, live=live)
    return ServiceRecord(publication, live)


def _read_apart(document: bytes, *, live: bool) -> ServiceRecord:
    try:
        apart = _service_of(document)
        check_versions(apart.versions)
        check_service(apart.service)
    except _UNREADABLE as error:
        raise DescriptorError(_reason(error)) from None
    service = apart.service.id
    refused: list[RefusedTool] = []
    tools: list[ToolDescriptor] = []
    for index, raw in enumerate(_listed(apart.tools, service, refused)):
        try:
            tools.append(check_tool(_tools.decode(raw)))
        except _UNREADABLE as error:
            refused.append(RefusedTool(_name(raw, index), service, _reason(error)))
    found = Publication(apart.service, tuple(tools), apart.owner, apart.digest, apart.versions)
    return ServiceRecord(found, live, tuple(refused))


def _service_of(document: bytes) -> _Apart:
    """Read a publication but for its tools, even if no parser takes these."""
    try:
        return _apart.decode(document)
    except _UNREADABLE:
        try:
            tools = member(document, "tools")
        except ValueError:
            tools = None
        if tools is None:
            raise
        apart = _apart.decode(document[: tools.start] + b"[]" + document[tools.end :])
        apart.tools = msgspec.Raw(tools.of(document))
        return apart


def _listed(tools: msgspec.Raw, service: str, refused: list[RefusedTool]) -> list[bytes | msgspec.Raw]:
    """Return the tools one by one, unread."""
    try:
        return [*_lists.decode(tools)]
    except _UNREADABLE as error:
        text = bytes(tools).strip()
        try:
            if text[:1] == b"[":
                return [piece.of(text) + _BLANKS for piece in elements(text)]
        except ValueError:
            pass
        refused.append(RefusedTool(ALL_TOOLS, service, _reason(error)))
        return []


def _name(raw: bytes | msgspec.Raw, index: int) -> str:
    try:
        name = _names.decode(raw).name
    except _UNREADABLE:
        name = _name_by_its_key(bytes(raw))
    return name[:128] or f"tool #{index + 1}"


def _name_by_its_key(tool: bytes) -> str:
    """Return the name of a tool that no parser takes; empty when that isn't to be had either."""
    try:
        name = member(tool, "name")
        return "" if name is None else _texts.decode(name.of(tool))
    except (*_UNREADABLE, ValueError):
        return ""


def _reason(error: Exception) -> str:
    return one_line(str(error), _MOST_REASON)
