"""Records are matched with a graph's edges by every name that a log may have for them."""

from __future__ import annotations

import pytest

from tests.learning.samples import execution, scores
from toolbus.bus.values.results import ConfigurationError
from toolbus.toolkit.learning.evidence import matched
from toolbus.toolkit.live import all_names
from toolbus.toolkit.presets import graph_of, read_preset, scores_of

PRESET = """
name: analysis
tools:
  - {id: sql, bus: data_analysis}
  - {id: plot, name: draw_chart}
  - {id: bar}
  # Its name on the bus is another tool's id.
  - {id: other, bus: sql}
groups:
  - {id: charts, tools: [plot, bar]}
  - {id: post, service: mail}
actions:
  - {id: q, name: Query, call: [sql, charts, post]}
  - {id: r, name: Report, call: [bar, charts, other, sql]}
chains:
  - [q, r]
"""


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("action", "tool", "edge"),
    [
        ("q", "data_analysis", ("q", "sql")),
        ("q", "sql", ("q", "sql")),
        (" query ", "data_analysis", ("q", "sql")),
        ("Query", "draw_chart", ("q", "charts")),
        ("Query", "plot", ("q", "charts")),
        ("q", "charts", ("q", "charts")),
        ("q", "send_mail", ("q", "post")),
        ("r", "bar", ("r", "bar")),
        ("r", "draw_chart", ("r", "charts")),
        ("r", "sql", ("r", "other")),
        ("r", "data_analysis", ("r", "sql")),
        ("r", "send_mail", None),
        ("nobody", "sql", None),
    ],
)
def test_a_call_is_of_the_edge_that_its_names_mean(action: str, tool: str, edge: tuple[str, str] | None) -> None:
    """Names of the bus go before ids, a tool's own edge goes before a group with it, and a live group has its tools of the moment."""
    preset = read_preset(PRESET.encode())
    names = all_names(preset, {"post": ["send_mail"]})
    one, anchor = execution(action=action, tool=tool), execution(1, action="q", tool="sql")
    found = matched([anchor, one], scores_of(graph_of(preset)).scores, names)
    assert [(each.action, each.tool) for each in found.executions[1:]] == ([] if edge is None else [edge])
    assert dict(found.left_out) == ({} if edge is not None else {(action, tool): 1})


def test_what_was_shown_is_matched_too() -> None:
    """Propensities follow their tools and actions; a group is as probable as its most probable tool; the recorder's own target wins."""
    preset = read_preset(PRESET.encode())
    static, names = scores_of(graph_of(preset)).scores, all_names(preset, {})
    shown = {"data_analysis": 0.5, "plot": 0.1, "bar": 0.2, "gone": 0.3}
    given = execution(action="Query", tool="sql", target="charts", shown=shown, next_shown={"Report": 0.4})
    (found,) = matched([given], static, names).executions
    assert (found.tool, found.shown, found.next_shown) == ("charts", {"sql": 0.5, "charts": 0.2}, {"r": 0.4})
    assert (found.id, found.at, found.episode) == (given.id, given.at, given.episode)


def test_a_file_of_scores_has_the_names_of_its_graph() -> None:
    """The output of ``toolkit export`` matches logs as the preset itself does, but for groups of the moment."""
    file = scores_of(graph_of(read_preset(PRESET.encode())))
    groups = {"charts": ["bar", "draw_chart", "plot"]}
    assert file.names == {"sql": ["data_analysis"], "plot": ["draw_chart"], "other": ["sql"], "q": ["Query"], "r": ["Report"], **groups}
    (found,) = matched([execution(action="Query", tool="draw_chart")], file.scores, file.names).executions
    assert found.tool == "charts"


def test_records_of_no_edge_are_told() -> None:
    """The sentence counts them by edge and names the most frequent ones, in one line each."""
    static = scores(count={"sql": 0.5})
    foreign = [execution(number, tool=f"t{number % 7}\nx" + "y" * 100) for number in range(20)]
    found = matched([execution(50), *foreign], static, {})
    told = found.told()
    assert told.startswith("20 of 21 executions are of no edge of the graph and are left out: 'count' → 't0 xyy")
    assert told.endswith("(3) and 2 more edges")
    assert max(map(len, told.split(", "))) < 200
    assert matched([execution()], static, {}).told() == matched([], static, {}).told() == ""


def test_a_log_of_another_graph_is_refused() -> None:
    """The message compares the names on both sides."""
    foreign = [execution(number, action="fly", tool=tool) for number, tool in enumerate("ab")]
    with pytest.raises(ConfigurationError) as refused:
        matched(foreign, scores(count={"sql": 0.5}), {})
    said = "The log has the actions 'fly' and the tools 'a', 'b'; the graph has the actions 'count' and the tools 'sql'"
    assert str(refused.value).startswith("none of the 2 executions")
    assert str(refused.value).endswith(said)
