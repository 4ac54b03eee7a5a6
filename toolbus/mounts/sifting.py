"""Leave the tools that the protocol does not allow out of a server's list, of which the SDK would refuse the whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from toolbus.display import harmless

_LEFT_OUT = "toolbus/left_out"
_MOST_TEXT = 200


@asynccontextmanager
async def sifted(transport: AbstractAsyncContextManager[Any], version: Callable[[], str]) -> AsyncIterator[tuple[Any, Any]]:
    """Provide the streams of a transport, in whose lists of tools are only those that can be read.

    Args:
        transport: a connection to a server.
        version: returns the version of the protocol that is spoken over it.
    """
    async with transport as (incoming, outgoing):
        yield _Sifted(incoming, version), outgoing


def left_out_of(page: Any) -> Mapping[str, str]:
    """Return the tools that were left out of a page of a server's list, with the reasons."""
    found: Mapping[str, str] = (page.meta or {}).get(_LEFT_OUT, {})
    return found


class _Sifted:
    """A stream of messages as the SDK reads it."""

    def __init__(self, stream: Any, version: Callable[[], str]) -> None:
        self._stream = stream
        self._version = version

    @property
    def last_context(self) -> Any:
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        return self._sift(await self._stream.receive())

    async def aclose(self) -> None:
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return self._sift(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stream.__aexit__(*error)

    def _sift(self, item: Any) -> Any:
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            result = item.message.result
            # Of all results only lists of tools have such a field and no content.
            if isinstance(result.get("tools"), list) and "content" not in result:
                item.message.result = _sift_page(result, self._version())
        return item


def _sift_page(page: dict[str, Any], version: str) -> dict[str, Any]:
    meta = page.get("_meta")
    if isinstance(meta, dict) and _LEFT_OUT in meta:
        # It is ours alone.
        page = {**page, "_meta": {key: value for key, value in meta.items() if key != _LEFT_OUT}}
    if not _flaw(page, version) or _flaw({**page, "tools": []}, version):
        return page
    kept, left_out = [], dict[str, str]()
    for number, tool in enumerate(page["tools"]):
        flaw = _flaw({**page, "tools": [tool]}, version)
        if flaw:
            name = tool.get("name") if isinstance(tool, dict) else None
            left_out[harmless(name) if isinstance(name, str) and name else f"number {number + 1} of the list"] = flaw
        else:
            kept.append(tool)
    return {**page, "tools": kept, "_meta": {**(page.get("_meta") or {}), _LEFT_OUT: left_out}}


def _flaw(page: dict[str, Any], version: str) -> str:
    """Return why a page can't be read, or an empty text."""
    try:
        parse_server_result("tools/list", version, page)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        # The tool's place in the page comes first.
        path = ".".join(str(each) for each in first["loc"][2:]) or "the tool"
        return harmless(f"{path}: {first['msg']}")[:_MOST_TEXT]
    except RecursionError:
        return "it is nested too deeply"
    return ""
