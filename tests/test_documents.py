"""JSON that people write: wherever they give it, a key that stands twice is refused, since one of its values would be lost."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import toolbus.operations.cli
from tests.cli.shell import Shell
from tests.forking import ForkServer
from toolbus.bus.schema.documents import read_document
from toolbus.bus.values.results import ConfigurationError, ToolkitError
from toolbus.toolkit.learning.evidence import load_scores
from toolbus.toolkit.presets import read_preset

TWICE = '{"name": "a", "inner": [{"key": 1, "key": 2}]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TWICE, 'the key "key" stands twice'),
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("{", "truncated"),
        ('{"a": 1', "truncated"),
        (b"\xff", "malformed"),
        (b'{"a": "\xff"}', "UTF-8"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "Expected `object`"),
        ("\udcff", "UTF-8"),
    ],
)
def test_a_wrong_document_is_told(text: str | bytes, message: str) -> None:
    """Every flaw of it is one kind of error."""
    kind = object if message == "nested too deeply" else dict
    with pytest.raises(ValueError, match=message):
        read_document(text, kind)


def test_a_right_document_is_read() -> None:
    """With numbers of any length that JSON has, and with the mark that some editors write first."""
    text = json.dumps({"a": [1.5e300, -(2**63), {"a": None}], "b": {"a": "ä"}})
    assert read_document(text, dict) == json.loads(text)
    assert read_document(b"\xef\xbb\xbf" + text.encode(), dict) == json.loads(text)


@pytest.mark.usefixtures("slow")
def test_presets_and_scores_are_such_documents(tmp_path: Path) -> None:
    """As YAML, too."""
    for text in (TWICE, "name: a\nname: b\n", "name: {a: 1, a: 2}"):
        with pytest.raises(ToolkitError, match=r"twice|duplicate"):
            read_preset(text.encode())
    file = tmp_path / "scores.json"
    file.write_text('{"edges": [], "texts": {"a": "x", "a": "y"}}')
    with pytest.raises(ConfigurationError, match="stands twice"):
        load_scores(file)


@pytest.mark.parametrize(
    "words",
    [
        ("operate", "items", "put", "tool/x"),
        ("operate", "items", "put", "tool-service/x"),
        ("call", "x", "--json", "-"),
        ("call", "x", "--json", TWICE),
        ("call", "x", f"a:={TWICE}"),
        ("call", "x", "a=1", "a=2"),
        ("call", "x", "a=1", "a:=2"),
        ("toolkit", "load", "twice.json"),
        ("toolkit", "show", "--file", "twice.json"),
        ("toolkit", "learning", "learn", "--scores", "twice.json", "--log", "log.jsonl"),
        ("toolkit", "learning", "evaluate", "--scores", "twice.json", "--log", "log.jsonl"),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_every_command_that_reads_one_refuses_it(forks: ForkServer, tmp_path: Path, server: str, words: tuple[str, ...]) -> None:
    """As a file, from standard input, and as an argument; nothing is asked of the server before."""
    (tmp_path / "twice.json").write_text(TWICE)
    (tmp_path / "log.jsonl").touch()
    done = Shell(forks, tmp_path, server, "documents").run(*words, given=TWICE)
    assert done.returncode in {1, 2}
    assert "twice" in done.stderr


def test_commands_read_json_in_one_place() -> None:
    """No command decodes what a person gave by itself."""
    for path in Path(toolbus.operations.cli.__file__).parent.glob("*.py"):
        called = {ast.unparse(each.func) for each in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(each, ast.Call)}
        wrong = called & {"msgspec.json.decode", "json.loads", "json.load", "sys.stdin.read", "sys.stdin.buffer.read"}
        # The records of conversations come from the server.
        assert not wrong or path.name in {"common.py", "operate.py"}, f"{path.name}: {wrong}"
