"""Everything in a registry that agents can't use: where it is listed, and what ``put`` refuses."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import redis

from tests.cli.shell import Shell
from tests.tiers import some
from toolbus.bus.broker.server.keys import Keys

RHYMES = """
from toolbus import ToolService

class Rhymes(ToolService):
    id = "rhymes"
    config_params = ["style", {"name": "length", "required": True}]
    effect = "read"
    tools = [{"name": "limerick", "description": "Tell one", "style": "limerick", "length": 5}]

    async def invoke(self, user, config, arguments):
        yield config["style"]
"""

GOOD = {"type": "tool-service", "name": "haiku", "description": "Tell one", "service": "rhymes", "style": "haiku", "length": 3}
OTHER = {"id": "others", "config-params": []}

Flaw = Callable[["redis.Redis", Keys], object]


def service(name: str, tools: list[dict[str, object]], described: str = "") -> Flaw:
    """Return a flaw: this publication stands at a name."""
    document = json.dumps({"service": {"id": described or name}, "tools": tools, "owner": "o", "digest": "d"})
    return lambda server, keys: server.hset(keys.services, name, f"+{document}")


def item(key: str | bytes, document: dict[str, object] | bytes) -> Flaw:
    """Return a flaw: this static document stands at a key."""
    value = document if isinstance(document, bytes) else json.dumps(document).encode()
    return lambda server, keys: server.hset(keys.items, key, value)


# Each with words that tell where it is, and words of the reason.
FLAWS: dict[str, tuple[Flaw, str, str]] = {
    "a service of junk": (lambda server, keys: server.hset(keys.services, "junk", b"+\xff{"), "junk", "malformed"),
    "a service under another's name": (service("mask", [], described="face"), "mask", "'face'"),
    "a service whose name is no text": (lambda server, keys: server.hset(keys.services, b"\xff\xfe", b"+{}"), "\\xff", "UTF-8"),
    "a tool with a bad field": (service("bad", [{"name": "bad-field", "description": 5, "service": "bad"}]), "bad-field", "description"),
    "a tool with an impossible schema": (
        service("odd", [{"name": "odd-one", "description": "d", "service": "odd", "parameters": {"properties": 5}}]),
        "odd-one",
        "properties",
    ),
    "a tool of a taken name": (
        service("twin", [{"name": "limerick", "description": "d", "service": "twin"}]),
        "twin",
        "has a tool of this name",
    ),
    "an item of junk": (item("tool/junk", b"{"), "junk", "truncated"),
    "a static service of junk": (item("tool-service/junk", b"[]"), "junk", "not list"),
    "an item of another kind": (item("other/junk", {}), "junk", "its key is none of tool/NAME"),
    "a tool of junk": (item("tool/junk", b"5"), "junk", "not int"),
    "a tool under another's name": (item("tool/sonnet", GOOD), "sonnet", "names 'haiku'"),
    "an item whose key is no text": (item(b"tool/\xff", {}), "\\xff", "UTF-8"),
    "an undeclared param": (item("tool/haiku", {**GOOD, "colour": "red"}), "haiku", "undeclared key 'colour'"),
    "a missing param": (item("tool/haiku", {key: GOOD[key] for key in GOOD if key != "length"}), "haiku", "'length'"),
}


@pytest.fixture
def served(shell: Shell) -> Shell:
    """Provide a shell and a running worker whose service has config params."""
    (shell.folder / "rhymes.py").write_text(RHYMES)
    shell.start("worker", "rhymes.py")
    assert shell.run("call", "limerick", "--wait", "20").stdout == "limerick\n"
    return shell


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("flaw", some(["a service of junk", "a tool of a taken name", "an item of another kind", "a missing param"], FLAWS))
def test_what_agents_cannot_use_is_listed_with_its_reason(served: Shell, url: str, namespace: str, flaw: str) -> None:
    """``tools --all``, ``see services`` and ``doctor`` each name the place and the reason, as text and as JSON; the rest stays."""
    spoil, place, why = FLAWS[flaw]
    with redis.Redis.from_url(url) as server:
        spoil(server, Keys(namespace))
    listed = {command: served.run(*command.split()) for command in ("tools --all", "see services", "doctor")}
    for command, done in listed.items():
        text = done.stdout + done.stderr
        assert place in text, (command, text)
        assert why in text, (command, text)
    assert "limerick" in listed["tools --all"].stdout
    refused = [tool for tool in served.json("tools", "--all") if "refused" in tool]
    assert [why in tool["refused"] for tool in refused] == [True]
    reasons = [tool["reason"] for each in served.json("see", "services") for tool in each["refused"]]
    assert [why in reason for reason in reasons] == [True]
    assert "1 cannot be used" in served.run("tools").stderr


@pytest.mark.parametrize("flaw", ["an undeclared param", "a missing param"])
def test_put_refuses_what_is_known_to_be_wrong(served: Shell, flaw: str) -> None:
    """A descriptor that its service can't serve is not stored; the same without the flaw is, and can be called at once."""
    wrong = {"an undeclared param": {**GOOD, "colour": "red"}, "a missing param": {key: GOOD[key] for key in GOOD if key != "length"}}[flaw]
    done = served.run("operate", "items", "put", "tool/haiku", given=json.dumps(wrong))
    assert (done.returncode, done.stdout) == (1, "")
    assert "not stored" in done.stderr
    assert FLAWS[flaw][2] in done.stderr
    assert served.json("operate", "items", "list") == []
    assert served.run("operate", "items", "put", "tool/haiku", given=json.dumps(GOOD)).returncode == 0
    assert served.run("call", "haiku").stdout == "haiku\n"


def test_put_says_what_it_makes_unusable_and_what_nobody_serves(served: Shell) -> None:
    """A service that comes to need another param names the stored tools that lack it, which are listed from then on."""
    assert served.run("operate", "items", "put", "tool-service/alias", given='{"request-queue": "rhymes"}').stderr == ""
    tool = {"type": "tool-service", "name": "ode", "description": "Tell one", "service": "alias"}
    assert served.run("operate", "items", "put", "tool/ode", given=json.dumps(tool)).stderr == ""
    changed = served.run(
        "operate",
        "items",
        "put",
        "tool-service/alias",
        given='{"request-queue": "rhymes", "config-params": [{"name": "a", "required": true}]}',
    )
    assert changed.returncode == 0
    assert "ode of alias can't be used any more" in changed.stderr
    assert "lacks the required config param 'a'" in served.run("see", "describe", "ode").stderr
    assert [each["name"] for each in served.json("see", "describe", "alias")["refused"]] == ["ode"]
    early = served.run("operate", "items", "put", "tool/early", given=json.dumps({**tool, "name": "early", "service": "nobody"}))
    assert (early.returncode, "no service 'nobody' is known yet" in early.stderr) == (0, True)


def test_describe_says_what_is_known_of_a_static_service(served: Shell) -> None:
    """A static service that a worker serves is described with who serves it, and so are the tools that operators add."""
    served.run("operate", "items", "put", "tool-service/alias", given='{"request-queue": "rhymes", "description": "Rhymes for us"}')
    served.run(
        "operate",
        "items",
        "put",
        "tool/ode",
        given='{"type": "tool-service", "name": "ode", "description": "Tell one", "service": "alias"}',
    )
    found = served.json("see", "describe", "alias")
    assert (found["id"], found["available"], found["served_by"]) == ("alias", True, "rhymes")
    assert found["static"]["description"] == "Rhymes for us"
    assert found["static_tools"] == ["ode"]
    assert served.json("see", "describe", "ode")["served_by"] == "rhymes"
    assert served.json("see", "describe", "rhymes")["publication"]["service"]["id"] == "rhymes"
    assert "did you mean alias" in served.run("see", "describe", "alais").stderr
