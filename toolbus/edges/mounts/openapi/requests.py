"""Make the request of an operation from a call's arguments."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from toolbus.bus.outbound import Answer, Guard, Transport
from toolbus.bus.support.safe_text import reason_of, type_name
from toolbus.bus.values.encoding import DECODE_ERRORS, encode_json
from toolbus.bus.values.results import ConfigurationError, ToolError
from toolbus.edges.mounts.openapi.operations import Body, Operation, Parameter
from toolbus.edges.mounts.options import check_address

_SEPARATORS = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C", "simple": ","}
_MOST_URL = 16_384


def request_of(
    operation: Operation, base: str, arguments: Mapping[str, Any], headers: Mapping[str, str], query: Mapping[str, str]
) -> httpx.Request:
    """Return the request of one call.

    Args:
        operation: what is called.
        base: the address that its path follows.
        arguments: of the call, which fit the operation's schema.
        headers, query: what the operator adds.

    Raises:
        ToolError: an argument can't be sent where it must go.
    """
    path, pairs, sent = operation.path, [f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in query.items()], dict(headers)
    for parameter in operation.parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            path = path.replace(f"{{{parameter.name}}}", _in_path(parameter, value))
        elif parameter.place == "query":
            pairs += _in_query(parameter, value)
        elif parameter.name.lower() not in {name.lower() for name in headers}:
            sent[parameter.name] = _in_header(parameter, value)
    content, media_type = _content(operation.body, arguments)
    if media_type:
        sent["Content-Type"] = media_type
    url = base.rstrip("/") + path + (f"?{'&'.join(pairs)}" if pairs else "")
    if len(url) > _MOST_URL:
        raise _unfit("the address", f"would have more than {_MOST_URL:,} characters")
    sent.setdefault("Accept", "application/json, */*;q=0.5")
    return httpx.Request(operation.method.upper(), url, headers=sent, content=content)


def _in_path(parameter: Parameter, value: Any) -> str:
    text = _joined(parameter, value)
    # Dots would name another path, and so does nothing at all.
    if text in {"", ".", ".."}:
        raise _unfit(parameter.argument, "can't be empty or dots in a path")
    return text


def _in_query(parameter: Parameter, value: Any) -> list[str]:
    name = quote(parameter.name, safe="")
    if not parameter.as_json:
        if isinstance(value, dict) and parameter.style == "deepObject":
            return [f"{name}%5B{_text(parameter, key)}%5D={_text(parameter, each)}" for key, each in value.items()]
        if isinstance(value, dict) and parameter.explode and parameter.style == "form":
            return [f"{_text(parameter, key)}={_text(parameter, each)}" for key, each in value.items()]
        if isinstance(value, list) and parameter.explode and parameter.style != "deepObject":
            return [f"{name}={_text(parameter, each)}" for each in value]
        if parameter.style == "deepObject" or (isinstance(value, dict) and parameter.explode):
            raise _unfit(parameter.argument, f"is of the style {parameter.style}, which can't hold a value of this kind")
    return [f"{name}={_joined(parameter, value)}"]


def _in_header(parameter: Parameter, value: Any) -> str:
    text = _joined(parameter, value)
    if not text.isascii() or not text.isprintable():
        raise _unfit(parameter.argument, "has characters that a header can't hold")
    return text


def _joined(parameter: Parameter, value: Any) -> str:
    if parameter.as_json:
        return _text(parameter, encode_json(value).decode())
    separator = _SEPARATORS[parameter.style]
    if isinstance(value, list):
        return separator.join(_text(parameter, each) for each in value)
    if isinstance(value, dict):
        joint = "=" if parameter.explode else separator
        return separator.join(f"{_text(parameter, key)}{joint}{_text(parameter, each)}" for key, each in value.items())
    return _text(parameter, value)


def _text(parameter: Parameter, value: Any) -> str:
    if isinstance(value, (dict, list)):
        raise _unfit(parameter.argument, f"has lists or objects within, which a {parameter.place} can't hold")
    return _plain(value) if parameter.place == "header" else quote(_plain(value), safe="")


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _content(body: Body | None, arguments: Mapping[str, Any]) -> tuple[bytes | None, str]:
    """Return the body and its media type; nothing when no argument is part of it."""
    if body is None:
        return None, ""
    if body.whole:
        if body.whole not in arguments:
            return None, ""
        value = arguments[body.whole]
    else:
        value = {name: arguments[argument] for argument, name in body.fields.items() if argument in arguments}
    if body.media_type == "text/plain":
        return str(value).encode(), "text/plain; charset=utf-8"
    if body.media_type == "application/x-www-form-urlencoded":
        pairs = [(name, each) for name, value in value.items() for each in (value if isinstance(value, list) else [value])]
        fields = (f"{quote(name, safe='')}={quote(_field(each), safe='')}" for name, each in pairs)
        return "&".join(fields).encode(), body.media_type
    try:
        return encode_json(value), body.media_type
    except (TypeError, ValueError) as error:
        raise _unfit("the body", f"can't be sent as JSON: {error}") from None


def _field(value: Any) -> str:
    return encode_json(value).decode() if isinstance(value, (dict, list)) else _plain(value)


def _unfit(argument: str, reason: str) -> ToolError:
    return ToolError(f"{argument}: {reason}", type="invalid_arguments", code="unfit")


_CONNECT = 10.0
_MOST_TRIED = 4
_MOST_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Sent(Exception):
    """The connection was lost after the request may have arrived."""


class Web:
    """Sends requests.

    Args:
        named: hosts that an operator has named, which may have any address; every other one must be public.
        guard: decides which addresses are.
    """

    def __init__(self, named: Collection[str] = (), guard: Guard | None = None) -> None:
        self._named = {host.lower() for host in named}
        self._guard = guard or Guard()
        self._tls: ssl.SSLContext | None = None

    async def get(self, url: str, most: int) -> Answer:
        """Return what is at an address.

        Raises:
            ToolError: it can't be reached, or has more than ``most`` bytes.
        """
        try:
            return await self.send(httpx.Request("GET", url, headers={"Accept": "application/json, */*;q=0.5"}), most)
        except Sent as error:
            raise ToolError(str(error), type="unavailable", code="connection_lost", retryable=True) from None

    async def send(self, request: httpx.Request, most: int) -> Answer:
        """Send a request and return its answer; a GET follows redirects to the same host.

        Raises:
            ToolError: its host may not be reached, can't be reached, or answers with more than ``most`` bytes.
            Sent: the connection was lost meanwhile.
        """
        for _ in range(_MOST_REDIRECTS + 1):
            async with self._open(request) as response:
                target = response.headers.get("location", "")
                if response.status_code not in _REDIRECTS or not target:
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    return Answer(response.status_code, headers, await _body(response, most))
            request = _redirected(request, target)
        raise ToolError(f"{request.url.host} redirects more than {_MOST_REDIRECTS} times", code="too_many_redirects")

    @asynccontextmanager
    async def _open(self, request: httpx.Request) -> AsyncIterator[httpx.Response]:
        host, port = request.url.raw_host.decode("ascii"), request.url.port or (443 if request.url.scheme == "https" else 80)
        addresses = [host] if host.lower() in self._named else (await self._guard.addresses(host, port))[:_MOST_TRIED]
        async with Transport(self._verify(request.url)) as transport:
            response = await _first(transport, request, addresses)
            transport.received_headers()
            try:
                yield response
            except httpx.HTTPError as error:
                raise Sent(f"{host} broke off its answer ({type_name(error)})") from None
            finally:
                await response.aclose()

    def _verify(self, url: httpx.URL) -> ssl.SSLContext | bool:
        if url.scheme != "https":
            return False
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls


async def _first(transport: httpx.AsyncHTTPTransport, request: httpx.Request, addresses: list[str]) -> httpx.Response:
    """Return the answer from the first address that can be connected to."""
    host = request.url.host
    for address in addresses:
        try:
            return await transport.handle_async_request(_to(request, address))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            continue
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol) as error:
            raise ToolError(f"the request can't be sent: {error}", type="invalid_arguments", code="unfit") from None
        except httpx.HTTPError as error:
            raise Sent(f"{host} broke off the connection ({type_name(error)})") from None
    raise ToolError(f"{host} can't be reached now", type="unavailable", code="unreachable", retryable=True)


def _to(request: httpx.Request, address: str) -> httpx.Request:
    """Return a request that is sent to an address, with the Host header and the TLS name of its host."""
    headers = httpx.Headers(request.headers)
    headers.update({"Host": request.url.netloc.decode("ascii"), "Accept-Encoding": "gzip", "Connection": "close"})
    return httpx.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=headers,
        content=request.content,
        extensions={
            "timeout": {"connect": _CONNECT, "read": None, "write": None, "pool": None},
            "sni_hostname": request.url.raw_host.decode("ascii"),
        },
    )


def _redirected(request: httpx.Request, target: str) -> httpx.Request:
    """Return the request that a redirect asks for.

    Raises:
        ToolError: it leads to another host, which would get what was meant for this one, or the request is no GET.
    """
    try:
        url = request.url.join(target)
        origin = (url.scheme, url.host, url.port)
    except (httpx.InvalidURL, ValueError):
        raise ToolError(f"{request.url.host} redirects to what is no address", code="bad_redirect") from None
    if request.method != "GET" or origin != (request.url.scheme, request.url.host, request.url.port) or url.userinfo:
        raise ToolError(f"{request.url.host} redirects to {url.host or 'another place'}, which is not followed", code="redirect_refused")
    return httpx.Request("GET", url, headers=request.headers)


async def _body(response: httpx.Response, most: int) -> bytes:
    """Return a body of at most ``most`` bytes, as sent and decompressed."""
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in {"identity", "", "gzip"}:
        raise ToolError(f"the answer is compressed with {coding[:30]!r}, which was not asked for", code="bad_answer")
    unzip = zlib.decompressobj(zlib.MAX_WBITS | 16) if coding == "gzip" else None
    body, sent = bytearray(), 0
    async for chunk in response.aiter_raw():
        sent += len(chunk)
        try:
            body += chunk if unzip is None else unzip.decompress(chunk, most + 1 - len(body))
        except zlib.error:
            raise ToolError("the answer says that it is compressed with gzip, and is not", code="bad_answer") from None
        if sent > most or len(body) > most:
            raise ToolError(f"the answer has more than {most:,} bytes, so it was not read; ask for less", code="too_long")
    return bytes(body)


MOST_BYTES = 20_000_000
# Parts of a document; aliases of YAML can make a short text endless.
_MOST_PARTS = 2_000_000
_MOST_LEVELS = 100
_SECONDS = 60.0


def is_address(place: str) -> bool:
    """Return whether a document is at an address, not in a file."""
    return place.startswith(("http://", "https://"))


async def read_document(place: str, web: Web) -> dict[str, Any]:
    """Return a document.

    Args:
        place: a file, or an address, whose host counts as named by the operator.
        web: fetches it.

    Raises:
        ConfigurationError: it can't be read, or is no OpenAPI document of version 3; says why.
    """
    data = await _fetched(place, web) if is_address(place) else await asyncio.to_thread(_file, Path(place))
    # A large document keeps a thread busy, not the event loop.
    document: Any = await asyncio.to_thread(_parsed, data)
    found: dict[str, Any] = document if isinstance(document, dict) else {}
    version = found.get("openapi")
    if "swagger" in found:
        raise ConfigurationError("the document is of Swagger 2; convert it to OpenAPI 3 first (converter.swagger.io does)")
    if not isinstance(version, str) or not version.startswith("3."):
        raise ConfigurationError("that is no OpenAPI document: it lacks `openapi: 3…` at its top")
    if not isinstance(found.get("paths"), dict):
        raise ConfigurationError("the document has no paths, so there is nothing to serve")
    return found


async def _fetched(place: str, web: Web) -> bytes:
    try:
        async with asyncio.timeout(_SECONDS):
            answer: Answer = await web.get(check_address(place), MOST_BYTES)
    except TimeoutError:
        raise ConfigurationError(f"the document did not arrive within {_SECONDS:g} s") from None
    except ToolError as error:
        raise ConfigurationError(f"the document can't be fetched: {error.error.message}") from None
    if answer.status != 200:
        raise ConfigurationError(f"the document can't be fetched: its server answers {answer.status}")
    return answer.body


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None
    if len(data) > MOST_BYTES:
        raise ConfigurationError(f"{path} has more than {MOST_BYTES:,} bytes")
    return data


def _parsed(data: bytes) -> Any:
    try:
        document = msgspec.json.decode(data)
    except RecursionError:
        raise ConfigurationError("the document is nested too deeply") from None
    except DECODE_ERRORS:
        document = _yaml(data)
    _bound(document)
    return document


def _yaml(data: bytes) -> Any:
    try:
        import yaml  # noqa: PLC0415 - most documents are JSON
    except ModuleNotFoundError:
        raise ConfigurationError("the document is not JSON; to read YAML: pip install pyyaml") from None
    try:
        # Dates and the like become texts, as they are in JSON.
        return yaml.load(data, Loader=_loader(yaml))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = reason_of(error).partition("\n")[0] or type_name(error)
        raise ConfigurationError(f"the document is neither JSON nor YAML: {reason}") from None


def _loader(yaml: Any) -> Any:
    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # the faster one, where it was built
        pass

    resolvers = {}
    for first, rules in Loader.yaml_implicit_resolvers.items():
        resolvers[first] = [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    Loader.yaml_implicit_resolvers = resolvers
    return Loader


def _bound(document: Any) -> None:
    """Check that a document is no more than can be looked through, however often its parts are shared."""
    parts, level = 0, [document]
    for _ in range(_MOST_LEVELS):
        below: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                if not all(isinstance(key, (str, int, float, bool)) for key in part):
                    raise ConfigurationError("the document has a key that is no text")
                below += part.values()
            elif isinstance(part, list):
                below += part
            parts += 1
            if parts + len(below) > _MOST_PARTS:
                raise ConfigurationError(f"the document has more than {_MOST_PARTS:,} parts")
        if not below:
            return
        level = below
    raise ConfigurationError(f"the document is nested more than {_MOST_LEVELS} levels deep")
