"""Draw the report of a run of learning with matplotlib (``toolbus[draw]``): changed scores, and the evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal

try:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"pictures need matplotlib: pip install 'toolbus[draw]' ({error})", name="matplotlib") from None

from toolbus.bus.support.display import one_line
from toolbus.toolkit.draw import rendered
from toolbus.toolkit.learning.evaluate import Evaluation
from toolbus.toolkit.learning.evaluate import Figure as Measured
from toolbus.toolkit.learning.learn import Change
from toolbus.toolkit.learning.pipeline import Outcome

_MOST = 24
_NAME_LENGTH = 28
_BEFORE, _GREY, _UP, _DOWN, _LINE = "#9ca3af", "#6b7280", "#15803d", "#b91c1c", "#1d4ed8"
_MEASURES = ("hit@1", "hit@3", "mrr", "reach")
# A number beside what it is of.
_NUMBER: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 7}


def draw(outcome: Outcome, title: str, *, format: Literal["svg", "png"] = "svg") -> bytes:
    """Return the picture as SVG, whose text stays text, or as PNG; the same outcome gives the same bytes."""
    changes = sorted(outcome.changes, key=lambda each: -abs(each.new - each.old))[:_MOST]
    figure = Figure(figsize=(11, max(3.2, 1.6 + 0.34 * len(changes))), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    figure.suptitle(one_line(title, 100), fontsize=11, parse_math=False)
    _draw_changes(left, changes, len(outcome.changes), 0.5 if outcome.evaluation is None else outcome.evaluation.options.threshold)
    _draw_evaluation(right, outcome.evaluation)
    with warnings.catch_warnings():
        # A name may have characters that the font lacks; the viewer of an SVG has its own fonts.
        warnings.simplefilter("ignore", UserWarning)
        return rendered(figure, format, dpi=120)


def _draw_changes(axes: Axes, changes: Sequence[Change], total: int, threshold: float) -> None:
    more = "" if len(changes) == total else f" ({len(changes)} of {total})"
    axes.set_title(f"scores before and now{more}", fontsize=9)
    axes.set_xlim(-0.02, 1.02)
    if not changes:
        _say_nothing(axes, "no score differs")
        return
    for row, change in enumerate(changes):
        colour = _UP if change.new >= change.old else _DOWN
        axes.annotate("", (change.new, row), (change.old, row), arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.6})
        axes.plot(change.old, row, "o", color=_BEFORE, markersize=6)
        axes.plot(change.new, row, "o", color=colour, markersize=6)
        side, place = ("left", 8) if change.new < 0.75 else ("right", -8)
        axes.annotate(f"{change.new:.2f}", (change.new, row), (place, 7), ha=side, color=colour, **_NUMBER)
    labels = [f"{one_line(each.source, _NAME_LENGTH)} → {one_line(each.target, _NAME_LENGTH)}" for each in changes]
    axes.set_yticks(range(len(changes)), labels, fontsize=8, parse_math=False)
    axes.set_ylim(len(changes) - 0.4, -0.6)
    axes.axvline(threshold, color=_LINE, linestyle="--", linewidth=0.9)
    axes.text(threshold, -0.5, " threshold", fontsize=7, color=_LINE, va="center")
    axes.set_xlabel("score", fontsize=8)
    _plain(axes)


def _draw_evaluation(axes: Axes, found: Evaluation | None) -> None:
    axes.set_title("tools that succeeded, on held-out episodes", fontsize=9)
    if found is None:
        _say_nothing(axes, "too few episodes to evaluate")
        return
    known = {each.policy: each.figures for each in found.tools}
    for offset, policy, colour in ((-0.1, "static", _GREY), (0.1, "learned", _UP)):
        for row, measure in enumerate(_MEASURES):
            _draw_figure(axes, known[policy][measure], row + offset, colour, 9 if offset < 0 else -9)
        axes.plot([], [], "o", color=colour, label=policy)
    axes.set_yticks(range(len(_MEASURES)), _MEASURES, fontsize=8)
    axes.set_ylim(len(_MEASURES) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.08)
    axes.set_xlabel(f"share of {found.calls:,} calls, with intervals of {found.options.level:.0%}", fontsize=8)
    axes.legend(fontsize=7, frameon=False, loc="lower left")
    _plain(axes)


def _draw_figure(axes: Axes, figure: Measured, row: float, colour: str, lift: int) -> None:
    """Draw a value with its interval, and its number above or below it."""
    if figure.value is None or figure.low is None or figure.high is None:
        return
    axes.plot([figure.low, figure.high], [row, row], color=colour, linewidth=2, alpha=0.6)
    axes.plot(figure.value, row, "o", color=colour, markersize=6)
    axes.annotate(f"{figure.value:.2f}", (figure.value, row), (0, lift), ha="center", color=colour, **_NUMBER)


def _say_nothing(axes: Axes, why: str) -> None:
    axes.axis("off")
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", fontsize=9)


def _plain(axes: Axes) -> None:
    axes.grid(axis="x", color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
