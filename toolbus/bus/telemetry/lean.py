"""Spans that are made without the SDK's tracer, where it is set up in the usual way.

The SDK makes ids, a context and a span before it says that a span is dropped, and copies and checks the attributes of one that is kept.
Both cost more than the rest of the call. With the SDK's own sampler, ids, limits and processors, the same spans are made here for less.
"""

from __future__ import annotations

import copy
import os
import random
import re
import threading
import time
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags, TraceState, set_span_in_context

SAMPLED, _RANDOM, _KNOWN = 1, 2, 3
FLAGS = tuple(TraceFlags(flags) for flags in range(4))
_LOW_BITS = (1 << 64) - 1
"""The bits of a trace's id that ``TraceIdRatioBased`` compares with its bound."""
_ATTRIBUTES = 16
"""More than any span of ours has."""

# What the SDK's samplers say of themselves. With the second, a span has the decision of its parent.
_ROOT = r"(AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased\{([^{}]+)\})"
_ALONE = re.compile(_ROOT).fullmatch
_FOLLOWING = re.compile(
    rf"ParentBased\{{root:{_ROOT},remoteParentSampled:AlwaysOnSampler,remoteParentNotSampled:AlwaysOffSampler,"
    r"localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler\}"
).fullmatch


_ROOTS = 64
"""So many traces are begun at once: one by one, their ids take three times as long."""
_NO_ID = "0" * 16

Drawn = tuple[int, int, int]
"""The ids of a trace and of a span in it, and the trace's flags."""


class Lean:
    """Makes the spans of a tracer.

    Args:
        tracer: of the SDK, set up in the usual way.

    Raises:
        ValueError: it is set up in another way, so only the tracer itself can make its spans.
        ImportError, AttributeError, TypeError: it is of another SDK.
    """

    def __init__(self, tracer: Any) -> None:
        from opentelemetry.sdk.trace import ReadableSpan, SynchronousMultiSpanProcessor, export, sampling  # noqa: PLC0415 - loaded with the SDK
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415 - see above

        self.tracer, self.ids, self.ended, self._setup = tracer, tracer.id_generator, ReadableSpan, _setup(tracer)
        sampler, limits, said = tracer.sampler, tracer._span_limits, tracer.sampler.get_description()
        followers = {sampling.ParentBased, sampling.ParentBasedTraceIdRatio}
        self.follows = _FOLLOWING(said) is not None
        root = _FOLLOWING(said) or _ALONE(said)
        if (
            root is None
            # One of somebody else may say the same of itself.
            or any(
                type(one) not in {sampling.TraceIdRatioBased, sampling.StaticSampler}
                for one in (vars(sampler).values() if type(sampler) in followers else [sampler])
            )
            or type(self.ids) is not RandomIdGenerator
            or type(tracer.span_processor) is not SynchronousMultiSpanProcessor
            # Another one may change a span when it starts.
            or any(type(one) not in {export.BatchSpanProcessor, export.SimpleSpanProcessor} for one in self._setup[1])
            or limits.max_span_attribute_length is not None
            or (limits.max_span_attributes is not None and limits.max_span_attributes < _ATTRIBUTES)
            or not tracer._is_enabled()
            # The SDK counts its spans.
            or os.environ.get("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "").strip().lower() == "true"
        ):
            raise ValueError("another set-up")
        rate = float(root[2]) if root[2] else float(root[1] == "AlwaysOnSampler")
        self._bound = sampling.TraceIdRatioBased.get_bound_for_rate(rate)
        self._roots: list[str] = []
        self._random = _RANDOM if self.ids.is_trace_id_random() else 0

    def holds(self) -> bool:
        """Return whether the tracer is set up as it was."""
        now = self.tracer
        sampler, processors, config = self._setup
        return now.sampler is sampler and now.span_processor._span_processors is processors and now._tracer_config is config

    def root(self) -> str:
        """Return the header of a new trace: its ids as the tracer would make them, and whether it is kept."""
        while True:
            try:
                return self._roots.pop()
            except IndexError:
                self._roots = self._draw_roots()

    def _draw_roots(self) -> list[str]:
        text = ""
        while not text or _NO_ID in text:
            text = random.getrandbits(192 * _ROOTS).to_bytes(24 * _ROOTS).hex()
        # As long as the ids they are compared with, so that they are in the order of the numbers.
        bound = f"{self._bound:016x}" if self._bound <= _LOW_BITS else "g"
        dropped, kept = f"{self._random:02x}", f"{self._random | SAMPLED:02x}"
        return [
            f"00-{text[at : at + 32]}-{text[at + 32 : at + 48]}-{kept if text[at + 16 : at + 32] < bound else dropped}"
            for at in range(0, len(text), 48)
        ]

    def draw(self, parent: SpanContext | None) -> Drawn:
        """Return the ids of a new span as the tracer would make them, and whether it is kept."""
        ids = self.ids
        if parent is None or not parent.is_valid:
            trace_id = ids.generate_trace_id()
            flags = self._random | (trace_id & _LOW_BITS < self._bound)
        else:
            trace_id, flags = parent.trace_id, parent.trace_flags & _KNOWN
            if not self.follows:
                flags = flags & _RANDOM | (trace_id & _LOW_BITS < self._bound)
        return trace_id, ids.generate_span_id(), flags

    def keep(self, name: str, drawn: Drawn, parent: SpanContext | None, kind: SpanKind, attributes: dict[str, Any]) -> Span:
        """Start a span that is kept."""
        if parent is None or not parent.is_valid:
            return LeanSpan(self, name, context_of(drawn, None), None, kind, attributes)
        return LeanSpan(self, name, context_of(drawn, parent.trace_state), parent, kind, attributes)


def context_of(drawn: Drawn, state: TraceState | None) -> SpanContext:
    """Return the context of a span."""
    return SpanContext(drawn[0], drawn[1], False, FLAGS[drawn[2]], state)


def _setup(tracer: Any) -> tuple[Any, Any, Any]:
    return tracer.sampler, tracer.span_processor._span_processors, tracer._tracer_config


# A processor that was added meanwhile may touch another span when this one starts.
_making = threading.RLock()


def _by_sdk(name: str) -> Any:
    def method(self: LeanSpan, *args: Any, **options: Any) -> Any:
        return getattr(self._touched(), name)(*args, **options)

    return method


class LeanSpan(Span):
    """A span that is kept. The SDK makes one with the same ids in its place when somebody does more with it than to end it."""

    __slots__ = ("_attributes", "_context", "_ended", "_kind", "_lean", "_made", "_name", "_parent", "_started")

    def __init__(
        self, lean: Lean, name: str, context: SpanContext, parent: SpanContext | None, kind: SpanKind, attributes: dict[str, Any]
    ) -> None:
        self._lean, self._name, self._context, self._parent = lean, name, context, parent
        self._kind, self._attributes, self._started = kind, attributes, time.time_ns()
        self._made: Span | None = None
        self._ended = False

    def get_span_context(self) -> SpanContext:
        """Return its ids and flags."""
        return self._context

    def is_recording(self) -> bool:
        """Return whether it has not ended."""
        return not self._ended if self._made is None else self._made.is_recording()

    def end(self, end_time: int | None = None) -> None:
        """End it, and hand it to the processors."""
        with _making:
            made, over, self._ended = self._made, self._ended, True
        if made is not None:
            made.end(end_time)
        elif not over:
            tracer = self._lean.tracer
            tracer.span_processor.on_end(
                self._lean.ended(
                    self._name,
                    self._context,
                    self._parent,
                    tracer.resource,
                    self._attributes,
                    kind=self._kind,
                    start_time=self._started,
                    end_time=end_time or time.time_ns(),
                    instrumentation_scope=tracer._instrumentation_scope,
                )
            )

    set_attribute = _by_sdk("set_attribute")
    set_attributes = _by_sdk("set_attributes")
    add_event = _by_sdk("add_event")
    add_link = _by_sdk("add_link")
    update_name = _by_sdk("update_name")
    set_status = _by_sdk("set_status")
    record_exception = _by_sdk("record_exception")

    def __getattr__(self, name: str) -> Any:
        """Return what only the SDK's spans have, such as ``attributes``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._touched(), name)

    def _touched(self) -> Span:
        with _making:
            if self._made is None:
                # What is done to a span that has ended is done to nothing, as in the SDK.
                self._made = INVALID_SPAN if self._ended else self._by_tracer()
            return self._made

    def _by_tracer(self) -> Span:
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON  # noqa: PLC0415 - loaded with the SDK

        tracer = copy.copy(self._lean.tracer)
        tracer.sampler, tracer.id_generator = ALWAYS_ON, _These(self._context)
        within = Context() if self._parent is None else set_span_in_context(NonRecordingSpan(self._parent), Context())
        made: Span = tracer.start_span(self._name, within, self._kind, self._attributes, start_time=self._started)
        return made


class _These:
    """Ids that are known, for a tracer that asks for new ones."""

    def __init__(self, context: SpanContext) -> None:
        self._context = context

    def generate_trace_id(self) -> int:
        """Return that of the trace."""
        return self._context.trace_id

    def generate_span_id(self) -> int:
        """Return that of the span."""
        return self._context.span_id

    def is_trace_id_random(self) -> bool:
        """Return whether the flags say so."""
        return bool(self._context.trace_flags & _RANDOM)
