"""``ChatEndpoint``: stream chat completions from any OpenAI-compatible endpoint."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import urlsplit

import msgspec

from toolbus.bus.support.safe_text import reason_of
from toolbus.bus.values.encoding import DECODE_ERRORS

try:
    import httpx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"the agent needs httpx: pip install 'toolbus[agent]' ({error})", name="httpx") from None

from toolbus.agent.reply import Chunk, Reply
from toolbus.bus.outbound import EventReader, retry_after
from toolbus.bus.schema.refusal import shorten
from toolbus.bus.values.results import ConfigurationError, EndpointError

OPENAI = "https://api.openai.com/v1"

_MOST_BODY = 4_194_304
_MOST_SHOWN = 300
_CONNECT = 15.0
_SILENCE = 120.0
_DONE = "[DONE]"
# Of the errors that blame the request these are about its moment.
_PASSING = {408, 409, 425, 429}


class ChatEndpoint:
    """An OpenAI-compatible endpoint; ``async with`` keeps its connections open.

    Args:
        base_url: address to which ``/chat/completions`` is appended.
        api_key: key that is sent as a bearer token, and never shown.
        silence: most seconds between two bytes of an answer.

    Raises:
        ConfigurationError: the address or the key is invalid.
    """

    def __init__(self, base_url: str, api_key: str, *, silence: float = _SILENCE) -> None:
        if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ConfigurationError("the API key must be printable ASCII without spaces")
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._name = _host(base_url)
        self._key = api_key
        self._silence = silence
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {api_key}", "accept": "text/event-stream"}, timeout=httpx.Timeout(silence, connect=_CONNECT)
        )

    def __repr__(self) -> str:
        return f"<endpoint {self._name}>"

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def complete(self, body: Mapping[str, Any], on_text: Callable[[str], object] = lambda text: None) -> Reply:
        """Return one chat completion; ``on_text`` gets the model's text as it arrives.

        Raises:
            EndpointError: there is no complete answer; the message is one line.
        """
        reply = Reply()
        try:
            async with self._client.stream("POST", self._url, json={**body, "stream": True}) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._refused(response, await _text(response))
                if "json" in response.headers.get("content-type", ""):
                    self._take((await _text(response)).decode("utf-8", "replace"), reply, on_text)
                else:
                    await self._listen(response, reply, on_text)
        except httpx.TimeoutException as error:
            what = "can't be reached in time" if isinstance(error, httpx.ConnectTimeout) else f"sent nothing for {self._silence:g} s"
            raise self._error(what, retryable=not reply.text) from None
        except httpx.ConnectError as error:
            raise self._error(f"can't be reached: {reason_of(error)}", retryable=True) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise self._error(f"cut its answer off: {reason_of(error)}", retryable=not reply.text) from None
        except ValueError as error:
            raise self._error(f"gave an answer that can't be read: {error}") from None
        if not reply.finish_reason:
            raise self._error("cut its answer off before the end", retryable=not reply.text)
        return reply

    async def _listen(self, response: httpx.Response, reply: Reply, on_text: Callable[[str], object]) -> None:
        reader = EventReader()
        events = 0
        async with aclosing(_bytes(response)) as chunks:
            async for chunk in chunks:
                for event in reader.feed(chunk):
                    events += 1
                    if event.data.strip() == _DONE:
                        reply.finish_reason = reply.finish_reason or "stop"
                        return
                    self._take(event.data, reply, on_text)
        for event in reader.end():
            events += 1
            if event.data.strip() != _DONE:
                self._take(event.data, reply, on_text)
        if not events:
            kind = response.headers.get("content-type", "no content type")
            # A proxy shows such a page while what is behind it is away.
            raise self._error(f"answered with no events ({shorten(kind, 80)}); check the base URL", retryable="html" in kind)

    def _take(self, data: str, reply: Reply, on_text: Callable[[str], object]) -> None:
        try:
            chunk = msgspec.json.decode(data, type=Chunk)
        except DECODE_ERRORS as error:
            raise ValueError(f"{error} in {shorten(data, 80)!r}") from None
        if chunk.error:
            raise self._error(f"failed: {self._message(chunk.error)}", retryable=not reply.text and _may_pass(chunk.error))
        text = reply.add(chunk)
        if text:
            on_text(text)

    def _refused(self, response: httpx.Response, body: bytes) -> EndpointError:
        status = response.status_code
        try:
            message = self._message(msgspec.json.decode(body))
        except DECODE_ERRORS:
            message = ""
        after = retry_after(response.headers.get("retry-after", ""))
        again = "try again later" if after is None else f"try again in {math.ceil(after)} s"
        what, advice = {
            401: ("refused the key", "check OPENAI_API_KEY"),
            403: ("refused the key", "check OPENAI_API_KEY and what it may do"),
            404: ("knows no such address or model", "check OPENAI_BASE_URL and the model"),
            429: ("is limiting requests", again),
        }.get(status, ("failed", again) if status >= 500 else ("refused the request", ""))
        line = f"{what} ({status}){f': {message}' if message else ''}{f'; {advice}' if advice else ''}"
        return self._error(line, status=status, retryable=status == 429 or status >= 500, retry_after=after)

    def _message(self, error: Any) -> str:
        """Return an endpoint's own message about an error, in one line and without the key."""
        while isinstance(error, (dict, list)) and error:
            if isinstance(error, list):
                error = error[0]
            else:
                error = next((error[key] for key in ("error", "message", "detail") if key in error), str(error))
        text = " ".join(str(error).split()).replace(self._key, "…")
        return shorten("".join(filter(str.isprintable, text)), _MOST_SHOWN).rstrip(".")

    def _error(self, line: str, *, status: int = 0, retryable: bool = False, retry_after: float | None = None) -> EndpointError:
        text = "".join(filter(str.isprintable, f"the endpoint {self._name} {line}"))
        return EndpointError(text.replace(self._key, "…"), status=status, retryable=retryable, retry_after=retry_after)


def _bytes(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Return the bytes of an answer as they arrive; the cast adds that httpx's iterator is a generator."""
    return cast("AsyncGenerator[bytes, None]", response.aiter_bytes())


async def _text(response: httpx.Response) -> bytes:
    found = bytearray()
    async with aclosing(_bytes(response)) as chunks:
        async for chunk in chunks:
            found += chunk
            if len(found) > _MOST_BODY:
                raise ValueError(f"more than {_MOST_BODY} bytes at once")
    return bytes(found)


def _host(base_url: str) -> str:
    """Return the endpoint's name for messages, without credentials and query."""
    try:
        parts = urlsplit(base_url)
        port = parts.port
        httpx.URL(base_url)
    except (ValueError, httpx.InvalidURL):
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError("the base URL must be like https://api.openai.com/v1 (OPENAI_BASE_URL)")
    return parts.hostname if port is None else f"{parts.hostname}:{port}"


def _may_pass(error: Any) -> bool:
    """Return whether an error that came instead of an answer may pass: one that names the request's own fault does not."""
    status = error.get("status", error.get("code")) if isinstance(error, dict) else None
    return not (isinstance(status, int) and 400 <= status < 500) or status in _PASSING


KEY, MODEL, BASE_URL = "OPENAI_API_KEY", "OPENAI_MODEL", "OPENAI_BASE_URL"


def missing(environ: Mapping[str, str], *, model: str = "") -> str:
    """Return the message for what is not set, and has to be; empty when nothing is missing."""
    if not environ.get(KEY, "").strip():
        return f"set {KEY} to your endpoint's key (any word for one that needs none), and {BASE_URL} unless it is OpenAI"
    if not (model or environ.get(MODEL, "")).strip():
        return f"which model? pass --model or set {MODEL}"
    return ""


def endpoint_of(environ: Mapping[str, str], *, base_url: str = "", model: str = "") -> tuple[ChatEndpoint, str]:
    """Return the endpoint and the model's name; what is given stands before the environment.

    Raises:
        ConfigurationError: one is missing or wrong; the message says what to set.
    """
    if wrong := missing(environ, model=model):
        raise ConfigurationError(wrong)
    endpoint = ChatEndpoint(base_url or environ.get(BASE_URL) or OPENAI, environ[KEY].strip())
    return endpoint, (model or environ[MODEL]).strip()
