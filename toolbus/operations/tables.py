"""Tables of a snapshot for terminals: their columns, what stands in them, and by what they are sorted."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from toolbus.bus.support.display import one_line
from toolbus.bus.watch.views import Snapshot

_MOST_ERROR = 80


class Column(NamedTuple):
    """A column: its title, the text of a view in it, what it is sorted by, and whether its texts stand at the right."""

    title: str
    text: Callable[[Any], str]
    sort: Callable[[Any], Any]
    right: bool = False


class Table(NamedTuple):
    """A table of a snapshot.

    Attributes:
        title: for people.
        rows: returns the views of a snapshot that it shows.
        key: returns what tells two views apart.
        columns: from left to right.
        first: title of the column by which it is sorted at first, and whether downwards.
        empty: what to say when there is nothing.
    """

    title: str
    rows: Callable[[Snapshot], Sequence[Any]]
    key: Callable[[Any], str]
    columns: tuple[Column, ...]
    first: tuple[str, bool]
    empty: str

    def cells(self, view: Any) -> list[str]:
        """Return the texts of one row."""
        return [column.text(view) for column in self.columns]

    def column(self, title: str) -> Column:
        """Return the column with a title."""
        return next(each for each in self.columns if each.title == title)

    def sorted(self, views: Sequence[Any], title: str, *, down: bool) -> list[Any]:
        """Return the views sorted by a column, and those that are equal in it in their usual order."""
        return sorted(views, key=self.column(title).sort, reverse=down)


def milliseconds(value: float | None) -> str:
    """Return a latency with its unit, in few characters; a dash when there is none."""
    if value is None:
        return "-"
    if value >= 10_000:
        return f"{value / 1000:.0f} s"
    if value >= 1_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def seconds(value: float) -> str:
    """Return a duration in its largest unit."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if value >= 2 * size:
            return f"{value / size:.0f} {unit}"
    return f"{max(0.0, value):.0f} s"


def clock(at: float) -> str:
    """Return the local time of day, with its date on another day than today; a dash when it is unknown."""
    try:
        local = datetime.datetime.fromtimestamp(at).astimezone()
        today = datetime.datetime.now().astimezone().date()
        return local.strftime("%H:%M:%S" if local.date() == today else "%Y-%m-%d %H:%M:%S") if at else "-"
    except (OverflowError, ValueError, OSError):
        return "-"


def _same(title: str, text: Callable[[Any], str]) -> Column:
    """Return a column that is sorted by its texts."""
    return Column(title, text, text)


def _text(title: str, name: str) -> Column:
    return _same(title, lambda view: str(getattr(view, name)))


def _number(title: str, name: str) -> Column:
    return Column(title, lambda view: str(getattr(view, name) or ""), lambda view: getattr(view, name), right=True)


def _rate(title: str, name: str) -> Column:
    def text(view: Any) -> str:
        value = getattr(view, name)
        return "" if not value else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

    return Column(title, text, lambda view: getattr(view, name), right=True)


def _latency(title: str, name: str) -> Column:
    return Column(title, lambda view: milliseconds(getattr(view, name)), lambda view: getattr(view, name) or 0.0, right=True)


def _time(title: str, name: str) -> Column:
    return Column(title, lambda view: clock(getattr(view, name)), lambda view: getattr(view, name))


def _state(view: Any) -> str:
    return "paused" if view.paused else str(view.state)


def _error(view: Any) -> str:
    if not view.error:
        return f"taken over by {view.by}" if view.by else ""
    return one_line(": ".join(filter(None, (view.error, view.code, view.message))), _MOST_ERROR)


def _last_error(view: Any) -> str:
    error = view.last_error
    if error is None:
        return ""
    return one_line(f"{clock(error.at)} {': '.join(filter(None, (error.type, error.code, error.message)))}", _MOST_ERROR)


TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "services": Table(
            "Services",
            lambda snapshot: snapshot.services,
            lambda view: view.id,
            (
                _text("SERVICE", "id"),
                _same("STATE", _state),
                _number("WORKERS", "workers"),
                _number("QUEUED", "queued"),
                _number("RUNNING", "running"),
                _rate("CALLS/S", "calls_per_s"),
                _rate("ERRORS/S", "failures_per_s"),
                _latency("P50", "p50_ms"),
                _latency("P99", "p99_ms"),
                _number("CALLS", "calls"),
                _number("DEAD", "dead"),
                _number("TOOLS", "tools"),
            ),
            ("SERVICE", False),
            "no services; start a worker: toolbus worker TARGET",
        ),
        "workers": Table(
            "Workers",
            lambda snapshot: snapshot.instances,
            lambda view: view.id,
            (
                _text("WORKER", "id"),
                Column("STATE", lambda view: "" if view.answered else "unknown" if view.unknown else "silent", lambda view: view.answered),
                _text("HOST", "host"),
                _number("PID", "pid"),
                Column("UP", lambda view: seconds(view.uptime) if view.answered else "", lambda view: view.uptime, right=True),
                Column(
                    "SLOTS",
                    lambda view: f"{view.running}/{view.slots}" if view.answered else "",
                    lambda view: view.running / (view.slots or 1),
                    right=True,
                ),
                _rate("CALLS/S", "calls_per_s"),
                _number("CALLS", "calls"),
                _number("FAILED", "failures"),
                _number("CANCELLED", "cancelled"),
                _number("RETAKEN", "retaken"),
                _text("VERSION", "version"),
                Column("SERVICES", lambda view: one_line(" ".join(view.services), 60), lambda view: view.services),
            ),
            ("WORKER", False),
            "no workers; start one: toolbus worker TARGET",
        ),
        "tools": Table(
            "Tools",
            lambda snapshot: snapshot.tools,
            lambda view: f"{view.service}/{view.name}",
            (
                _text("TOOL", "name"),
                _text("SERVICE", "service"),
                _number("RUNNING", "running"),
                _rate("CALLS/S", "calls_per_s"),
                _latency("P50", "p50_ms"),
                _latency("P99", "p99_ms"),
                _number("CALLS", "started"),
                _number("FAILED", "failures"),
                _number("CANCELLED", "cancelled"),
                _number("RETAKEN", "retaken"),
                _number("REFUSED", "refused"),
                Column("LAST ERROR", _last_error, lambda view: 0.0 if view.last_error is None else view.last_error.at),
            ),
            ("TOOL", False),
            "no tools; start a worker: toolbus worker TARGET",
        ),
        "calls": Table(
            "Calls",
            lambda snapshot: snapshot.recent,
            lambda view: f"{view.entry}/{view.id}/{view.attempt}",
            (
                _time("ENDED", "ended"),
                _same("TOOL", lambda view: view.tool or view.service),
                _text("OUTCOME", "outcome"),
                Column("TRY", lambda view: str(view.attempt), lambda view: view.attempt, right=True),
                Column("QUEUED", lambda view: milliseconds(view.queued_ms) if view.taken else "-", lambda view: view.queued_ms, right=True),
                Column("RAN", lambda view: milliseconds(view.ms) if view.taken else "-", lambda view: view.ms, right=True),
                _text("USER", "user"),
                _text("WORKER", "instance"),
                _text("CALL", "id"),
                _same("ERROR", _error),
            ),
            ("ENDED", True),
            "no recent calls",
        ),
        "dead": Table(
            "Dead letters",
            lambda snapshot: snapshot.dead,
            lambda view: f"{view.queue}/{view.id}",
            (
                _time("WHEN", "at"),
                _text("QUEUE", "queue"),
                _text("TOOL", "tool"),
                _text("USER", "user"),
                _number("ATTEMPTS", "attempts"),
                _text("REASON", "reason"),
                Column("LAST ERROR", lambda view: one_line(view.error, _MOST_ERROR), lambda view: view.error),
                _text("ID", "id"),
            ),
            ("WHEN", True),
            "no dead letters",
        ),
        "confirmations": Table(
            "Confirmations",
            lambda snapshot: snapshot.confirmations,
            lambda view: view.id,
            (
                _time("ASKED", "asked_at"),
                _same("TOOL", lambda view: view.tool or view.service),
                _text("USER", "user"),
                Column("QUESTION", lambda view: one_line(view.question, _MOST_ERROR), lambda view: view.question),
                _time("EXPIRES", "expires_at"),
                _text("ID", "id"),
            ),
            ("ASKED", False),
            "nothing waits for a person",
        ),
        "sessions": Table(
            "Sessions",
            lambda snapshot: snapshot.sessions,
            lambda view: f"{view.instance}/{view.service}/{view.user}/{view.session}",
            (
                _text("SERVICE", "service"),
                _text("USER", "user"),
                _text("SESSION", "session"),
                _number("RUNNING", "running"),
                Column("IDLE", lambda view: seconds(view.idle), lambda view: view.idle, right=True),
                _text("WORKER", "instance"),
            ),
            ("IDLE", False),
            "no open sessions",
        ),
        "running": Table(
            "Running",
            lambda snapshot: snapshot.running,
            lambda view: f"{view.instance}/{view.id}",
            (
                _time("SINCE", "since"),
                _same("TOOL", lambda view: view.tool or view.service),
                Column("TRY", lambda view: str(view.attempt), lambda view: view.attempt, right=True),
                _text("USER", "user"),
                _text("WORKER", "instance"),
                _text("CALL", "id"),
                Column("STATE", lambda view: "stopping" if view.stopped else "" if view.since else "waits", lambda view: view.stopped),
            ),
            ("SINCE", False),
            "no running calls",
        ),
    }
)
"""The tables of a snapshot by name."""
