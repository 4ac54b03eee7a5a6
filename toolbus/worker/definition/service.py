"""``ToolService``: the base class of services with configuration and many tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from toolbus.effects import Effect
from toolbus.results import ConfigurationError
from toolbus.safe_text import type_name
from toolbus.settings import Settings
from toolbus.worker.definition.retry import Retry

if TYPE_CHECKING:
    from toolbus.worker.sessions.session import Session


class ToolService:
    """Subclass it, describe the tools, override ``invoke``, and give it to a ``Worker``.

    ``invoke`` receives the user (tenant), the config values of the called tool's descriptor, and the
    model's arguments. It may be a coroutine function, an async generator function, or a plain function or
    generator, which run in a thread. A two-argument ``invoke(self, config, arguments)`` is accepted.
    It returns a value or yields ``str``, ``Progress``, ``Blob`` and lastly at most one ``ToolResult``.
    Methods decorated with ``@tool`` are tools too, and are dispatched by name.

    Attributes:
        id: the service's id; names its request stream.
        config_params: names of the values that tool descriptors carry, or ``{"name", "required"}``.
        tools: tool descriptors in the two-tier form; ``type`` and ``service`` may be left out.
        effect: what a second execution would do, for tools that do not say so themselves.
        description: for people.
        request_queue, response_queue: outside names, see ``ServiceDescriptor``.
        scale_to_zero: callable without live workers; calls wait for one to start.
        retry: run failed calls again, see ``Retry``; None answers with the first failure.
        queue_limit: most requests queued and running; 0 means the publisher's setting.
        sequential: the calls of its tools run one after another in a turn, or are not in order even in a sticky session (False), unless a
            tool says otherwise; see docs/how-to/models.md.
        sticky_sessions: calls of one session go to the worker that has its state, see docs/how-to/sessions.md; always so for a service
            that overrides ``open_session``.
        session_lost: what becomes of a call whose session has lost its state: ``error`` (it fails with the code ``session_lost``, by
            default for a service with ``open_session``), ``restart`` (it runs on a new state, and ``result.meta.restarted`` says so, by
            default for others), or ``restore`` (the state is restored by ``load_session``).
        session_idle: seconds after its last call when a session ends at a worker, if nobody ended it before.
        max_sessions: most sessions that one worker has open; beyond, the one that was not used for the longest ends.
        worker_settings: settings of the worker that serves it, from ``startup`` on.
    """

    id: ClassVar[str] = ""
    config_params: ClassVar[Sequence[str | Mapping[str, Any]]] = ()
    tools: ClassVar[Sequence[Mapping[str, Any]]] = ()
    effect: ClassVar[Effect] = ""
    description: ClassVar[str] = ""
    request_queue: ClassVar[str] = ""
    response_queue: ClassVar[str] = ""
    scale_to_zero: ClassVar[bool] = False
    queue_limit: ClassVar[int] = 0
    retry: ClassVar[Retry | None] = None
    sequential: ClassVar[bool | None] = None
    sticky_sessions: ClassVar[bool] = False
    session_lost: ClassVar[str] = ""
    session_idle: float = 900.0
    max_sessions: int = 1000
    worker_settings: Settings | None = None

    def invoke(self, user: str, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        """Run one call.

        Raises:
            ToolError: to fail with a type, code and retry hint of its own.
        """
        raise ConfigurationError(f"{type_name(self)} has neither invoke() nor a @tool method for this call")

    async def startup(self) -> None:
        """Prepare what all calls share; runs once, before the service takes requests."""

    def open_session(self, session: Session, initial: dict[str, Any]) -> Any:
        """Return the state of a session; handlers find it in ``invocation().state``.

        It runs before the first call of the session at this worker, and again where the state was lost. It may be a plain function,
        which runs in a thread, and may leave ``initial`` out of its parameters. When it raises, the call fails, and the next one tries
        again.

        Args:
            session: user and id.
            initial: what the caller said, ``bus.session(…, initial=…)``; empty when it said nothing.
        """

    def save_session(self, session: Session, state: Any) -> Any:
        """Return a snapshot of a state after a call: JSON of at most 256 KiB; for ``session_lost = "restore"``.

        It may take 10 seconds. When it raises, or a call is stopped, there is no snapshot until the next call. Calls of tools with
        ``sequential=False`` make none.
        """
        raise NotImplementedError

    def load_session(self, session: Session, saved: Any) -> Any:
        """Return the state of which ``save_session`` returned a snapshot; for ``session_lost = "restore"``."""
        raise NotImplementedError

    async def cleanup(self) -> None:
        """Release what ``startup`` prepared; runs once, after the last call.

        Declared as ``cleanup(self, session=None)`` it runs for each ``Session`` too: when it ends, and when the worker leaves; and
        then with None. With a second parameter it is given the state of the session. A plain function runs in a thread then. Each may
        take 10 seconds; one that fails does not stop the others.
        """
