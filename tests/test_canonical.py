"""Canonical JSON and digests: the same bytes as JavaScript makes, and the same calls across releases."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from toolbus.bus.values import pins
from toolbus.bus.values.canonical import canonical, digest, digests, own_digest
from toolbus.bus.values.confirmations import digest_of, digests_of
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.envelope import Request, work_digest

ROOT = Path(__file__).parents[1]
NODE = shutil.which("node")
_PROGRAM = f"""
import {{ canonical, digest }} from {json.dumps((ROOT / "examples/node/digests.mjs").as_uri())}
import {{ createInterface }} from 'node:readline'
createInterface({{ input: process.stdin }}).on('line', line => {{
  const value = JSON.parse(line)
  console.log(JSON.stringify([canonical(value), digest(value), digest(value, 32)]))
}})
"""

InNode = Callable[[Any], list[str]]


@pytest.fixture(scope="module")
def in_node() -> Iterator[InNode]:
    """Return what examples/node/digests.mjs makes of a value: canonical JSON, and its digests of 16 and 32 bytes."""
    if NODE is None:
        pytest.skip("there is no Node.js on this machine: canonical JSON was not compared with JavaScript's")
    words = [NODE, "--input-type=module", "-e", _PROGRAM]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8") as node:
        assert node.stdin is not None
        assert node.stdout is not None
        asked, answers = node.stdin, node.stdout

        def ask(value: Any) -> list[str]:
            # As Python writes it: this test is not about how toolbus writes its messages.
            asked.write(json.dumps(value) + "\n")
            asked.flush()
            found: list[str] = json.loads(answers.readline())
            return found

        yield ask
        asked.close()


FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.builds(
    lambda digits, power: float(f"{digits}e{power}"), st.integers(-(10**17), 10**17), st.integers(-40, 25)
)
# Integers beyond 2^53 are no numbers of JavaScript.
NUMBERS = st.integers(-(2**53), 2**53) | FLOATS
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["\U0001f600", "\ufb33", "\ue000", "1.0", "1e5"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(FLOATS, max_size=40))
@example([0.0, -0.0, 5e-324, 1.7976931348623157e308, 1e21, 1e20, 1e-6, 1e-7, 1.5e-6, 2.0**53, 2.0**53 + 2, 2.0**60, 0.1 + 0.2])
def test_numbers_are_written_as_in_javascript(in_node: InNode, numbers: list[float]) -> None:
    """The digits and the exponent of each number are those of JSON.stringify."""
    assert canonical(numbers).decode() == in_node(numbers)[0]


@given(VALUES)
@example({"\U0001f600": 1, "\ufb33": 2, "\u20ac": 3, "\r": 4, "1": 5, "": 6})
@example([[], {}, [[{}]], '\u0000\u001f\u007f\u2028/"\\<a&b>\b\f\n\r\t', {"a": {"c": 1.0, "b": [-0.0]}}])
def test_values_are_written_and_digested_as_in_javascript(in_node: InNode, value: Any) -> None:
    """Keys, texts, numbers and both sizes of digests are those of the example in Node.js."""
    assert [canonical(value).decode(), digest(value), digest(value, 32)] == in_node(value)


@given(VALUES)
def test_a_value_that_was_sent_has_the_same_digest(value: Any) -> None:
    """The canonical form of what was read from it is the same again, and it stands for the same value."""
    made = canonical(value)
    assert canonical(json.loads(made)) == made
    assert json.loads(made, parse_int=float) == value


def test_integers_keep_their_digits() -> None:
    """Two integers beyond 2^53 are not the same one, and one that JavaScript has read and written is that one."""
    assert canonical([2**53 + 1, -(2**64), 10**30]) == b"[9007199254740993,-18446744073709551616,1000000000000000000000000000000]"
    assert canonical(1152921504606847000) == canonical(float(2**60)) == b"1152921504606847000"


def test_what_json_can_not_express_has_no_digest() -> None:
    """Half of a surrogate pair, in a text or a key, is refused as it is when it is sent."""
    for value in ("\ud800", {"\udfff": 1}):
        with pytest.raises(UnicodeEncodeError):
            digest(value)


def test_a_deep_value_has_a_digest() -> None:
    """Values may be nested more deeply than functions can call themselves."""
    value: Any = 1.0
    for _ in range(900):
        value = [value]
    assert canonical(value) == b"[" * 900 + b"1" + b"]" * 900


def of_work(arguments: dict[str, Any]) -> list[str]:
    """Return the digests of a call, which share.lua is given."""
    return work_digest(Request(id="c", agent="a", service="s", tool="t", arguments=arguments)).split(" ")


def formerly(value: Any, size: int) -> str:
    """Return the digest that earlier releases made of a value: msgspec's JSON with sorted keys."""
    return own_digest(value, size)


@pytest.mark.parametrize(
    ("python", "other"),
    [({"delay": 0.0}, {"delay": 0}), ({"n": 1e16}, {"n": 10**16}), ({1: "a", 2: "b"}, {"2": "b", "1": "a"}), ({"text": "a&b"},) * 2],
)
def test_equal_arguments_of_two_languages_are_one_call(python: dict[str, Any], other: dict[str, Any]) -> None:
    """The same number as a float and as an integer, and keys in any order, are the same work and the same confirmed action."""
    assert of_work(python)[0] == of_work(other)[0]
    assert digest_of("agent", "s", "t", "", "", "", python) == digest_of("agent", "s", "t", "", "", "", other)


@pytest.mark.parametrize(("arguments", "count"), [({"delay": 0.0}, 2), ({"\U0001f600": 1, "\ufb33": 2}, 2), ({"delay": 0.5, "n": 3}, 1)])
def test_the_digest_of_earlier_releases_is_known(arguments: dict[str, Any], count: int) -> None:
    """It follows the new one where it is another, so that processes of both releases meet."""
    former = formerly(("s", "t", {}, arguments, ""), 16)
    assert (len(of_work(arguments)), of_work(arguments)[-1]) == (count, former)
    action = ("agent", "s", "t", "u", "", "", arguments)
    assert digests_of(*action)[-1] == formerly(action, 32)
    assert len(digests(arguments)) == count


def test_a_pin_of_an_earlier_release_approves_the_tool() -> None:
    """Its digest counts when it has no canonical one; with one, that alone counts."""
    tool = ToolDescriptor(name="t", description="d", service="s", parameters={"properties": {"delay": {"default": 0.0}}})
    pin = pins.approved(tool)
    assert (pin.digest, pin.canonical) == (pins.digest_of(tool), digest(json.loads(msgspec.json.encode(tool)), 32))
    assert pins.approves(pin, msgspec.structs.replace(tool, timeout=5.0, output_limit=9))
    changed = msgspec.structs.replace(tool, description="e")
    for each, is_approved in (
        (pin, True),
        (pins.Pin("approved", pin.digest), True),
        (pins.Pin("approved", canonical=pin.canonical), True),
        (pins.Pin("approved", pin.digest, "0" * 64), False),
        (pins.Pin("rejected", pin.digest, pin.canonical), False),
        (pins.Pin("approved"), False),
    ):
        assert pins.approves(each, tool) is is_approved
        assert not pins.approves(each, changed)


# Files where a function makes JSON and a digest beside toolbus/bus/values/canonical.py, and why.
_OWN_JSON = {
    "toolbus/middleware/cache.py": "its answers stay in the process",
    "toolbus/edges/mcp/sessions.py": "its gateways alone compare lists of tools",
    "toolbus/toolkit/learning/revisions.py": "it digests the bytes of files",
}


def test_json_is_digested_in_one_place() -> None:
    """No function makes JSON and a digest of its own, but where nothing else compares it."""
    found = set[str]()
    for path in sorted(ROOT.glob("toolbus/**/*.py")):
        source = path.read_text("utf-8")
        for function in ast.walk(ast.parse(source)) if "hashlib" in source else ():
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                calls = {ast.unparse(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)}
                makes = any(call.startswith("hashlib.") for call in calls)
                if makes and any(call.endswith(("json.encode", "json.dumps", "encode_json", "_encoder.encode")) for call in calls):
                    found.add(str(path.relative_to(ROOT)))
    assert found == _OWN_JSON.keys()


def test_digests_are_as_written_on_the_page() -> None:
    """A digest is BLAKE2b over the bytes, with its size as a parameter."""
    assert digest(["alice", "s1"]) == hashlib.blake2b(b'["alice","s1"]', digest_size=16).hexdigest()
