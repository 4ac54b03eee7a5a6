"""One bad descriptor: its siblings stay usable, it is listed with its reason, and a worker never publishes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from tests.cli.shell import Shell
from toolbus import ToolBus, tool
from toolbus.bus.broker.registry.publications import read_record
from toolbus.bus.broker.server.keys import Keys
from toolbus.bus.values.descriptors import ToolDescriptor
from toolbus.bus.values.results import DescriptorError
from toolbus.bus.worker.worker import Worker

# Of no field's type.
WRONG = [[1]]
# Of the right type, and impossible.
IMPOSSIBLE = {
    "name": "a b",
    "service": "a b",
    "effect": "onec",
    "timeout": -1,
    "output_limit": -1,
    "parameters": {"type": "string"},
}
# What no parser takes, with a word of the reason: JSON by its grammar, or not quite.
UNREADABLE = {
    "half a surrogate pair": (rb'"description":"\ud800"', "surrogate"),
    "brackets in a text of that sort": (rb'"description":"\ud800 \"}],{[ "', "surrogate"),
    "deep nesting": (b'"parameters":{"type":"object","a":' + b"[" * 1_200 + b"]" * 1_200 + b"}", "recursion"),
    "very deep nesting": (b'"parameters":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "recursion"),
    "a raw tab": (b'"description":"a\tb"', "malformed"),
    "no UTF-8": (b'"description":"\xff"', "utf-8"),
    "no JSON value": (b'"description":none', "malformed"),
}


@tool(service="bad-siblings", effect="read")
def good() -> str:
    """Stay usable."""
    return "fine"


@tool(service="bad-siblings", effect="read")
def victim() -> str:
    """Be published with a bad field."""
    return "never"


def published(url: str, namespace: str) -> bytes:
    """Return the registry's record of the service."""
    with redis.Redis.from_url(url) as server:
        record = server.hget(Keys(namespace).services, "bad-siblings")
    assert isinstance(record, bytes)
    return record


def spoil(url: str, namespace: str, record: bytes, field: str, value: Any) -> None:
    """Publish the service as a worker of another make might: one field of one tool is wrong."""
    publication = json.loads(record[1:])
    for each in publication["tools"]:
        if each["name"] == "victim":
            each[field] = value
    with redis.Redis.from_url(url) as server:
        server.hset(Keys(namespace).services, "bad-siblings", record[:1] + json.dumps(publication).encode())


@pytest.mark.anyio
@pytest.mark.parametrize("field", ToolDescriptor.__struct_fields__)
async def test_a_bad_field_hides_one_tool(url: str, namespace: str, field: str) -> None:
    """With any invalid field in a tool, its siblings can be called as before, and the tool is listed with the field."""
    async with Worker([good, victim], url=url, namespace=namespace):
        record = published(url, namespace)
        for value in [WRONG, *([IMPOSSIBLE[field]] if field in IMPOSSIBLE else [])]:
            spoil(url, namespace, record, field, value)
            async with ToolBus(url, namespace=namespace) as bus:
                assert (await bus.call("good")).output == "fine"
                assert list(bus.tools) == ["good"]
                [refused] = bus.refused
                assert refused.service == "bad-siblings"
                assert field in refused.reason
                if isinstance(value, str) or field != "name":
                    answer = await bus.call(refused.name)
                    assert answer.error is not None
                    assert (answer.error.type, refused.reason in answer.error.message) == ("not_found", True)


@pytest.mark.anyio
@pytest.mark.parametrize("flaw", UNREADABLE)
async def test_a_tool_no_parser_takes_hides_no_other(url: str, namespace: str, flaw: str) -> None:
    """A tool that makes the parser give the whole publication up is listed with its name and reason; its siblings are called."""
    member, reason = UNREADABLE[flaw]
    async with Worker([good, victim], url=url, namespace=namespace):
        spoil(url, namespace, published(url, namespace), "description", "spoilt")
        record = published(url, namespace)
        assert record.count(b'"description": "spoilt"') == 1
        with redis.Redis.from_url(url) as server:
            server.hset(Keys(namespace).services, "bad-siblings", record.replace(b'"description": "spoilt"', member))
        async with ToolBus(url, namespace=namespace) as bus:
            assert (await bus.call("good")).output == "fine"
            assert list(bus.tools) == ["good"]
            [refused] = bus.refused
            assert (refused.name, refused.service) == ("victim", "bad-siblings")
            assert reason in refused.reason.lower()


SURE = b'{"name":"a","description":"d","service":"s"}'


@pytest.mark.parametrize(
    ("document", "tools", "refused"),
    [
        (rb'{"tools":[%b,{"name":"\ud800"},%b],"service":{"id":"s"},"owner":"o"}', ["a", "a"], ["tool #2"]),
        (rb'{"service":{"id":"s"},"tools":["\ud800",%b,5,%b , ]}', ["a", "a"], ["tool #1", "tool #3", "tool #5"]),
        (rb'{"service":{"id":"s"},"tools":"\ud800 %b %b"}', [], ["all tools"]),
        (rb'{"service":{"id":"s"},"tools":{"a":"\ud800","b":%b,"c":%b}}', [], ["all tools"]),
    ],
)
def test_tools_are_told_apart_by_brackets_and_quotes(document: bytes, tools: list[str], refused: list[str]) -> None:
    """Each tool is read or refused by itself, by its place where it has no name; what is no list is refused as a whole."""
    record = read_record(b"+" + document % (SURE, SURE))
    assert [each.name for each in record.publication.tools] == tools
    assert [each.name for each in record.refused] == refused


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"}",
        b"[]",
        rb'{"service":{"id":"\ud800"},"tools":[]}',
        rb'{"service":{"id":"s"},"tools":["\ud800"',
        rb'{"service":{"id":"s"},"tools":["\ud800"]}]',
        rb'{"service":{"id":"s"},"tools":["\ud800"]} x',
        rb'{"service":{"id":"s"},"tools":["\ud800]}',
        b'{"service":{"id":"s"},"tools":["' + rb"\"" * 500_000,
        rb'{"service":{"id":"s"},"tools":["\ud800",' + b"[" * 3_000_000 + b"]" * 3_000_000 + b"]}",
    ],
    ids=range(11),
)
def test_a_service_that_cannot_be_told_apart_is_refused(document: bytes) -> None:
    """Without a service, with brackets that don't fit, or too long: refused with a reason, and nothing else is raised."""
    with pytest.raises(DescriptorError, match=r"\w"):
        read_record(b"+" + document)


def test_commands_list_a_bad_tool_and_its_reason(shell: Shell, url: str, namespace: str) -> None:
    """``tools`` lists the siblings and names the bad one, ``tools --all`` and ``doctor`` say why, and doctor fails."""
    (shell.folder / "pair.py").write_text(
        "from toolbus import tool\n"
        '@tool(service="bad-siblings", effect="read")\ndef good() -> str:\n    """Stay."""\n    return "fine"\n'
        '@tool(service="bad-siblings", effect="read")\ndef victim() -> str:\n    """Go."""\n    return ""\n'
    )
    worker = shell.start("worker", "pair.py")
    assert worker.stderr is not None
    while "good" not in shell.run("tools").stdout:
        assert worker.poll() is None
    spoil(url, namespace, published(url, namespace), "effect", "onec")
    shown = shell.run("tools")
    assert "good" in shown.stdout
    assert "victim" not in shown.stdout
    assert "victim of bad-siblings" in shown.stderr
    assert "onec" in shell.run("tools", "--all").stdout
    assert [each["name"] for each in shell.json("tools", "--all")] == ["good", "victim"]
    doctor = shell.run("doctor", "--output", "json")
    assert doctor.returncode == 1
    [finding] = [each for each in json.loads(doctor.stdout) if each["state"] == "fail"]
    assert "victim of bad-siblings" in finding["found"]
    assert "onec" in finding["found"]
    assert shell.run("call", "good").stdout.strip() == "fine"


def test_doctor_names_services_and_static_descriptors_that_cannot_be_used(shell: Shell, url: str, namespace: str) -> None:
    """A service that can't be read, an operator's bad descriptor and an impossible schema are failures with their reason."""
    with redis.Redis.from_url(url) as server:
        keys = Keys(namespace)
        tools = [{"name": "odd", "description": "d", "service": "s", "parameters": {"type": "object", "required": "a"}}]
        server.hset(keys.services, "s", b"-" + json.dumps({"service": {"id": "s"}, "tools": tools}).encode())
        server.hset(keys.services, "broken", b"-{")
        server.hset(
            keys.items,
            "tool/static",
            json.dumps({"type": "tool-service", "name": "static", "description": "d", "service": "s", "effect": "onec"}),
        )
    try:
        doctor = shell.run("doctor", "--output", "json")
        found = " ".join(each["found"] for each in json.loads(doctor.stdout) if each["state"] == "fail")
    finally:
        with redis.Redis.from_url(url) as server:
            server.delete(keys.services, keys.items)
    assert doctor.returncode == 1
    for word in ("all tools of broken", "static of s", "onec", "odd of s", "required"):
        assert word in found


def test_a_worker_refuses_an_unknown_effect_in_one_line(shell: Shell) -> None:
    """The command says which tool, which words there are and the nearest one, without a traceback."""
    (shell.folder / "slip.py").write_text('from toolbus import tool\n@tool(effect="onec")\ndef pay() -> str:\n    return ""\n')
    (shell.folder / "whole.py").write_text(
        "from toolbus import ToolService\nclass Bank(ToolService):\n    id = 'bank'\n    effect = 'Read'\n"
        "    tools = [{'name': 'pay', 'description': 'd'}]\n    async def invoke(self, user, config, arguments):\n        return ''\n"
    )
    for file, words in (
        ("slip.py", ("'pay'", "'onec'", "did you mean 'once'?")),
        ("whole.py", ("'bank'", "'Read'", "did you mean 'read'?")),
    ):
        done = shell.run("worker", file)
        assert done.returncode == 1
        assert len(done.stderr.strip().splitlines()) == 1
        assert all(word in done.stderr for word in (*words, "'read', 'idempotent', 'once'"))


def test_put_refuses_an_unknown_effect(shell: Shell) -> None:
    """A static descriptor with a misspelt effect is not stored, and the words are named."""
    document = {"type": "tool-service", "name": "a", "description": "d", "service": "s", "effect": "idempotant"}
    done = shell.run("operate", "items", "put", "tool/a", given=json.dumps(document))
    assert done.returncode == 1
    assert "did you mean 'idempotent'?" in done.stderr
    assert shell.json("operate", "items", "list") == []
