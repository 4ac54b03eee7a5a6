"""``MountedApi``: the operations of an OpenAPI document as a service of the bus."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection, Mapping
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

import msgspec

from toolbus.bus.outbound import Answer, Guard, decoded, failure
from toolbus.bus.values.encoding import DECODE_ERRORS
from toolbus.bus.values.results import Blob, ConfigurationError, ToolError, ToolResult
from toolbus.bus.values.secrets import Secret
from toolbus.bus.worker.invocation import Invocation
from toolbus.edges.mounts.mount import Described, Mount
from toolbus.edges.mounts.openapi.operations import Document, Flawed, Operation, operations
from toolbus.edges.mounts.openapi.requests import Sent, Web, is_address, read_document, request_of
from toolbus.edges.mounts.options import Address, Options, check_address


def result_of(operation: Operation, answer: Answer) -> ToolResult:
    """Return the answer of an operation: JSON as data, texts as output, anything else as a blob; an error status as a tool_error."""
    if not 200 <= answer.status < 300:
        error = failure(f"{operation.method.upper()} {operation.path}", answer)
        return ToolResult(success=False, data=decoded(answer.body) if answer.is_json else None, error=error)
    if not answer.body:
        return ToolResult(output="")
    if answer.is_json:
        try:
            return ToolResult(data=msgspec.json.decode(answer.body))
        except DECODE_ERRORS:
            return ToolResult(output=answer.text)
    if answer.is_text or not answer.media_type:
        return ToolResult(output=answer.text)
    return ToolResult(output="", content=(Blob(answer.media_type, answer.body),))


_MOST_ADDRESS = 2_000


class MountedApi(Mount):
    """An API whose operations are tools.

    Hosts that the operator names, as the document's address, the base URL or in ``hosts``, are trusted: they may have private addresses,
    and get the headers. Others must be public, and get none.

    Args:
        name: the name of the mount, which is the service's id.
        document: a file, or an address.
        options: which of its operations are served, and how.
        headers, query: sources of what is sent with each request.
        base_url: where the API is; where the document says when empty.
        hosts: further hosts that may be reached.
        guard: decides which addresses are public.
    """

    def __init__(
        self,
        name: str,
        document: str,
        options: Options | None = None,
        *,
        headers: Mapping[str, Secret] | None = None,
        query: Mapping[str, Secret] | None = None,
        base_url: str = "",
        hosts: Collection[str] = (),
        guard: Guard | None = None,
    ) -> None:
        super().__init__(name, Address(document).shown if is_address(document) else document, options)
        self._document = document
        self._headers = dict(headers or {})
        self._query = dict(query or {})
        self._base_url = check_address(base_url) if base_url else ""
        named = [_host(place) for place in (document, self._base_url) if is_address(place)]
        self._named = {host.lower() for host in (*named, *hosts) if host}
        self._web = Web(self._named, guard)

    async def __aenter__(self) -> Self:
        """Read the document, and describe its operations.

        Raises:
            ConfigurationError: it can't be read, or there is nothing in it that can be served; says why.
        """
        document = Document(await read_document(self._document, self._web))
        described = Described(self.id, self.options)
        for count, each in enumerate(operations(document, {*self._headers, *self._query})):
            reason = each.reason if isinstance(each, Flawed) else self._add(each, document, described)
            if reason:
                described.leave_out(each.name, reason)
            if count % 20 == 19:
                await asyncio.sleep(0)
        if not described.documents and described.left_out:
            raise ConfigurationError(f"nothing in the document can be served: {next(iter(described.left_out.values()))}")
        await self.publish(described)
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave; nothing is kept open."""

    def _add(self, operation: Operation, document: Document, described: Described) -> str:
        """Add a tool for an operation; return why there is none, or an empty text."""
        try:
            base = self._base(operation, document)
        except ConfigurationError as error:
            return str(error)
        if len(described.documents) >= self.options.most_tools:
            return f"more than {self.options.most_tools:,} tools are not served; see --include and --most-tools"
        about = {"mount": self.id, "tool": operation.name, "operation": f"{operation.method.upper()} {operation.path}"}
        run = functools.partial(self._call, operation, base)
        described.add(operation.name, operation.description, operation.schema, operation.effect, run, about)
        return ""

    def _base(self, operation: Operation, document: Document) -> str:
        """Return the address that an operation's path follows.

        Raises:
            ConfigurationError: nothing says one, or headers would go to a host that nobody has named.
        """
        if self._base_url:
            return self._base_url
        servers = document.root.get("servers") or [{"url": "/"}]
        if not isinstance(servers, list):
            raise ConfigurationError("the document's servers are no list: give --base-url https://host/path")
        listed = [*operation.servers, *servers]
        url = _server(listed[0])
        if not is_address(url):
            if not is_address(self._document):
                raise ConfigurationError("the document does not say where the API is: give --base-url https://host/path")
            try:
                url = urljoin(self._document, url)
            except ValueError:
                raise ConfigurationError("the document names no address of the API: give --base-url https://host/path") from None
        base = check_address(url)
        if (self._headers or self._query) and _host(base) not in self._named:
            message = f"the document names the host {_host(base)!r}, and only hosts that you name get your headers"
            raise ConfigurationError(f"{message}: give --base-url, or --allow-host {_host(base)}")
        return base

    async def _call(self, operation: Operation, base: str, arguments: dict[str, Any], call: Invocation) -> ToolResult:
        try:
            headers = {name: source.value() for name, source in self._headers.items()}
            query = {name: source.value() for name, source in self._query.items()}
        except ConfigurationError as error:
            raise ToolError(str(error), type="unavailable", code="no_secret") from None
        request = request_of(operation, base, arguments, headers, query)
        try:
            return result_of(operation, await self._web.send(request, self.options.most_bytes))
        except Sent as error:
            if operation.effect == "once":
                message = f"{error}, so it is unknown whether the call had its effect"
                raise ToolError(message, type="outcome_unknown", code="connection_lost") from None
            raise ToolError(str(error), type="unavailable", code="connection_lost", retryable=True) from None


def _server(described: Any) -> str:
    """Return the address of a server, its variables filled in with their defaults."""
    if not isinstance(described, dict) or not isinstance(described.get("url"), str):
        return "/"
    url: str = described["url"]
    variables = described.get("variables")
    for name, each in variables.items() if isinstance(variables, dict) else ():
        default = each.get("default") if isinstance(each, dict) else None
        if isinstance(default, str):
            # Defaults that name other variables could make it endless.
            url = url.replace(f"{{{name}}}", default)[:_MOST_ADDRESS]
    return url


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").lower()
