"""``Grid``: a table of which only the rows in view are drawn, so that a large one costs no more than a small one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from toolbus.display import visible
from toolbus.watch.tables import Table

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
        self.rows, self.order = rows, order
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
            text = self.table.empty if not self.rows and y == 1 else ""
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
        word = "down"
    elif getattr(view, "paused", False):
        word = "paused"
    elif getattr(view, "answered", True) is False:
        word = "silent"
    return _TONES.get(word, Style())
