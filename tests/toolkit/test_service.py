"""``ToolkitService``: adding with edges, warnings, removing."""

from __future__ import annotations

import logging

import pytest

from tests.toolkit.graphs import facts, graph_of
from toolbus.toolkit import Action, Tool, ToolGroup, ToolkitError, ToolkitService


@pytest.fixture
def service() -> ToolkitService:
    """Return a service with two actions, the first of which leads to the second."""
    made = ToolkitService()
    second = Action("b", "Write")
    made.add_action(second)
    made.add_action(Action("a", "Read"), next_actions=[(second, 0.7)])
    return made


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events of the logged warnings."""
    return [record.getMessage().split()[0] for record in caplog.records if record.levelno == logging.WARNING]


def test_a_service_works_on_the_graph_it_is_given() -> None:
    """Two services do not share a graph unless they are told to."""
    toolkit = graph_of(alone=("a0",))
    assert ToolkitService(toolkit).get_toolkit() is toolkit
    assert ToolkitService().get_toolkit() is not ToolkitService().get_toolkit()


def test_actions_come_with_next_edges_both_ways(service: ToolkitService) -> None:
    """Next and previous actions are connected with their scores, and adding an action again gives its edges new ones."""
    a, b = service.get_action("a"), service.get_action("b")
    service.add_action(Action("c", "Check"), next_actions=[(a, 0.4)], prev_actions=[(b, 0.6)])
    assert facts(service.get_toolkit())[1] == {("a", "b"): 0.7, ("c", "a"): 0.4, ("b", "c"): 0.6}
    service.add_action(Action("a", "another name"), next_actions=[(b, 0.1)])
    assert (service.get_action("a").name, service.get_toolkit().get_score("a", "b")) == ("Read", 0.1)


def test_an_unknown_connected_action_is_left_out_with_a_warning(service: ToolkitService, caplog: pytest.LogCaptureFixture) -> None:
    """The edges to known actions are made; the log names the unknown one."""
    service.add_tool(Tool("t", "T"), connected_actions=[(service.get_action("a"), 0.9), (Action("x", "X"), 0.9)])
    service.add_action(Action("c", "C"), next_actions=[(Action("y", "Y"), 1.0)])
    assert facts(service.get_toolkit())[1] == {("a", "b"): 0.7, ("a", "t"): 0.9}
    assert warned(caplog) == ["toolkit.action_unknown", "toolkit.action_unknown"]
    assert ["action=x" in caplog.messages[0], "action=y" in caplog.messages[1]] == [True, True]


def test_a_tool_that_nothing_leads_to_is_taken_out_with_a_warning(service: ToolkitService, caplog: pytest.LogCaptureFixture) -> None:
    """It is not left in the graph where nobody can find it."""
    for connected in ([], [(Action("x", "X"), 1.0)]):
        service.add_tool(Tool("t", "T"), connected_actions=connected)
        assert not service.get_toolkit().has_vertex("t")
    assert warned(caplog) == ["toolkit.tool_unreachable", "toolkit.action_unknown", "toolkit.tool_unreachable"]


def test_a_tool_that_is_called_stays_when_it_is_added_without_callers(service: ToolkitService, caplog: pytest.LogCaptureFixture) -> None:
    """Adding it again without callers takes none away."""
    service.add_tool(Tool("t", "T"), connected_actions=[(service.get_action("a"), 0.9)])
    service.add_tool(Tool("t", "T"))
    assert service.get_toolkit().get_score("a", "t") == 0.9
    assert warned(caplog) == []


def test_next_ids_and_tools_of_an_action_become_edges(caplog: pytest.LogCaptureFixture) -> None:
    """The connections in an action's own fields get the score 1.0, also to actions that come later, without a warning."""
    service = ToolkitService()
    service.add_action(Action("a", "A", next_action_ids=["b", "a"], tools=[Tool("t", "T")]))
    service.add_action(Action("b", "B", next_action_ids=["a"]))
    assert facts(service.get_toolkit())[1] == {("a", "a"): 1.0, ("a", "t"): 1.0, ("a", "b"): 1.0, ("b", "a"): 1.0}
    assert warned(caplog) == []


def test_an_action_that_is_gone_is_not_connected_to_what_it_waited_for() -> None:
    """The next id of a removed action makes no edge when that action comes."""
    service = ToolkitService()
    service.add_action(Action("a", "A", next_action_ids=["b"]))
    service.remove_action("a")
    service.add_action(Action("b", "B"))
    assert service.get_toolkit().vertices() == ["b"]


def test_a_group_comes_with_its_tools(service: ToolkitService) -> None:
    """Actions call the group, and the group leads to its tools."""
    group = ToolGroup("g", "G", "d", [Tool("t", "T"), Tool("u", "U")])
    service.add_tool_group(group, [(service.get_action("a"), 0.6)])
    assert facts(service.get_toolkit())[1] == {("a", "b"): 0.7, ("a", "g"): 0.6, ("g", "t"): 1.0, ("g", "u"): 1.0}
    assert service.get_toolkit().get_tool_group("g") is group


def test_a_group_that_is_added_again_is_replaced(service: ToolkitService) -> None:
    """Tools that stay keep their scores and get their new data, those that left go unless something else calls them, new ones come."""
    a, toolkit = service.get_action("a"), service.get_toolkit()
    service.add_tool_group(ToolGroup("g", "G", "", [Tool(vertex, vertex) for vertex in ("kept", "gone", "called")]), [(a, 0.6)])
    service.add_tool(Tool("called", "called"), [(a, 0.8)])
    toolkit.set_score("g", "kept", 0.3)
    service.add_tool_group(ToolGroup("g", "G2", "", [Tool("kept", "newer"), Tool("new", "new")]))
    assert sorted(toolkit.vertices()) == ["a", "b", "called", "g", "kept", "new"]
    assert [toolkit.get_score(*edge) for edge in (("a", "g"), ("g", "kept"), ("g", "new"), ("a", "called"))] == [0.6, 0.3, 1.0, 0.8]
    kept, group = toolkit.get_tool("kept"), toolkit.get_tool_group("g")
    assert kept is not None
    assert group is not None
    assert (kept.name, group.name) == ("newer", "G2")


def test_a_group_that_no_action_calls_stays_and_is_warned_of(service: ToolkitService, caplog: pytest.LogCaptureFixture) -> None:
    """It can be connected later; until then the log says that it is of no use."""
    service.add_tool_group(ToolGroup("g", "G", "", [Tool("t", "T")]), [(Action("x", "X"), 1.0)])
    assert warned(caplog) == ["toolkit.action_unknown", "toolkit.group_unreachable"]
    assert service.get_toolkit().successors("g") == ["t"]


def test_removing_by_kind(service: ToolkitService) -> None:
    """Each kind is removed with what goes with it; an id of another kind is refused, one that is not there does nothing."""
    a, toolkit = service.get_action("a"), service.get_toolkit()
    service.add_tool(Tool("t", "T"), [(a, 1.0)])
    service.add_tool_group(ToolGroup("g", "G", "", [Tool("u", "U")]), [(a, 1.0)])
    for remove, wrong in ((service.remove_tool, "a"), (service.remove_action, "g"), (service.remove_tool_group, "t")):
        with pytest.raises(ToolkitError, match=f"'{wrong}' is a"):
            remove(wrong)
        remove("nowhere")
    service.remove_tool_group("g")
    assert sorted(toolkit.vertices()) == ["a", "b", "t"]
    service.remove_action("a")
    assert toolkit.vertices() == ["b"]
    service.add_tool(Tool("v", "V"), [(service.get_action("b"), 1.0)])
    service.remove_tool("v")
    assert toolkit.vertices() == ["b"]


def test_an_action_that_is_not_there_is_a_value_error(service: ToolkitService) -> None:
    """So is a tool's id; the message names it."""
    with pytest.raises(ValueError, match="no action 'x'"):
        service.get_action("x")


@pytest.mark.parametrize("score", [1.5, float("nan"), -1])
def test_nothing_is_added_with_an_impossible_score(service: ToolkitService, score: float) -> None:
    """The error names both ends, and neither vertex nor edge was added."""
    a, before = service.get_action("a"), facts(service.get_toolkit())
    for add in (
        lambda: service.add_action(Action("c", "C"), next_actions=[(a, score)]),
        lambda: service.add_tool(Tool("c", "C"), [(a, score)]),
        lambda: service.add_tool_group(ToolGroup("c", "C", "", [Tool("t", "T")]), [(a, score)]),
    ):
        with pytest.raises(ToolkitError, match="between 'c' and the action 'a'"):
            add()
    assert facts(service.get_toolkit()) == before


def test_an_id_of_another_kind_is_refused(service: ToolkitService) -> None:
    """Neither a tool, a group nor a group's tool takes an action's place, and nothing was added."""
    a, before = service.get_action("a"), facts(service.get_toolkit())
    for add in (
        lambda: service.add_tool(Tool("b", "B"), [(a, 1.0)]),
        lambda: service.add_tool_group(ToolGroup("g", "G", "", [Tool("t", "T"), Tool("b", "B")]), [(a, 1.0)]),
        lambda: service.add_action(Action("c", "C", tools=[Tool("b", "B")])),
    ):
        with pytest.raises(ToolkitError, match="'b' is an action already"):
            add()
    assert facts(service.get_toolkit()) == before
