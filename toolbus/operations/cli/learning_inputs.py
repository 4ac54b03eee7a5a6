"""Options and inputs of the commands of ``learning``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from toolbus.operations.cli.common import say

if TYPE_CHECKING:
    from toolbus.toolkit.learning.evidence import Episode, Parameters
    from toolbus.toolkit.learning.scores import ScoreFile

F = TypeVar("F", bound=Callable[..., Any])

_MOST_PROBLEMS = 20

scores_option = click.option("--scores", "scores_file", type=click.Path(path_type=Path), help="Static scores: a preset (.yaml), or JSON.")
log_option = click.option("--log", "log_file", type=click.Path(path_type=Path), help="Executions: .jsonl, .db or .sqlite.")
skip_option = click.option("--skip-corrupt", is_flag=True, help="Skip records that can't be read, and list them.")
folder_option = click.option(
    "--revisions", "folder", type=click.Path(path_type=Path), default=Path("revisions"), show_default=True, help="Folder of revisions."
)


def parameter_options(function: F) -> F:
    """Add the options for the parameters of learning."""
    for name, what in (
        ("--min-evidence", "Effective calls before a score moves (8)."),
        ("--half-life", "Days after which an execution counts half (30)."),
        ("--prior-strength", "Calls that a static score is worth (4)."),
        ("--clip", "Greatest weight of an execution that was improbable to be shown (10)."),
        ("--credibility", "Probability that a score is wrong before it moves (0.9)."),
        ("--guard", "Probability that a new order is better before it is accepted (0.99)."),
    ):
        function = click.option(name, type=float, help=what)(function)
    return function


class Problems:
    """Counts skipped records and reports the first of them."""

    def __init__(self, skip: bool) -> None:
        self.callback = self._add if skip else None
        self._count = 0

    def _add(self, error: Exception) -> None:
        self._count += 1
        if self._count <= _MOST_PROBLEMS:
            say(f"left out: {error}", err=True)

    def report(self) -> None:
        """Print how many more were skipped."""
        if self._count > _MOST_PROBLEMS:
            say(f"left out: {self._count - _MOST_PROBLEMS} more", err=True)


def parameters_of(given: dict[str, float | None]) -> Parameters:
    """Return the parameters of learning from the options.

    Raises:
        ConfigurationError: one is out of bounds.
    """
    from toolbus.toolkit.learning.evidence import Parameters

    return Parameters(**{name: value for name, value in given.items() if value is not None}).checked()  # type: ignore[arg-type]


def inputs(scores_file: Path | None, log_file: Path | None, skip_corrupt: bool) -> tuple[ScoreFile, list[Episode]]:
    """Return the static scores, and the episodes of a log as far as they are of the graph's edges.

    Raises:
        ConfigurationError: a file can't be read, or none of the log's executions is of an edge.
    """
    from toolbus.toolkit.learning.evidence import episodes, matched
    from toolbus.toolkit.learning.stores import open_store

    if scores_file is None or log_file is None:
        raise click.UsageError("give --scores and --log")
    static = static_scores(scores_file)
    problems = Problems(skip_corrupt)
    with open_store(log_file, must_exist=True) as store:
        found = matched(store.read(problems.callback), static.scores, static.names)
    problems.report()
    if found.left_out:
        say(found.told(), err=True)
    return static, episodes(found.executions)


def static_scores(path: Path) -> ScoreFile:
    """Return the scores of a preset (YAML), or of a JSON file of edges.

    Raises:
        ConfigurationError: it can't be read.
    """
    if path.suffix in {".yaml", ".yml"}:
        from toolbus.toolkit import load_preset
        from toolbus.toolkit.presets import graph_of, scores_of

        return scores_of(graph_of(load_preset(path)))
    from toolbus.toolkit.learning.scores import load_scores

    return load_scores(path)
