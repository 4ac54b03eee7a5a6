"""registry.json, sources.json and groups.json: in the usual forms and defaults, entry by entry, and the same after a round trip."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records.made import recorded
from toolbus.bus.client.tools.tool import ToolGroup
from toolbus.bus.values.results import ConfigurationError
from toolbus.platform.documents import encode, key_of, read
from toolbus.platform.files import read_folder, write_folder
from toolbus.platform.records import BackendRuntime, Example, RecordedTool, Running, ToolMeta, ToolSource
from toolbus.platform.store import Snapshot

SOURCE = {"type": "local", "host_dir": "tools/a"}


def folder(tmp_path: Path, **files: Any) -> Path:
    """Write files; each word is a file's name without its end."""
    for name, document in files.items():
        (tmp_path / f"{name}.json").write_text(document if isinstance(document, str) else json.dumps(document))
    return tmp_path


def test_the_defaults_are_those_of_the_files(tmp_path: Path) -> None:
    """An entry with its id alone is an active tool; a source is posted to at its root."""
    found = read_folder(folder(tmp_path, registry=[{"tool_id": "a"}], sources={"a": [SOURCE]}, groups=[{"group_id": "g"}]))
    assert (found.wrong, found.ignored) == ([], [])
    tool = ToolMeta(tool_id="a")
    assert msgspec.json.decode(msgspec.json.encode(tool)) == {
        "tool_id": "a", "name": "", "description": "", "category": "", "backend_runtime": "", "group_ids": [], "input_schema": {},
        "output_schema": {}, "stream_support": False, "status": "active", "tool_slug_ids": [],
    }  # fmt: skip
    assert found.records == [
        RecordedTool(meta=tool, sources=(ToolSource(type="local", host_dir="tools/a"),), made_by="import"),
        ToolGroup("g"),
    ]
    write_folder(tmp_path / "out", snapshot(found.records))
    written = json.loads((tmp_path / "out" / "sources.json").read_text())
    assert written == {"a": [{**SOURCE, "endpoint_path": "/", "http_method": "POST", "internal_port": 0}]}


FORMS: dict[str, dict[str, Any]] = {
    "lists": {"registry": [{"tool_id": "a"}], "sources": [{"tool_id": "a", "sources": [SOURCE]}], "groups": [{"group_id": "g"}]},
    "mappings": {"registry": {"a": {}}, "sources": {"a": [SOURCE]}, "groups": {"g": {}}},
    "mappings with ids": {"registry": {"a": {"tool_id": "a"}}, "sources": {"a": SOURCE}, "groups": {"g": {"group_id": "g"}}},
    "words": {"registry": {"tools": [{"tool_id": "a"}]}, "sources": {"sources": {"a": [SOURCE]}}, "groups": {"groups": {"g": {}}}},
    "flat sources": {"registry": [{"tool_id": "a"}], "sources": [{"tool_id": "a", **SOURCE}], "groups": [{"group_id": "g"}]},
    "routes": {
        "registry": [{"tool_id": "a"}],
        "sources": {"a": {"tool_id": "a", "sources": [SOURCE], "active_source": 0, "state": "running", "pid": 5, "port": 80}},
        "groups": [{"group_id": "g"}],
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_lists_and_mappings_are_read(tmp_path: Path, form: str) -> None:
    """All forms say the same, and a file keeps its form when it is written."""
    found = read_folder(folder(tmp_path, **FORMS[form]))
    assert (found.wrong, found.ignored) == ([], [])
    assert [key_of(each) for each in found.records] == ["recorded/a", "group/g"]
    tool = found.records[0]
    assert isinstance(tool, RecordedTool)
    assert tool.sources == (ToolSource(type="local", host_dir="tools/a"),)
    before = {name: type(json.loads((tmp_path / f"{name}.json").read_text())) for name in FORMS[form]}
    write_folder(tmp_path, snapshot(found.records))
    assert {name: type(json.loads((tmp_path / f"{name}.json").read_text())) for name in FORMS[form]} == before
    assert read_folder(tmp_path).records == found.records


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "an unknown source": (
        {"sources": {"a": [{"type": "lokal"}]}},
        "a",
        "sources.json: a: Invalid enum value 'lokal', expected one of 'local', 'docker', 'remote' - at `$.sources[0].type`",
    ),
    "an unsafe path": (
        {"sources": {"a": [{"type": "local", "host_dir": "../x"}]}},
        "a",
        "a path without '..' - at `$.sources[0].host_dir`",
    ),
    "a schema": ({"registry": [{"tool_id": "a", "input_schema": {"type": "objekt"}}]}, "a", "- at `$.input_schema`"),
    "a type": ({"registry": [{"tool_id": "a", "group_ids": "g"}]}, "a", "registry.json: a: Expected `array`, got `str` - at `$.group_ids`"),
    "an id": (
        {"registry": [{"tool_id": "a/b"}], "sources": {"a/b": [SOURCE]}},
        "a/b",
        "and '-', beginning with a letter or digit - at `$.tool_id`",
    ),
    "no id": ({"registry": [{"name": "a"}], "sources": {}}, "#1", "$[0].tool_id"),
    "no object": ({"registry": {"a": 5}}, "a", "registry.json: a: Expected an object, got a number - at `$`"),
    "an id twice": ({"registry": [{"tool_id": "a"}, {"tool_id": "a"}]}, "a", "stands there 2 times"),
    "another id": ({"registry": {"a": {"tool_id": "b"}}, "sources": {}}, "a", "$.tool_id"),
    "no source": ({"sources": {}}, "a", "sources.json: a: there is no source of it; expected a list"),
    "an empty list of sources": ({"sources": {"a": []}}, "a", "$.sources"),
    "a source without a tool": ({"sources": {"a": [SOURCE], "b": [SOURCE]}}, "b", "has no tool of this id"),
    "a secret": ({"sources": {"a": [{**SOURCE, "env": {"API_KEY": "hunter2"}}]}}, "a", "$.sources[0].env.API_KEY"),
    "how it runs": (
        {"registry": [{"tool_id": "a", "x-toolbus": {"running": {"instances": 0}}}]},
        "a",
        "registry.json: a: 0 is not a number from 1 to 64 - at `$.x-toolbus.running.instances`",
    ),
    "a group's order": ({"groups": {"h": {"tool_ids": ["a"], "usage_order": ["b"]}}}, "h", "$.usage_order[0]"),
    "broken sources": ({"sources": "{"}, "", "sources.json can't be read as JSON"),
    "a file of a number": ({"groups": "5"}, "", "neither a list nor an object"),
    "a key twice": ({"groups": '{"g": {}, "g": {}}'}, "", "stands twice"),
}


@pytest.mark.parametrize("flaw", WRONG)
def test_a_wrong_entry_is_told_and_the_rest_is_read(tmp_path: Path, flaw: str) -> None:
    """With its file, its id, its field and what is expected there; secrets are not repeated."""
    files, name, reason = WRONG[flaw]
    good = {"registry": [{"tool_id": "a"}], "sources": {"a": [SOURCE]}, "groups": {"g": {}}}
    path = folder(tmp_path, **{**good, **files})
    (tmp_path / "backend_runtimes.json").write_text('{"kept": {}}')
    found = read_folder(path)
    assert [reason in f"{each.file}: {each.id}: {each.reason}" for each in found.wrong if each.id == name] == [True]
    assert BackendRuntime(backend_runtime="kept") in found.records
    assert "hunter2" not in repr(found.wrong)


def test_fields_that_nobody_reads_are_told(tmp_path: Path) -> None:
    """The entry is read without them."""
    path = folder(tmp_path, registry=[{"tool_id": "a", "autor": "me"}], sources={"a": {**SOURCE, "prot": 1}})
    found = read_folder(path)
    assert len(found.records) == 1
    assert [each.reason for each in found.ignored] == ["$.meta.autor", "$.sources[0].prot"]


def test_a_folder_without_files_is_a_mistake(tmp_path: Path) -> None:
    """It is not an empty registry."""
    with pytest.raises(ConfigurationError, match=r"none of registry\.json"):
        read_folder(tmp_path)


def test_files_are_readable_for_those_who_know_no_more_than_their_fields(tmp_path: Path) -> None:
    """Fields of toolbus's own stand in one object of an entry, and only where they say something."""
    tool = recorded("a", sources=(ToolSource(type="docker", image="x", memory="1g"),), running=Running(single=True), made_by="import")
    write_folder(tmp_path, snapshot([tool, recorded("b", made_by="import")]))
    entries, sources = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("registry", "sources"))
    assert set(entries["b"]) == set(ToolMeta.__struct_fields__)
    assert entries["a"]["x-toolbus"] == {"running": {"single": True}}
    assert sources["a"][0] == {
        "type": "docker", "host_dir": "", "endpoint_path": "/", "http_method": "POST", "internal_port": 0,
        "x-toolbus": {"image": "x", "memory": "1g"},
    }  # fmt: skip


def test_schemas_keep_the_order_of_their_keys(tmp_path: Path) -> None:
    """A tool that was imported, stored and exported has its keys as its author wrote them."""
    schema = {
        "type": "object",
        "required": ["z", "a"],
        "properties": {"z": {"type": "string", "description": "Z."}, "a": {"type": "number"}},
    }
    read_from = folder(tmp_path, registry={"a": {"input_schema": schema}}, sources={"a": [SOURCE]})
    stored = [read("recorded/a", encode(each)) for each in read_folder(read_from).records if isinstance(each, RecordedTool)]
    write_folder(tmp_path / "out", snapshot(stored))
    written = json.loads((tmp_path / "out" / "registry.json").read_text())["a"]["input_schema"]
    assert json.dumps(written) == json.dumps(schema)


@pytest.mark.parametrize("form", ["by id", "a list", "under its word"])
def test_entries_that_say_the_same_stay_as_they_stand(tmp_path: Path, form: str) -> None:
    """An export changes the entries that changed, and no other line of a file."""
    old = """{{
    "b": {{"tool_id": "b", "group_ids": ["x",
                                       "y"], "input_schema": {{"type": "object", "required": ["z", "a"]}}}},
    "a": {{"tool_id": "a", "description": {0}}}
}}
"""
    shape = {
        "by id": lambda text: text,
        "a list": lambda text: text.replace('"b": {', "{").replace('"a": {', "{").replace("{\n", "[\n").replace("}\n}\n", "}\n]\n"),
        "under its word": lambda text: '{\n    "tools": ' + text.replace("\n    ", "\n        ").replace("\n}\n", "\n    }\n}\n"),
    }[form]
    (tmp_path / "registry.json").write_text(shape(old.format('"old"')))
    (tmp_path / "sources.json").write_text(json.dumps({name: [SOURCE] for name in "ab"}))
    found = snapshot(read_folder(tmp_path).records)
    before = {name: (tmp_path / name).read_text() for name in ("registry.json",)}
    write_folder(tmp_path, found)
    assert (tmp_path / "registry.json").read_text() == before["registry.json"]
    changed = msgspec.structs.replace(found.tools["a"], meta=msgspec.structs.replace(found.tools["a"].meta, description="new"))
    found.tools["a"] = changed
    write_folder(tmp_path, found)
    lines = (tmp_path / "registry.json").read_text().splitlines()
    assert lines[: 4 if form == "under its word" else 3] == before["registry.json"].splitlines()[: 4 if form == "under its word" else 3]
    assert snapshot(read_folder(tmp_path).records) == found


def snapshot(records: Any) -> Snapshot:
    """Return records as they would be stored."""
    found = Snapshot({}, {}, {}, {})
    for each in records:
        if isinstance(each, RecordedTool):
            found.tools[each.tool_id] = each
        elif isinstance(each, ToolGroup):
            found.groups[each.group_id] = each
        else:
            found.runtimes[each.backend_runtime] = each
    return found


IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,9}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SCHEMAS = st.sampled_from([{}, {"type": "object"}, {"type": "object", "properties": {"a": {"type": "string", "default": "ü"}}}])
LOCAL = st.builds(
    ToolSource,
    type=st.just("local"),
    host_dir=IDS,
    endpoint_path=st.sampled_from(["/", "/run", "/{a}"]),
    http_method=st.sampled_from(["GET", "POST"]),
    internal_port=st.integers(0, 65_535),
    hosts=st.tuples(IDS),
    env=st.dictionaries(st.sampled_from(["A", "B_TOKEN"]), st.just("env:X")),
    ready_within=st.floats(1, 100),
)
REMOTE = st.builds(ToolSource, type=st.just("remote"), url=st.just("https://api.example/v1"), query=st.dictionaries(IDS, st.just("env:X")))
META = {"name": TEXT, "description": TEXT, "category": TEXT, "group_ids": st.tuples(IDS), "input_schema": SCHEMAS, "output_schema": SCHEMAS}
TOOLS = st.builds(
    RecordedTool,
    meta=st.builds(ToolMeta, tool_id=IDS, stream_support=st.booleans(), status=st.sampled_from(["active", "inactive"]), **META),
    sources=st.lists(LOCAL | REMOTE, min_size=1, max_size=3).map(tuple),
    running=st.builds(Running, single=st.booleans(), idle_stop=st.floats(0, 1000), effect=st.sampled_from(["", "read"])),
    revision=st.integers(1, 9),
    made_by=st.sampled_from(["", "import", "create_00000000"]),
    examples=st.lists(st.builds(Example, params=st.just({"a": 1}), output=TEXT), max_size=2).map(tuple),
)
GROUPS = st.builds(ToolGroup, group_id=IDS, name=TEXT, description=TEXT, tool_ids=st.just(("a", "b")), usage_order=st.just(("b",)))
RUNTIMES = st.builds(BackendRuntime, backend_runtime=IDS, name=TEXT, description=TEXT)


@pytest.mark.usefixtures("slow")
@given(st.lists(TOOLS | GROUPS | RUNTIMES, max_size=6))
def test_what_is_written_is_what_is_read(records: list[Any]) -> None:
    """Export then import is the identity, and so is import then export."""
    before = snapshot(records)
    with tempfile.TemporaryDirectory() as place:
        names = write_folder(Path(place), before)
        found = read_folder(Path(place))
        assert (found.wrong, found.ignored) == ([], [])
        assert snapshot(found.records) == before
        written = {name: (Path(place) / name).read_bytes() for name in names}
        write_folder(Path(place), snapshot(found.records))
        assert {name: (Path(place) / name).read_bytes() for name in names} == written


def test_a_group_has_no_id_that_leads_elsewhere(tmp_path: Path) -> None:
    """The ids of folders, and names of tools that none can have, are left out with the field."""
    groups = [{"group_id": "."}, {"group_id": ".."}, {"group_id": "a", "tool_ids": ["../x"]}, {"group_id": "b.c", "tool_ids": ["x"]}]
    found = read_folder(folder(tmp_path, groups=groups))
    assert found.records == [ToolGroup("b.c", tool_ids=("x",))]
    assert [(each.id, each.reason.rpartition(" at ")[2]) for each in found.wrong] == [
        (".", "`$.group_id`"), ("..", "`$.group_id`"), ("a", "`$.tool_ids[0]`"),
    ]  # fmt: skip


def test_a_file_that_is_null_or_no_file_is_told(tmp_path: Path) -> None:
    """A pipe is not waited for, and null is not taken for a file that is missing."""
    os.mkfifo(tmp_path / "groups.json")
    (tmp_path / "sources.json").mkdir()
    found = read_folder(folder(tmp_path, registry=None))
    told = {each.file: each.reason for each in found.wrong}
    assert "is null, and expected is a list" in told["registry.json"]
    assert "is no regular file" in told["groups.json"]
    assert "directory" in told["sources.json"]
