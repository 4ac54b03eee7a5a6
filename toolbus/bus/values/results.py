"""Results of tools, and every exception that toolbus raises.

The exception tree::

    ToolbusError
    ├── ToolError                a tool's failure as an exception, with ``.error``
    │   └── CallRefused          the bus refused a call before its tool began
    ├── StreamReset              a new attempt produced different text than plain iteration already delivered
    ├── CallCancelled            raised inside a handler by ``check_cancelled()``
    ├── ConfigurationError       settings, URL or usage are wrong; the message says what to change
    │   ├── DescriptorError      a descriptor's field is wrong; carries its path
    │   └── ToolkitError         an edge, a score or a chain of a toolkit graph is impossible; also a ValueError
    ├── EnvelopeError            a message on a stream can't be read
    ├── RegistrationRefused      a name belongs to another owner
    ├── ConfirmationClosed       a confirmation request is not open (any more)
    ├── ConversationError        a kept conversation can't be continued here
    │   └── ConversationBusy     another process continues it
    ├── EndpointError            a model's endpoint gave no complete answer
    └── BrokerError              the server refused a command
        ├── BrokerUnavailable    the server can't be reached
        ├── CredentialsRefused   the user or the password is wrong or missing
        └── UnsupportedServer    the server lacks a command that toolbus needs
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import msgspec

from toolbus.bus.support.safe_text import in_utf8, type_name
from toolbus.bus.values.encoding import encode_json, exact_text

ErrorType = Literal[
    "not_found",
    "invalid_arguments",
    "unavailable",
    "overloaded",
    "deadline_exceeded",
    "cancelled",
    "rate_limited",
    "forbidden",
    "outcome_unknown",
    "slow_consumer",
    "tool_error",
]


class ErrorKind(msgspec.Struct, frozen=True):
    """Hold what follows from an error type, for everybody who has to act on it.

    Attributes:
        status: the status code of the answer over HTTP.
        next_step: what a model is told to do, for errors without a code and codes of tools' own; ``{wait}`` and ``{later}`` stand for
            the time to wait.
        of_tool: whether it says something about the tool, and not about the call.
        unsettled: whether the caller has stopped waiting, or has lost sight of the call, so that what runs may go on.
        of_attempt: whether it says nothing of the request, which may be sent again under the same key.
        answers: whether a tool that ends so has answered, about what it was asked for: over HTTP that is no failure of the request.
        of_code: whether a fault in the tool's code may be the reason, so that a coding agent is asked to repair a tool that fails so.
        outcome: what a recorded execution that ended so says of its tool; all but a failure say nothing.
    """

    status: int
    next_step: str
    of_tool: bool = False
    unsettled: bool = False
    of_attempt: bool = False
    answers: bool = False
    of_code: bool = False
    outcome: Literal["failure", "cancelled", "refused", "unavailable"] = "unavailable"


ERROR_KINDS: Mapping[ErrorType, ErrorKind] = {
    "not_found": ErrorKind(404, "check the name or id that you asked for, or find out first what there is", answers=True),
    "invalid_arguments": ErrorKind(422, "fix the arguments and call the tool again", outcome="failure"),
    "unavailable": ErrorKind(503, "try again{later}, or use another tool", of_tool=True, of_attempt=True, of_code=True),
    "overloaded": ErrorKind(429, "wait{wait} and try again, or use another tool", of_tool=True, of_attempt=True),
    "deadline_exceeded": ErrorKind(
        504,
        "it may be busy or have stopped, or the task too large: ask for less, try again later, or use another tool",
        of_tool=True,
        unsettled=True,
        of_attempt=True,
        of_code=True,
        outcome="failure",
    ),
    "cancelled": ErrorKind(409, "do not repeat the call unless you are asked to", unsettled=True, of_attempt=True, outcome="cancelled"),
    "rate_limited": ErrorKind(429, "wait{wait} before you try again, or use another tool"),
    "forbidden": ErrorKind(403, "do not try again; go on without it, or ask the user", answers=True, outcome="refused"),
    "outcome_unknown": ErrorKind(
        409, "it may have taken effect: find out before you repeat it", of_tool=True, unsettled=True, of_attempt=True, of_code=True
    ),
    "slow_consumer": ErrorKind(503, "ask for less at once, and try again", of_tool=True, unsettled=True, of_attempt=True),
    "tool_error": ErrorKind(
        502,
        "change the arguments or use another tool; the same call is likely to fail again",
        of_tool=True,
        of_code=True,
        outcome="failure",
    ),
}
"""Everything that is known of each error type; a new one is a word of ``ErrorType`` and a row here."""

ERROR_TYPES: frozenset[str] = frozenset(ERROR_KINDS)
OF_TOOLS = frozenset(kind for kind, about in ERROR_KINDS.items() if about.of_tool)
UNSETTLED = frozenset(kind for kind, about in ERROR_KINDS.items() if about.unsettled)
OF_ATTEMPTS = frozenset(kind for kind, about in ERROR_KINDS.items() if about.of_attempt)
ANSWERS = frozenset(kind for kind, about in ERROR_KINDS.items() if about.answers)
OF_CODE = frozenset(kind for kind, about in ERROR_KINDS.items() if about.of_code)

Origin = Literal["bus", "tool"]
"""The side that says that a call failed: the bus, which finds, carries and guards calls, or the tool itself."""


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reason why a call failed, as a value.

    Attributes:
        type: one of a closed set of error types, for programs to branch on.
        code: free text from the tool.
        message: one or two sentences for people and models.
        retryable: whether the same call may succeed later; each error says it, since errors of one type differ in this.
        retry_after: seconds to wait before trying again, when known.
        details: any further JSON value.
        origin: who failed. A tool may use every type: its ``not_found`` is about an order, say, and that of the bus about the tool.
    """

    type: ErrorType
    code: str = ""
    message: str = ""
    retryable: bool = False
    retry_after: float | None = None
    details: Any = None
    origin: Origin = "bus"

    def __str__(self) -> str:
        return f"{self.type}: {self.message}" if self.message else self.type


def deadline_exceeded(message: str, code: str = "") -> ErrorInfo:
    """Return the error of a call whose time was up. Whoever says so, the same call may succeed later."""
    return ErrorInfo("deadline_exceeded", code, message, retryable=True)


_MOST_PROGRESS = sys.float_info.max


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of a running handler; ``total`` is None when unknown."""

    done: float
    total: float | None = None
    message: str = ""

    def __post_init__(self) -> None:
        """Refuse what would not arrive.

        Raises:
            TypeError: ``done`` or ``total`` is no finite number, or ``message`` is no text that UTF-8 can express.
        """
        for name, value in (("done", self.done), ("total", 0 if self.total is None else self.total)):
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not -_MOST_PROGRESS <= value <= _MOST_PROGRESS:
                raise TypeError(f"progress: {name} is a finite number, not {str(value)[:50]!r} ({type_name(value)})")
        if not isinstance(self.message, str) or not in_utf8(self.message):
            raise TypeError(f"progress: the message is a text that UTF-8 can express, not {ascii(self.message)[:50]}")


class Blob(msgspec.Struct, frozen=True):
    """Bytes with a media type (an image, a file); JSON carries them as base64."""

    media_type: str
    data: bytes

    def __post_init__(self) -> None:
        """Refuse what would not arrive.

        Raises:
            TypeError: ``media_type`` is no text that UTF-8 can express, or ``data`` is not bytes.
        """
        if type(self.media_type) is not str:
            if not isinstance(self.media_type, str):
                raise TypeError(f"a blob's media type is a text, not {type_name(self.media_type)}")
            msgspec.structs.force_setattr(self, "media_type", exact_text(self.media_type))
        if not in_utf8(self.media_type):
            raise TypeError(f"a blob's media type is a text that UTF-8 can express, not {ascii(self.media_type)[:50]}")
        if type(self.data) is not bytes:
            if not isinstance(self.data, (bytes, bytearray, memoryview)):
                raise TypeError(f"a blob's data is bytes, not {type_name(self.data)}")
            msgspec.structs.force_setattr(self, "data", bytes(memoryview(self.data)))


class ResultMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a finished call.

    Attributes:
        id: the call's correlation id.
        attempts: number of times that a worker started the call; 0 when none did.
        worker: instance id of the worker that answered; empty when none did.
        ms: milliseconds from the call's start to its end, measured at the caller.
        changes: changes that an executor made to a model's arguments so that the tool accepts them.
        restarted: the session had lost its state, and the call ran on a new one.
    """

    id: str = ""
    attempts: int = 0
    worker: str = ""
    ms: float = 0.0
    changes: tuple[str, ...] = ()
    restarted: bool = False


class ToolResult(msgspec.Struct, frozen=True, gc=False):
    """The one result of a call. It is never part of a reference cycle, so the garbage collector skips it.

    Attributes:
        success: False when ``error`` is set.
        output: text for people and models; what a caller gets of a value is its JSON. As a handler's last item, None means that
            the yielded text is the output.
        data: a JSON-encodable value for programs.
        error: the reason for a failure. A failed call keeps its partial ``output``.
        content: blobs, in the order they were yielded.
        meta: id, attempts, worker, milliseconds.
    """

    success: bool = True
    output: str | None = None
    data: Any = None
    error: ErrorInfo | None = None
    content: tuple[Blob, ...] = ()
    meta: ResultMeta = ResultMeta()

    @classmethod
    def ok(cls, data: Any = None, *, output: str | None = None) -> ToolResult:
        """Return a success that carries ``data``."""
        return cls(output=output, data=data)

    @classmethod
    def fail(cls, error: ErrorInfo | str, *, output: str | None = None) -> ToolResult:
        """Return a failure; a plain string becomes the message of a ``tool_error``."""
        info = error if isinstance(error, ErrorInfo) else ErrorInfo("tool_error", message=error)
        return cls(success=False, error=info, output=output)

    @property
    def observation(self) -> str:
        """The text for the model: the output, or the data as JSON, or the failure after any partial text."""
        text = self.output or ("" if self.data is None else encode_json(self.data).decode())
        if self.error is None:
            return text
        failure = f"Error ({self.error.type}): {self.error.message or self.error.code or 'the tool failed'}"
        return f"{text}\n{failure}" if text else failure

    def __str__(self) -> str:
        return self.observation

    def to_dict(self) -> dict[str, Any]:
        """Return exactly ``{"success", "data", "error"}``; ``data`` is the text when there is no data."""
        return {
            "success": self.success,
            "data": self.output if self.data is None else self.data,
            "error": None if self.error is None else str(self.error),
        }


class ToolbusError(Exception):
    """The root of every exception that toolbus raises."""


class ToolError(ToolbusError):
    """A tool's failure as an exception.

    A handler raises it to give more than a message. Plain iteration over a stream
    raises it, so that a partial answer can't pass for a complete one.
    """

    def __init__(
        self,
        message: str | ErrorInfo,
        *,
        type: ErrorType = "tool_error",
        code: str = "",
        retryable: bool = False,
        retry_after: float | None = None,
        details: Any = None,
    ) -> None:
        if isinstance(message, ErrorInfo):
            self.error = message
        else:
            self.error = ErrorInfo(type, code, message, retryable, retry_after, details)
        super().__init__(str(self.error))

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (self.error,)


class CallRefused(ToolError):
    """The bus refused a call before its tool began, as for arguments that do not fit; the tool said nothing."""


class StreamReset(ToolbusError):
    """A new attempt produced different text than was already delivered.

    ``events()`` reports the same as a ``Reset`` event and continues with the new text.
    """


class CallCancelled(ToolbusError):
    """The running call was cancelled, lost its lease, or passed its deadline."""


class ConfigurationError(ToolbusError):
    """A setting, a URL or an argument is wrong; the message says what to change."""


class DescriptorError(ConfigurationError):
    """A descriptor is invalid; ``path`` names the field (``$.arguments[0].name``)."""

    def __init__(self, message: str, *, path: str = "$") -> None:
        self.path = path
        self._message = message
        place = f" - at `{path}`"
        # An error that is told on with more context has its place already.
        super().__init__(message if message.endswith(place) else f"{message}{place}")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(self.__class__, path=self.path), (self._message,)


class ToolkitError(ConfigurationError, ValueError):
    """A vertex, an edge, a score or a chain of a toolkit graph is impossible; the message names it."""


class EnvelopeError(ToolbusError):
    """A message on a stream is malformed, too large or of an unknown version; ``code`` as in ``ErrorInfo``."""

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(message)


class RegistrationRefused(ToolbusError):
    """A service or tool name belongs to another owner; ``names`` maps each such name to its owner."""

    def __init__(self, message: str, names: dict[str, str]) -> None:
        self.names = names
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__class__, (str(self), self.names)


class ConfirmationClosed(ToolbusError):
    """A confirmation request can't be answered: it was answered, expired or withdrawn, or never existed.

    Attributes:
        answered: whether another answer is known to have been accepted.
    """

    def __init__(self, message: str, *, answered: bool = False) -> None:
        super().__init__(message)
        self.answered = answered


class ConversationError(ToolbusError):
    """A kept conversation can't be continued here: another process took it over, it was deleted, or it can't be read."""


class ConversationBusy(ConversationError):
    """Another process continues the conversation."""


class EndpointError(ToolbusError):
    """A model's endpoint gave no complete answer; the message is one line that says what to do.

    Attributes:
        status: the HTTP error status; 0 when there was none.
        retryable: whether the same request may succeed later.
        retry_after: seconds to wait before a retry, when the endpoint says so.
    """

    def __init__(self, message: str, *, status: int = 0, retryable: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after


class BrokerError(ToolbusError):
    """The server refused a command."""


class BrokerUnavailable(BrokerError):
    """The server can't be reached, or the connection was lost before its answer arrived."""


class CredentialsRefused(BrokerError):
    """The server refused the user or the password, or none could be given; the message says where to correct it."""


class UnsupportedServer(BrokerError):
    """The server is too old or lacks a command; the message names it."""
