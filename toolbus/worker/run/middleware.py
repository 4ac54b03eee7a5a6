"""A handler's call within the worker's middleware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from toolbus.broker.protocols import Delivery, Tallies
from toolbus.envelope import Request
from toolbus.middleware.chain import Middleware, ToolCall, chained
from toolbus.results import Blob, ErrorInfo, ToolError, ToolResult
from toolbus.worker.run.attachments import pieces_of
from toolbus.worker.run.outcome import result_of

if TYPE_CHECKING:
    from toolbus.worker.serving.handlers import Handler


class MiddlewareCall:
    """Gives middleware the handler's whole answer as a result, then takes out again what the caller was sent already.

    What a handler yields goes to the caller as it comes; middleware sees it when the handler has ended.

    Attributes:
        request: what the handler is to run.
    """

    def __init__(self, delivery: Delivery, handler: Handler, digest: str, tallies: Tallies) -> None:
        self.request: Request = delivery.request
        self._attempt = delivery.attempt
        self._handler = handler
        self._digest = digest
        self._tallies = tallies
        self._texts: list[str] = []
        self._blobs: list[Blob] = []
        self._text = ""
        self._raised: tuple[Exception, ErrorInfo] | None = None

    async def run(
        self,
        middleware: tuple[Middleware, ...],
        handle: Callable[[MiddlewareCall], Awaitable[ToolResult]],
        told: Callable[[BaseException], ErrorInfo],
        given_up: Callable[[], None],
    ) -> ToolResult:
        """Run the handler within the middleware; return what is still to be sent.

        Args:
            middleware: the outermost first.
            handle: runs the handler.
            told: what an exception of the handler is as a value.
            given_up: called when middleware cancels the handler.

        Raises:
            Exception: what the handler raised, if middleware let it pass.
        """

        async def innermost(call: ToolCall) -> ToolResult:
            if self._texts or self._blobs:
                raise ToolError("next() can't run a handler again whose text is on its way", code="bad_middleware")
            if call is not first:
                self.request = msgspec.structs.replace(self.request, arguments=dict(call.arguments), config=dict(call.config))
            self._raised = None
            try:
                result = await handle(self)
            except asyncio.CancelledError:
                given_up()
                raise
            except Exception as error:  # noqa: BLE001 - raised again, unless middleware makes something else of it
                info = told(error)
                self._raised = error, info
                return ToolResult(success=False, output=self._joined(), error=info, content=tuple(self._blobs))
            output = self._joined() if result.output is None and self._texts else result.output
            return msgspec.structs.replace(result, output=output, content=(*self._blobs, *result.content))

        request = self.request
        first = ToolCall(
            id=request.id,
            tool=request.tool,
            service=request.service,
            user=request.user,
            session=request.session,
            arguments=request.arguments,
            config=request.config,
            metadata=request.metadata,
            idempotency_key=request.idempotency_key,
            digest=self._digest,
            effect=self._handler.effect or request.effect,
            # What a session keeps in its worker is in no field of the request.
            cache=False if request.ordered or request.state else self._handler.cache,
            side="handler",
            attempt=self._attempt,
            tallies=self._tallies,
            delivered=self._delivered,
        )
        result = await chained(middleware, innermost)(first)
        if self._raised is not None and result.error is self._raised[1]:
            # As it would be without middleware: with its traceback, and tried again where the service says so.
            raise self._raised[0]
        return self._rest(result_of(result))

    async def watch(self, items: Any) -> AsyncIterator[Any]:
        """Pass on what a handler yields, and remember it."""
        iterator: AsyncIterator[Any] = aiter(items)
        try:
            async for item in iterator:
                for piece in pieces_of(item, len(self._blobs)):
                    if isinstance(piece, Blob):
                        self._blobs.append(piece)
                    elif isinstance(piece, str):
                        self._texts.append(piece)
                    yield piece
        finally:
            close: Callable[[], Awaitable[None]] | None = getattr(iterator, "aclose", None)
            if close is not None:
                await close()

    def _delivered(self) -> int:
        return sum(len(text.encode("utf-8", "replace")) for text in self._texts) + sum(len(blob.data) for blob in self._blobs)

    def _joined(self) -> str | None:
        self._text = "".join(self._texts)
        return self._text or None

    def _rest(self, result: ToolResult) -> ToolResult:
        output, content = result.output, result.content
        if self._texts and output == self._text:
            output = None
        if self._blobs and content[: len(self._blobs)] == tuple(self._blobs):
            content = content[len(self._blobs) :]
        return msgspec.structs.replace(result, output=output, content=content)
