"""``chat2graph.yml``: what is imported, and what is said of each entry that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract import Place
from toolbus.bus.values.results import ToolkitError
from toolbus.compat.chat2graph.__main__ import main
from toolbus.compat.chat2graph.importer import Imported, import_config
from toolbus.toolkit.presets import read_preset, toolkit_of

pytestmark = pytest.mark.anyio

GOOD = """
app:
  name: "My App"
  desc: "Answers from a graph."
plugin: {workflow_platform: BUILTIN}
tools:
  - &schema_tool
    name: SchemaGetter
    module_path: app.chat2graph_app
  - &cypher_tool
    name: CypherExecutor
    type: LOCAL_TOOL
    module_path: app.chat2graph_app
  - &file_tool
    name: FileTool
    type: MCP
    mcp_transport_config: {transport_type: STDIO, command: npx}
actions:
  - &plan
    name: plan
    desc: Decide what to query.
    tools: [*schema_tool]
  - &query
    id: query-1
    name: query
    desc: Query the graph.
    tools:
      - *schema_tool
      - *cypher_tool
  - &save
    name: save
    desc: Save it.
    tools: [*file_tool]
  - &report
    name: report
    desc: Report.
toolkit:
  - [*plan, *query]
  - [*save, *report]
operators:
  - &query_operator
    instruction: Query it.
    output_schema: "rows: all of them"
    actions: [*plan, *query]
  - &save_operator
    instruction: Save it.
    output_schema: ""
    actions: [*save]
experts:
  - profile: {name: Query Expert, desc: Queries.}
    workflow: [[*query_operator, *save_operator]]
  - profile: {name: Reporter}
    workflow:
      - [{instruction: Report., output_schema: "", actions: [*report]}]
leader:
  actions: [*plan]
knowledgebase: {}
"""
RENAME = {"app.": "tests.compat."}


def imported(folder: Path, text: str, **options: Any) -> Imported:
    """Import this text as a file."""
    (folder / "chat2graph.yml").write_text(text)
    return import_config(folder / "chat2graph.yml", rename=RENAME, **options)


def test_a_file_becomes_a_graph(tmp_path: Path) -> None:
    """Vertices have the file's names, an action calls its tools, and each chain is its own."""
    found = imported(tmp_path, GOOD)
    assert found.problems == []
    toolkit = found.toolkit
    assert sorted(toolkit.edges()) == [
        ("plan", "SchemaGetter"),
        ("plan", "query-1"),
        ("query-1", "CypherExecutor"),
        ("query-1", "SchemaGetter"),
        ("save", "FileTool"),
        ("save", "report"),
    ]
    getter = toolkit.get_tool("SchemaGetter")
    assert getter is not None
    assert (getter.name, list(getter.parameters["properties"])) != ("SchemaGetter", [])


def test_operators_and_experts(tmp_path: Path) -> None:
    """An expert has its operators in order, and the part of the graph that they see; the leader is an operator."""
    found = imported(tmp_path, GOOD)
    assert list(found.operators) == ["Query Expert/1", "Query Expert/2", "Reporter", "Leader"]
    assert found.experts["Query Expert"].operators == ("Query Expert/1", "Query Expert/2")
    assert found.operators["Leader"].actions == ("plan",)
    assert sorted(found.toolkit_of("Query Expert").vertices()) == ["CypherExecutor", "FileTool", "SchemaGetter", "plan", "query-1", "save"]
    assert found.toolkit_of("Reporter").vertices() == ["report"]
    with pytest.raises(ToolkitError, match=r"no expert 'Nobody' \(there are: Query Expert, Reporter\)"):
        found.toolkit_of("Nobody")


def test_a_file_becomes_a_preset(tmp_path: Path) -> None:
    """The preset's tools are those of a worker, a server's are those of a registry group, and it is read back."""
    made = imported(tmp_path, GOOD).preset()
    preset = read_preset(json.dumps(made).encode())
    assert (preset.name, preset.description) == ("My-App", "Answers from a graph.")
    assert [(tool.id, tool.bus) for tool in preset.tools] == [("SchemaGetter", "get_schema"), ("CypherExecutor", "run_cypher")]
    assert [(group.id, group.group) for group in preset.groups] == [("FileTool", "FileTool")]
    assert preset.operator("Query Expert/1").instruction == "Query it.\n\nAnswer in this form:\nrows: all of them"
    assert preset.operator("Query Expert/1").actions == ("plan", "query-1")
    assert sorted(toolkit_of(preset).edges()) == sorted(imported(tmp_path, GOOD).toolkit.edges())


async def test_an_imported_file_is_served(place: Place, tmp_path: Path) -> None:
    """A module that holds the import is a worker's, with the tools' services."""
    async with place.serving(imported(tmp_path, GOOD)) as bus:
        assert sorted(bus.tools) == ["get_schema", "run_cypher"]
        assert (await bus.call("get_schema", {"label": "x"}, session="s")).output == "x in ['Person'] for s/get_schema"


async def test_a_tool_that_no_action_uses_is_served(place: Place, tmp_path: Path) -> None:
    """A tool of the file is on the bus although nothing recommends it, and in the preset."""
    found = imported(tmp_path, GOOD.replace("      - *cypher_tool\n", ""))
    assert found.problems == []
    assert [each["id"] for each in found.preset()["tools"]] == ["SchemaGetter", "CypherExecutor"]
    async with place.serving(found) as bus:
        assert sorted(bus.tools) == ["get_schema", "run_cypher"]
        assert (await bus.call("run_cypher", {"query": "MATCH"})).output == "match"


WRONG: dict[str, tuple[str, str]] = {
    "a module that is not there": (
        "tools: [{name: X, module_path: nowhere.at_all}]",
        "1: tools[0].module_path: there is no module 'nowhere",
    ),
    "a module whose name is impossible": ("tools: [{name: X, module_path: ..}]", "1: tools[0].module_path: .. can't be imported"),
    "no module": ("tools: [{name: X}]", "1: tools[0].module_path: the tool 'X' needs the module that has its class"),
    "no such class": (
        "tools: [{name: X, module_path: app.chat2graph_app}]",
        "1: tools[0].name: the module tests.compat.chat2graph_app has no",
    ),
    "a class with arguments": (
        "tools: [{name: NeedsArguments, module_path: app.chat2graph_app}]",
        "NeedsArguments can't be made: TypeError",
    ),
    "a class that exits": ("tools: [{name: Leaving, module_path: app.chat2graph_app}]", "Leaving can't be made: SystemExit"),
    "a class of no tools": ("tools: [{name: Thread, module_path: threading}]", "threading.Thread makes a Thread, which is no Tool"),
    "another type of tool": (
        "tools: [{name: X, type: PACKAGE}]",
        "1: tools[0].type: the tool 'X' has the type a text, not LOCAL_TOOL or MCP",
    ),
    "a transport that is no mapping": (
        "tools: [{name: X, type: MCP, mcp_transport_config: 3}]",
        "tools[0].mcp_transport_config: it is a mapping",
    ),
    "a tool that is a text": ("tools: [SchemaGetter]", "1: tools[0]: an entry is a mapping, not a text"),
    "a name that is a number": ("actions: [{name: 3}]", "1: actions[0].name: an entry needs a name of 1 to 256 characters, not 3"),
    "no name": ("actions:\n  - desc: d", "2: actions[0].name: an entry needs a name of 1 to 256 characters, it has none"),
    "a name twice": ("actions: [{name: good}, {name: good}]", "1: actions[1].name: the name 'good' is taken"),
    "an id twice": ("actions: [{name: good, id: b}, {name: b}]", "1: actions[1].id: the id 'b' of the action 'b' is too long or taken"),
    "a tool that is missing": (
        "actions:\n- name: good\n  tools:\n  - {name: X}",
        "4: actions[0].tools[0]: there is no usable entry 'X' among the tools",
    ),
    "tools that are no list": ("actions: [{name: good, tools: {name: X}}]", "1: actions[0].tools: it is a list, not a mapping"),
    "a chain of unknown actions": (
        "toolkit: [[{name: X}, 3]]",
        "1: toolkit[0][1]: expected an alias or a name of one of the actions, got 3",
    ),
    "an expert without a profile": ("experts: [{workflow: []}]", "1: experts[0].profile: an expert has a profile with its name"),
    "an operator without actions": (
        "experts: [{profile: {name: E}, workflow: [[{instruction: i}]]}]",
        "the operator 'E' has no action to start at",
    ),
    "an operator of no expert": (
        "operators: [{instruction: i, actions: []}]",
        "stands in no expert's workflow; it is imported as 'operator 1'",
    ),
    "a leader that is a list": ("leader: [3]", "1: leader: it is a mapping, not a list"),
    "a section that is no list": ("tools: {X: 1}", "1: tools: it is a list, not a mapping"),
    "an unknown section": ("tool: []", "1: tool: there is no section 'tool'"),
    "a file that is a list": ("- 3", "1: the file is a mapping of sections"),
    "an empty file": ("", "the file is a mapping of sections"),
    "an instruction that is a number": (
        "experts: [{profile: {name: E}, workflow: [[{instruction: 3}]]}]",
        "instruction: it is a text, not 3",
    ),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_what_is_wrong_is_told_by_entry_and_the_rest_is_imported(case: str, tmp_path: Path) -> None:
    """The line names file, line and path; the entries beside it are imported, and the result is a valid preset."""
    text, expected = WRONG[case]
    found = imported(tmp_path, text)
    assert [problem for problem in found.problems if expected in problem and "chat2graph.yml:" in problem], found.problems
    if "good" in text:
        assert found.toolkit.get_action("good") is not None or found.toolkit.get_action("b") is not None
    read_preset(json.dumps(found.preset()).encode())


def test_entries_beside_a_wrong_one_stay(tmp_path: Path) -> None:
    """Without one of its tools, the rest of the file is as before."""
    broken = GOOD.replace("name: CypherExecutor", "name: Missing")
    found = imported(tmp_path, broken)
    [problem] = found.problems
    assert "the module tests.compat.chat2graph_app has no class 'Missing'" in problem
    before = imported(tmp_path, GOOD).toolkit
    assert set(before.vertices()) - set(found.toolkit.vertices()) == {"CypherExecutor"}


def test_tools_of_one_name_and_of_other_classes(tmp_path: Path) -> None:
    """The second tool of a name is left out, since a bus has one; an object with a Tool's properties is one."""
    text = "tools:\n" + "".join(
        f"  - {{name: {name}, module_path: app.chat2graph_app}}\n" for name in ("CypherExecutor", "SameName", "Foreign")
    )
    found = imported(tmp_path, text + "actions: [{name: a, tools: [{name: Foreign}, {name: SameName}]}]\n")
    [problem] = found.problems
    assert "3: tools[1]: its tool is named 'run_cypher' like that of 'CypherExecutor'" in problem
    assert [tool.name for tool in found.toolkit._tools.values()] == ["run_cypher", "foreign"]


def test_merge_keys_and_names_instead_of_aliases(tmp_path: Path) -> None:
    """``<<: *alias`` takes an entry's other keys from the alias, and references may be names."""
    text = "actions:\n  - &a {name: a, desc: same}\n  - {<<: *a, name: b}\n  - {<<: [*a, {desc: other}], name: c}\ntoolkit: [[a, b, c]]\n"
    found = imported(tmp_path, text)
    assert found.problems == []
    assert [(action.name, action.description) for action in found.toolkit._actions.values()] == [
        ("a", "same"),
        ("b", "same"),
        ("c", "same"),
    ]
    assert found.toolkit.edges() == [("a", "b"), ("b", "c")]


HOSTILE = {
    "an alias of itself": ("a: &a [*a]", "recursion limit"),
    "aliases of aliases": (
        "a: &a [x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{c}: &{c} [{','.join(['*' + p] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "repetition limit",
    ),
    "deep nesting": ("[" * 100_000, "more than 1000 brackets are open"),
    "a key twice": ("tools: []\ntools: []", "duplicate entry"),
    "a key that is a list": ("? [1]\n: 2", "unhashable"),
    "no YAML": ("a: [", "not YAML"),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_what_is_no_yaml_is_refused_with_its_reason(case: str, tmp_path: Path) -> None:
    """Nothing of such a file is imported, and the error names the file."""
    text, expected = HOSTILE[case]
    with pytest.raises(ToolkitError, match=rf"chat2graph\.yml.*{expected}"):
        imported(tmp_path, text)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    """The error names it."""
    for path in (tmp_path, tmp_path / "nothing.yml"):
        with pytest.raises(ToolkitError, match="can't read"):
            import_config(path)


@pytest.mark.parametrize(
    ("transport", "said"),
    [
        ("{transport_type: CARRIER_PIGEON}", "transport_type is none of STDIO, SSE"),
        ("{args: npx}", "args is a str, not a list"),
        ("{command: /nowhere/at-all}", "the MCP server 'X' can't be reached"),
        ("{timeout: 3, colour: red, command: /nowhere/at-all}", "can't be reached"),
    ],
)
def test_servers_are_asked_only_on_request(transport: str, said: str, tmp_path: Path) -> None:
    """``connect`` asks each server, and one that can't be asked is left out with the reason; without it nothing is started."""
    text = f"tools: [{{name: X, type: MCP, mcp_transport_config: {transport}}}]\nactions: [{{name: a, tools: [{{name: X}}]}}]"
    assert imported(tmp_path, text).problems == []
    found = imported(tmp_path, text, connect=True)
    assert len(found.problems) == 1
    assert said in found.problems[0]
    assert found.toolkit.vertices() == ["a"]


@pytest.mark.usefixtures("slow")
def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes the preset to standard output and the problems to standard error, and exits with 1 when there are any."""
    (tmp_path / "good.yml").write_text(GOOD)
    assert main([str(tmp_path / "good.yml"), "--rename", "app.=tests.compat."]) == 0
    told = capsys.readouterr()
    assert (read_preset(told.out.encode()).name, told.err) == ("My-App", "")
    assert main([str(tmp_path / "good.yml")]) == 1
    told = capsys.readouterr()
    assert read_preset(told.out.encode()).tools == ()
    assert told.err.count("\n") == 2
    assert main([str(tmp_path / "nothing.yml")]) == 1
    with pytest.raises(SystemExit):
        main([str(tmp_path / "good.yml"), "--rename", "app."])
