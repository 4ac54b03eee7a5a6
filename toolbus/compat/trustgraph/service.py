"""``DynamicToolService``: TrustGraph's base class of tool services, served by a ``Worker``."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import inspect
import json
import re
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Mapping
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from toolbus.bus import telemetry
from toolbus.bus.schema.documents import unique
from toolbus.bus.support.waiting import either
from toolbus.bus.values.descriptors import Effect
from toolbus.bus.values.results import BrokerUnavailable, ToolbusError, ToolError, ToolResult
from toolbus.bus.values.settings import Settings
from toolbus.bus.worker.collect import owner_of
from toolbus.bus.worker.invocation import invocation
from toolbus.bus.worker.outcome import HandlerExit, error_of, said, without_exits
from toolbus.bus.worker.process.event_loop import run_loop
from toolbus.bus.worker.service import Retry, ToolService
from toolbus.bus.worker.worker import Worker
from toolbus.compat.trustgraph.messages import (
    DEFAULT_USER,
    REQUEST_QUEUE,
    RESPONSE_QUEUE,
    Error,
    Message,
    ToolServiceRequest,
    ToolServiceResponse,
    TooManyRequests,
    takes_user,
    text_of,
)

default_topic = "tool"
default_concurrency = 1

FAILED = "tool-service-error"
"""The type of TrustGraph's error responses."""

_RECONNECT = 4.0
_CALM = Retry(attempts=5, delay=1.0, most=10.0)


class Producer:
    """Passes a service's responses on to the call whose id is among their properties."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Queue[ToolServiceResponse | None]] = {}

    async def send(self, response: ToolServiceResponse, properties: Mapping[str, str] | None = None) -> None:
        """Answer a call, in one piece or several; drop an answer that no call waits for."""
        waiting = self._waiting.get((properties or {}).get("id", ""))
        if waiting is not None:
            await waiting.put(response)

    @contextlib.contextmanager
    def expecting(self, call: str) -> Any:
        """Provide the queue of one call's responses within a ``with``."""
        # A short queue: a service that produces faster waits until its responses have been passed on.
        queue: asyncio.Queue[ToolServiceResponse | None] = asyncio.Queue(16)
        self._waiting[call] = queue
        try:
            yield queue
        finally:
            del self._waiting[call]


class DynamicToolService:
    """A tool service: subclass it, override ``invoke``, and ``launch`` it.

    The topic names its queues: ``non-persistent://tg/request/<topic>`` and ``…/response/<topic>``. It serves every
    tool-service descriptor that names its request queue.

    Attributes:
        effect: the effect of a second execution, see ``ToolService``; when undeclared, a crash may repeat work.
    """

    effect: ClassVar[Effect] = ""

    def __init__(self, **params: Any) -> None:
        self.id = params.get("id")
        self.params = params
        self.topic = str(params.get("topic") or default_topic)
        self.request_queue = REQUEST_QUEUE.format(self.topic)
        self.response_queue = RESPONSE_QUEUE.format(self.topic)
        self.taskgroup = params.get("taskgroup")
        self.running = True
        self.producer: Any = Producer()

    # -- for subclasses ---------------------------------------------------------------------------

    def invoke(self, *given: Any, **named: Any) -> Any:
        """Run one call, as a coroutine or an async generator of text.

        Subclasses take ``(self, config, arguments)``, or ``(self, user, config, arguments)`` as before April 2026.
        """
        raise NotImplementedError("the subclass has no invoke(self, config, arguments)")

    @property
    def _topic(self) -> str:
        return self.topic

    @property
    def _producer_handle(self) -> Any:
        # The name of the producer since July 2026.
        return self.producer

    @_producer_handle.setter
    def _producer_handle(self, producer: Any) -> None:
        self.producer = producer

    async def start(self) -> None:
        """Prepare the service; runs once, before requests are taken."""

    def stop(self) -> None:
        """Release resources; runs once, after the last request."""
        self.running = False

    async def on_request(self, msg: Message, consumer: object, flow: object) -> None:
        """Answer one request through ``self.producer``."""
        call = str(msg.properties().get("id", "unknown"))
        properties = {"id": call}
        try:
            request = msg.value()
            config = json.loads(request.config, object_pairs_hook=unique) if request.config else {}
            arguments = json.loads(request.arguments, object_pairs_hook=unique) if request.arguments else {}
            user = [request.user or DEFAULT_USER] if takes_user(self.invoke) else []
            answer = self.invoke(*user, config, arguments)
            if hasattr(answer, "__aiter__"):
                async with contextlib.aclosing(answer):
                    async for piece in answer:
                        await self.producer.send(ToolServiceResponse(response=text_of(piece)), properties=properties)
                text = ""
            else:
                text = text_of(await answer if inspect.isawaitable(answer) else answer)
            await self.producer.send(ToolServiceResponse(response=text, end_of_stream=True), properties=properties)
        except TooManyRequests:
            raise
        except Exception as error:  # noqa: BLE001 - every exception becomes the answer
            telemetry.log.exception("trustgraph.invoke_failed", id=call, topic=self.__dict__.get("topic"))
            failed = ToolServiceResponse(error=Error(FAILED, said(error)), end_of_stream=True)
            await self.producer.send(failed, properties=properties)

    # -- running ----------------------------------------------------------------------------------

    def as_service(self) -> ToolService:
        """Return this service for a ``Worker`` that you run yourself.

        Raises:
            ConfigurationError: its ``invoke`` takes other arguments than either form has.
        """
        takes_user(self.invoke)
        # Its owner is derived from the subclass's module, not from this one.
        cls = type(self)
        kind: type[_Served] = type(cls.__name__, (_Served,), {"__module__": cls.__module__, "__qualname__": cls.__qualname__})
        return kind(self)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT, then finish the running calls."""
        given = {name: self.params.get(name) for name in ("url", "namespace", "log_level")}
        concurrency = int(self.params.get("concurrency") or default_concurrency)
        settings = Settings.load(concurrency=concurrency, **{name: value for name, value in given.items() if value is not None})
        await Worker(self.as_service(), settings=settings).run()

    @classmethod
    async def launch_async(cls, args: Mapping[str, Any]) -> None:
        """Create a service, start it, and serve until a signal comes; tasks in its task group end with it."""
        try:
            async with asyncio.TaskGroup() as group:
                service = cls(**{**args, "taskgroup": group})
                await service.start()
                try:
                    await service.run()
                finally:
                    service.stop()
                _end()
        except* _Ended:
            pass

    @classmethod
    def launch(cls, ident: str, doc: str | None) -> None:
        """Run the service as this process: read the command line, serve until SIGTERM or Ctrl-C, and return.

        While the server can't be reached, connecting is tried again; an error that waiting can't fix ends the process with 1.
        """
        parser = argparse.ArgumentParser(prog=ident, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--id", default=ident, help=f"Identity of this process (default: {ident})")
        cls.add_args(parser)
        args = vars(parser.parse_args())
        try:
            settings = Settings.load()
            telemetry.configure_logging(args.get("log_level") or settings.log_level, settings.log_format)
            with contextlib.suppress(KeyboardInterrupt):
                run_loop(lambda: _until_served(cls, args), asyncio.SelectorEventLoop)
        except ToolbusError as error:
            sys.exit(f"{args['id']}: {error}")

    @staticmethod
    def add_args(parser: argparse.ArgumentParser) -> None:
        """Add this class's options; subclasses add theirs."""
        parser.add_argument("-t", "--topic", default=default_topic, help=f"Topic name for request/response (default: {default_topic})")
        parser.add_argument("--url", help="Server, e.g. redis://localhost:6379 (default: TOOLBUS_URL)")
        parser.add_argument("--namespace", help="Namespace to serve in (default: TOOLBUS_NAMESPACE)")
        parser.add_argument(
            "-c", "--concurrency", type=int, default=default_concurrency, help=f"Calls at once (default: {default_concurrency})"
        )
        parser.add_argument("-l", "--log-level", choices=["debug", "info", "warning", "error"], help="default: TOOLBUS_LOG_LEVEL")


class _Served(ToolService):
    """The service as toolbus sees it: it takes requests from the topic's queue, under an id that no operator's descriptor has."""

    retry = _CALM

    def __init__(self, service: DynamicToolService) -> None:
        # Instance attributes hide those of the class.
        self.id = _service_id(service.topic)  # type: ignore[misc]
        self.effect = service.effect  # type: ignore[misc]
        self.request_queue = service.request_queue  # type: ignore[misc]
        self.response_queue = service.response_queue  # type: ignore[misc]
        self.owner_label = _owner(type(service))
        self.description = f"the tool service on the topic {service.topic!r}"  # type: ignore[misc]
        self._service = service

    async def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> AsyncIterator[str | ToolResult]:
        service, call = self._service, invocation().id
        message = Message(ToolServiceRequest(user, json.dumps(config), json.dumps(arguments)), {"id": call})
        with service.producer.expecting(call) as responses:
            handling = asyncio.ensure_future(_handled(service, message, responses))
            streamed = False
            try:
                while (response := await responses.get()) is not None:
                    if response.error is not None:
                        raise ToolError(response.error.message, code=response.error.type)
                    if response.end_of_stream:
                        await handling
                        yield response.response if streamed else ToolResult(output=response.response)
                        return
                    streamed = True
                    yield response.response
                await handling
                raise ToolError("the service ended without an answer", code=FAILED)
            except TooManyRequests as error:
                reason = str(error) or "too many requests"
                raise ToolError(reason, type="rate_limited", code="TooManyRequests", retryable=True) from None
            except HandlerExit as error:
                telemetry.log.exception("trustgraph.invoke_failed", id=call, topic=service.topic)
                raise ToolError(error_of(error).message, code=FAILED) from None
            finally:
                handling.cancel()
                await asyncio.wait([handling])


class _Ended(Exception):
    """The service was told to end, and has ended."""


def _end() -> NoReturn:
    raise _Ended


async def _handled(service: DynamicToolService, message: Message, responses: asyncio.Queue[ToolServiceResponse | None]) -> None:
    try:
        # Runs in a separate task.
        await without_exits(service.on_request(message, None, None))
    except Exception:
        await responses.put(None)
        raise
    await responses.put(None)


async def _until_served(cls: type[DynamicToolService], args: Mapping[str, Any]) -> None:
    stopping = asyncio.Event()
    while True:
        _set_on_signals(stopping)
        try:
            await _unless(stopping, cls.launch_async(args))
        except Exception as error:
            known = _toolbus_error(error)
            if known is None:
                raise
            if not isinstance(known, BrokerUnavailable):
                raise known from None
            _set_on_signals(stopping)
            telemetry.log.warning("trustgraph.unavailable", error=str(known), retry_in=_RECONNECT)
        else:
            return
        await _unless(stopping, asyncio.sleep(_RECONNECT))


def _set_on_signals(stopping: asyncio.Event) -> None:
    """Set the event on SIGTERM and SIGINT; call it again after each worker, which replaces the handlers and does not restore them."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it is done or ``stopping`` is set."""
    working, _ = await either(work, stopping.wait())
    if not working.cancelled():
        working.result()


def _toolbus_error(error: Exception) -> ToolbusError | None:
    """Return the ToolbusError in an exception of a task group, unless the group has other exceptions."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, ToolbusError) else None


def _owner(cls: type[DynamicToolService]) -> str:
    """Return the owner of a topic: the program, since several programs of one project have the same topic by default."""
    owner, module = owner_of(cls.__module__, cls.__qualname__), cls.__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    program = Path(file).stem if module == "__main__" and file else module
    return owner if owner.endswith(f":{cls.__qualname__}") else f"{owner}:{program}:{cls.__qualname__}"


def _service_id(topic: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.-]", "-", topic)[:96]
    if plain != topic:
        # Two topics must not get the same id.
        plain = f"{plain}-{hashlib.blake2b(topic.encode(), digest_size=6).hexdigest()}"
    return f"trustgraph.{plain}"
