"""A namespace, watched in the terminal; the only module that imports textual."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static, Tab, Tabs

from toolbus.bus.broker.statistics.recent import RecentCall
from toolbus.bus.support.display import harmless, visible, visible_lines
from toolbus.bus.values.results import ToolbusError
from toolbus.bus.values.settings import Settings
from toolbus.bus.values.urls import redact
from toolbus.bus.watch.views import Snapshot
from toolbus.bus.watch.watch import Watch
from toolbus.operations.tables import TABLES, Table, milliseconds

_GAP = 2
_WIDEST = 44
_HEADER = Style(bold=True, reverse=True)
_CURSOR = Style(reverse=True)
_TONES = {
    "down": Style(color="red"),
    "paused": Style(color="yellow"),
    "silent": Style(color="yellow"),
    "failed": Style(color="red"),
    "dead": Style(color="red"),
    "lost": Style(color="magenta"),
    "retried": Style(color="yellow"),
    "cancelled": Style(dim=True),
}


class Grid(ScrollView, can_focus=True):
    """The rows of one table, sorted and filtered, with a cursor on one of them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "First", show=False),
        Binding("end,G", "edge(1)", "Last", show=False),
        Binding("left", "sideways(-1)", "Left", show=False),
        Binding("right", "sideways(1)", "Right", show=False),
        Binding("enter", "choose", "Details"),
    ]

    class Chosen(Message):
        """A row was chosen."""

        def __init__(self, view: Any) -> None:
            self.view = view
            super().__init__()

    class HeaderClicked(Message):
        """The title of a column was clicked."""

        def __init__(self, column: str) -> None:
            self.column = column
            super().__init__()

    def __init__(self, table: Table) -> None:
        super().__init__()
        self.table = table
        self.rows: Sequence[Any] = ()
        # Until rows were read, none is not known.
        self._read = False
        self.order: tuple[str, bool] = table.first
        self._widths = [0] * len(table.columns)
        self._cursor = 0
        self._key = ""

    def show_table(self, table: Table, order: tuple[str, bool]) -> None:
        """Show another table, from its beginning."""
        self.table, self.order, self.rows = table, order, ()
        self._widths = [0] * len(table.columns)
        self._cursor, self._key = 0, ""
        self.scroll_to(0, 0, animate=False, force=True)

    def show_rows(self, rows: Sequence[Any], order: tuple[str, bool]) -> None:
        """Show these rows; the cursor stays on its own, if that is still there."""
        self.rows, self.order, self._read = rows, order, True
        if self._key and not (self._cursor < len(rows) and self.table.key(rows[self._cursor]) == self._key):
            found = next((at for at, view in enumerate(rows) if self.table.key(view) == self._key), None)
            self._cursor = self._cursor if found is None else found
        self._cursor = max(0, min(self._cursor, len(rows) - 1))
        self._measure()
        self.refresh()

    @property
    def chosen(self) -> Any:
        """The view under the cursor, or None."""
        return self.rows[self._cursor] if self._cursor < len(self.rows) else None

    def _measure(self) -> None:
        """Widen the columns for what is in view. They never get narrower, or they would jump."""
        first = max(0, int(self.scroll_offset.y))
        for view in self.rows[first : first + self.size.height]:
            for at, text in enumerate(self.table.cells(view)):
                self._widths[at] = max(self._widths[at], min(cell_len(visible(text)), _WIDEST))
        for at, column in enumerate(self.table.columns):
            # Room for the mark of the order.
            self._widths[at] = max(self._widths[at], len(column.title) + 2)
        self.virtual_size = Size(sum(self._widths) + _GAP * len(self._widths), len(self.rows) + 1)

    def on_resize(self, event: events.Resize) -> None:
        """Measure what has come into view."""
        self._measure()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Measure what has come into view."""
        super().watch_scroll_y(old_value, new_value)
        self._measure()

    def render_line(self, y: int) -> Strip:
        """Return one line of the screen; the first is the header, wherever the rows have been scrolled to."""
        left, width = int(self.scroll_offset.x), self.size.width
        if y == 0:
            return Strip([Segment(self._header(), _HEADER)]).crop_extend(left, left + width, _HEADER)
        at = y - 1 + int(self.scroll_offset.y)
        if at >= len(self.rows):
            text = self.table.empty if self._read and not self.rows and y == 1 else ""
            return Strip([Segment(text, Style(dim=True))]).crop_extend(0, width, None)
        view = self.rows[at]
        style = _tone(view)
        if at == self._cursor:
            style += _CURSOR
        cells = [visible(text) for text in self.table.cells(view)]
        return Strip([Segment(self._line(cells), style)]).crop_extend(left, left + width, style)

    def _header(self) -> str:
        title, down = self.order
        marked = [f"{each.title} {'▼' if down else '▲'}" if each.title == title else each.title for each in self.table.columns]
        return self._line(marked)

    def _line(self, cells: Sequence[str]) -> str:
        made = []
        for text, width, column in zip(cells, self._widths, self.table.columns, strict=True):
            length = cell_len(text)
            if length > width:
                made.append(set_cell_size(text, width - 1) + "…")
            else:
                made.append(" " * (width - length) + text if column.right else text + " " * (width - length))
        return (" " * _GAP).join(made)

    # -- actions ----------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor by some rows."""
        self._to(self._cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by the height of the screen."""
        self._to(self._cursor + by * max(1, self.size.height - 2))

    def action_edge(self, to: int) -> None:
        """Move the cursor to the first or last row."""
        self._to(0 if to < 0 else len(self.rows) - 1)

    def action_sideways(self, by: int) -> None:
        """Scroll to the left or right."""
        self.scroll_relative(x=10 * by, animate=False)

    def action_choose(self) -> None:
        """Show the row under the cursor."""
        if self.chosen is not None:
            self.post_message(self.Chosen(self.chosen))

    def _to(self, row: int) -> None:
        self._cursor = max(0, min(row, len(self.rows) - 1))
        self._key = self.table.key(self.rows[self._cursor]) if self.rows else ""
        top, height = int(self.scroll_offset.y), max(1, self.size.height - 1)
        if self._cursor < top:
            self.scroll_to(y=self._cursor, animate=False)
        elif self._cursor >= top + height:
            self.scroll_to(y=self._cursor - height + 1, animate=False)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Sort by the column whose title was clicked, or move the cursor."""
        if event.y > 0:
            self._to(int(event.y) - 1 + int(self.scroll_offset.y))
            return
        x = int(event.x) + int(self.scroll_offset.x)
        for width, column in zip(self._widths, self.table.columns, strict=True):
            if x < width + _GAP:
                self.post_message(self.HeaderClicked(column.title))
                return
            x -= width + _GAP


def _tone(view: Any) -> Style:
    word = getattr(view, "outcome", "")
    if getattr(view, "live", True) is False:
        word = view.state
    elif getattr(view, "paused", False):
        word = "paused"
    elif getattr(view, "answered", True) is False:
        word = "" if view.unknown else "silent"
    return _TONES.get(word, Style())


_INTERRUPTED = 130


class Details(ModalScreen[None]):
    """Everything known about one row."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "Close")]
    CSS = """
    Details { align: center middle; }
    Details VerticalScroll { width: 90%; height: 80%; border: round $primary; padding: 0 1; background: $surface; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        with VerticalScroll():
            yield Static(Text(self._text))


class Top(App[None]):
    """Shows snapshots as they are taken.

    Args:
        settings: which namespace of which server.
        every: seconds between two snapshots.
        watch: takes them; made from the settings unless it is given.
    """

    TITLE = "toolbus see top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #summary { height: 1; padding: 0 1; }
    #trouble { height: auto; max-height: 3; padding: 0 1; color: $warning; display: none; }
    Input { display: none; height: 1; border: none; padding: 0 1; }
    Grid { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", f"stop({_INTERRUPTED})", "Quit", show=False, priority=True),
        Binding("tab", "next(1)", "Next", priority=True),
        Binding("shift+tab", "next(-1)", "Previous", show=False, priority=True),
        *(Binding(str(number), f"table('{name}')", name.title(), show=False) for number, name in enumerate(TABLES, 1)),
        Binding("s", "sort", "Sort"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter"),
        Binding("escape", "unfilter", "No filter", show=False),
        Binding("p", "hold", "Pause"),
    ]

    def __init__(self, settings: Settings, *, every: float = 1.0, watch: Watch | None = None) -> None:
        super().__init__()
        self._settings = settings
        self._every = every
        self._watch = watch or Watch(settings)
        self._orders: dict[str, tuple[str, bool]] = {name: table.first for name, table in TABLES.items()}
        self._shown = next(iter(TABLES))
        self._sought = ""
        self._held = False
        self._told = ""
        self.snapshot: Snapshot | None = None
        # Held, since a sample may come when they have left the screen already.
        self._line = Static(id="summary")
        self._trouble = Static(id="trouble")
        self._grid = Grid(self._table)
        self._filter = Input(placeholder="show rows that contain …; Enter keeps it, Escape ends it")

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield self._line
        yield Tabs(*(Tab(f"{number} {table.title}", id=name) for number, (name, table) in enumerate(TABLES.items(), 1)))
        yield self._trouble
        yield self._grid
        yield self._filter
        yield Footer()

    @property
    def _table(self) -> Table:
        return TABLES[self._shown]

    # -- life -------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Begin to take snapshots; signals end it with the terminal as it was."""
        loop = asyncio.get_running_loop()
        for number, code in ((signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, _INTERRUPTED)):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self.action_stop, code)
        self._grid.focus()
        self._show_status("connecting …")
        self.run_worker(self._take_samples(), exclusive=True)

    async def _take_samples(self) -> None:
        try:
            while True:
                began = time.monotonic()
                try:
                    snapshot = await self._watch.sample()
                except (ToolbusError, OSError) as error:
                    self._show_trouble(str(error))
                else:
                    if not self._held:
                        self.snapshot = snapshot
                        self._show()
                await asyncio.sleep(max(0.1, self._every - (time.monotonic() - began)))
        finally:
            await self._watch.aclose()

    # -- what is shown ----------------------------------------------------------------------------

    def _show(self) -> None:
        snapshot = self.snapshot
        if snapshot is None:
            return
        self._show_status(_summary(snapshot))
        silent = f"{len(snapshot.silent)} workers do not answer: {', '.join(snapshot.silent)}" if snapshot.silent else ""
        self._show_trouble(
            "\n".join([*snapshot.faults, *(f"can't be read: {each}" for each in snapshot.problems), *filter(None, [silent])])
        )
        table, sought, (title, down) = self._table, self._sought.casefold(), self._orders[self._shown]
        views = table.rows(snapshot)
        rows = [view for view in views if not sought or any(sought in text.casefold() for text in table.cells(view))]
        self._grid.show_rows(table.sorted(rows, title, down=down), (title, down))

    def _show_status(self, text: str) -> None:
        notes = ["paused"] if self._held else []
        if self._sought:
            notes.append(f"only rows with {self._sought!r}")
        where = f"{redact(self._settings.url)} {self._settings.namespace}"
        # First, since the end of the line may not fit.
        said = "  ".join(filter(None, [*(f"[{visible(note)}]" for note in notes), visible(where), text]))
        self._line.update(Text(said, no_wrap=True, overflow="ellipsis"), layout=False)

    def _show_trouble(self, trouble: str) -> None:
        """Say what is wrong; what was shown last stays."""
        if trouble != self._told:
            # Only then, since it lays out the whole screen anew.
            self._told = trouble
            self._trouble.update(Text(harmless(trouble)))
            self._trouble.display = bool(trouble)

    # -- actions ----------------------------------------------------------------------------------

    def on_tabs_tab_activated(self, event: Tabs.TabActivated) -> None:
        """Show the table of the tab that was chosen."""
        name = event.tab.id or ""
        if name in TABLES and name != self._shown:
            self._shown = name
            self._grid.show_table(self._table, self._orders[name])
            self._show()

    def on_grid_header_clicked(self, event: Grid.HeaderClicked) -> None:
        """Sort by a column; once more, the other way round."""
        title, down = self._orders[self._shown]
        self._order(event.column, not down if title == event.column else None)

    def on_grid_chosen(self, event: Grid.Chosen) -> None:
        """Show everything known about a row; of a call, all of its attempts."""
        found: Any = event.view
        if isinstance(found, RecentCall) and self.snapshot is not None:
            found = [each.document() for each in reversed(self.snapshot.recent) if each.id == found.id]
        self.push_screen(Details(visible_lines(msgspec.json.format(msgspec.json.encode(found)).decode())))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._sought = event.value.strip()
        self._show()

    def on_input_submitted(self) -> None:
        """Go back to the table; the filter stays."""
        self._filter.display = bool(self._filter.value)
        self._grid.focus()

    def action_stop(self, code: int) -> None:
        """End it with an exit code."""
        self.exit(return_code=code)

    def action_table(self, name: str) -> None:
        """Show a table."""
        self.query_one(Tabs).active = name

    def action_next(self, by: int) -> None:
        """Show the next table, or the one before."""
        if isinstance(self.screen, Details):
            return
        names = list(TABLES)
        self.action_table(names[(names.index(self._shown) + by) % len(names)])

    def action_sort(self) -> None:
        """Sort by the next column."""
        titles = [column.title for column in self._table.columns]
        title = titles[(titles.index(self._orders[self._shown][0]) + 1) % len(titles)]
        self._order(title)

    def action_reverse(self) -> None:
        """Sort the other way round."""
        title, down = self._orders[self._shown]
        self._order(title, not down)

    def action_filter(self) -> None:
        """Ask for a text that rows must contain."""
        self._filter.display = True
        self._filter.focus()

    def action_unfilter(self) -> None:
        """Show all rows again."""
        self._filter.value = ""
        self.on_input_submitted()

    def action_hold(self) -> None:
        """Stop or go on with what is shown."""
        self._held = not self._held
        self._show()

    def _order(self, title: str, down: bool | None = None) -> None:
        # Of numbers one looks for the largest.
        self._orders[self._shown] = title, self._table.column(title).right if down is None else down
        self._show()


def _summary(snapshot: Snapshot) -> str:
    services = snapshot.services
    slowest = max((each.p99_ms for each in services if each.p99_ms is not None and each.calls_per_s), default=None)
    parts = [
        f"{sum(each.live for each in services)}/{len(services)} services",
        f"{len(snapshot.instances)} workers",
        f"{sum(each.calls_per_s for each in services):,.1f} calls/s",
        f"{sum(each.failures_per_s for each in services):,.1f} errors/s",
        f"{sum(each.queued for each in services):,} queued",
        f"{sum(each.running for each in services):,} running",
        f"{sum(each.dead for each in services):,} dead",
        f"{len(snapshot.confirmations)} to confirm" if snapshot.confirmations else "",
        f"p99 {milliseconds(slowest)}" if slowest is not None else "",
    ]
    return "  ".join(filter(None, parts))
