"""TrustGraph's two eras: with a user in every signature, as before April 2026, and without; its filters; programs with one topic."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.contract import Place
from toolbus.bus.values.descriptors import parse_service, parse_tool, tool_document
from toolbus.bus.values.results import ConfigurationError, DescriptorError
from toolbus.compat.trustgraph import DynamicToolService, ToolServiceClient, ToolServiceRequest, ToolServiceResponse, messages
from toolbus.compat.trustgraph.agent.tool_filter import filter_tools_by_group_and_state, get_next_state, validate_tool_config

pytestmark = pytest.mark.anyio

REQUEST = "non-persistent://tg/request/{}"


class Before(DynamicToolService):
    async def invoke(self, user, config, arguments):
        return f"before: {user} {config} {arguments}"


class Since(DynamicToolService):
    async def invoke(self, config, arguments):
        return f"since: {config} {arguments}"


class Streaming(DynamicToolService):
    async def invoke(self, config, arguments):
        for word in arguments["words"]:
            yield word


# -- signatures ---------------------------------------------------------------------------------------


def _named_user(user, config, arguments=None): ...
def _named_config(config, arguments, retries=3): ...
def _three(a, b, c): ...
def _two(a, b): ...
def _all(*args): ...
def _keywords(config, arguments, **more): ...
def _defaults(config=None, arguments=None): ...


@pytest.mark.parametrize(
    ("function", "user"),
    [(_named_user, True), (_named_config, False), (_three, True), (_two, False), (_all, True), (_keywords, False), (_defaults, False)],
)
def test_the_form_of_invoke(function: Callable[..., Any], user: bool) -> None:
    """The first parameter's name tells the form, else the number of parameters; a method's own object does not count."""
    assert messages.takes_user(function) is user
    made = type("Made", (), {"invoke": lambda self, *args: None})
    assert messages.takes_user(made().invoke) is True


def _none(): ...
def _one(config): ...
def _four(user, config, arguments, more): ...
def _named_only(config, arguments, *, user): ...


@pytest.mark.parametrize("function", [_none, _one, _four, _named_only])
def test_an_invoke_that_fits_no_form_is_refused_before_any_call(function: Callable[..., Any]) -> None:
    """The error shows the signature and both forms, when the service is made ready for a worker."""
    service = DynamicToolService(topic="t")
    service.invoke = function  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=r"invoke\(.*\) can't be called: it takes \(config, arguments\) or \(user, config"):
        service.as_service()


async def test_the_base_class_has_no_invoke() -> None:
    """Both forms of the base's invoke raise NotImplementedError, also without __init__, and a request is answered with an error."""
    for base in (DynamicToolService(), DynamicToolService.__new__(DynamicToolService)):
        for given in (({}, {}), ("al", {}, {})):
            with pytest.raises(NotImplementedError):
                await base.invoke(*given)


@pytest.mark.parametrize("producer", ["producer", "_producer_handle"])
async def test_a_service_is_tested_without_init_in_either_era(producer: str) -> None:
    """A bare object whose invoke and producer are set answers a message; the producer has a name in each era."""
    sent: list[ToolServiceResponse] = []

    async def send(response: ToolServiceResponse, properties: dict[str, str]) -> None:
        sent.append(response)

    async def before(user: str, config: dict[str, Any], arguments: dict[str, Any]) -> str:
        return f"{user} {config}"

    async def since(config: dict[str, Any], arguments: dict[str, Any]) -> str:
        return f"{config}"

    async def failing(config: dict[str, Any], arguments: dict[str, Any]) -> str:
        raise ValueError("no")

    bare = DynamicToolService.__new__(DynamicToolService)
    setattr(bare, producer, SimpleNamespace(send=send))
    message = SimpleNamespace(value=lambda: ToolServiceRequest(config='{"a": 1}'), properties=lambda: {"id": "1"})
    for invoke in (before, since, failing):
        bare.invoke = invoke  # type: ignore[method-assign]
        await bare.on_request(message, None, None)  # type: ignore[arg-type]
    assert [each.response for each in sent] == ["trustgraph {'a': 1}", "{'a': 1}", ""]
    assert sent[-1].error is not None
    assert sent[-1].error.message == "no"


def test_requests_of_both_eras() -> None:
    """Fields are given by name, or in order with or without the user; nothing is given twice."""
    expected = ToolServiceRequest(user="", config="{}", arguments='{"a": 1}')
    assert ToolServiceRequest("{}", '{"a": 1}') == ToolServiceRequest("", "{}", '{"a": 1}') == expected
    assert ToolServiceRequest("al", "{}", arguments="{}") == ToolServiceRequest(user="al", config="{}", arguments="{}")
    wrong: list[tuple[tuple[str, ...], dict[str, str]]] = [(("{}", "{}", "{}"), {}), (("{}",), {"config": "{}"}), ((), {"users": "al"})]
    for values, named in wrong:
        with pytest.raises(TypeError, match="request"):
            ToolServiceRequest(*values, **named)


C, A = {"style": "pun"}, {"topic": "cats"}


@pytest.mark.parametrize(
    ("values", "named", "user", "timeout"),
    [
        (("al", C, A), {}, "al", 600),
        (("al", C, A, 5), {}, "al", 5),
        (("al", C), {"arguments": A}, "al", 600),
        (("al",), {"config": C, "arguments": A}, "al", 600),
        ((), {"user": "al", "config": C, "arguments": A}, "al", 600),
        ((C, A), {"user": "al", "timeout": 5}, "al", 5),
        ((None, C, A), {}, "", 600),
        (("", C, A), {}, "", 600),
        ((C, A), {}, "", 600),
        ((C, A, 5), {}, "", 5),
        ((C,), {"arguments": A}, "", 600),
        ((), {"config": C, "arguments": A}, "", 600),
    ],
)
async def test_the_forms_of_a_call(values: tuple[Any, ...], named: dict[str, Any], user: str, timeout: float) -> None:
    """call() and call_streaming() take the user first or not at all; both send the same request."""
    client = ToolServiceClient.__new__(ToolServiceClient)
    sent: list[tuple[ToolServiceRequest, float]] = []

    async def request(request: ToolServiceRequest, timeout: float = 600, recipient: Any = None) -> ToolServiceResponse:
        sent.append((request, timeout))
        answer = ToolServiceResponse(response="x", end_of_stream=True)
        if recipient is not None:
            await recipient(answer)
        return answer

    heard: list[str] = []

    async def hear(text: str) -> None:
        heard.append(text)

    client.request = request  # type: ignore[method-assign]
    call: Any = client.call
    assert await call(*values, **named) == "x"
    streaming: Any = client.call_streaming
    rest = dict(named)
    positional = list(values)
    if positional and isinstance(positional[-1], int):
        rest["timeout"] = positional.pop()
    assert await streaming(*positional, callback=hear, **rest) == "x"
    expected = ToolServiceRequest(user=user, config=json.dumps(C), arguments=json.dumps(A))
    assert sent == [(expected, timeout)] * 2
    assert heard == ["x"]


@pytest.mark.parametrize(
    ("values", "named", "said"),
    [
        ((), {}, "missing .* 'config'.* takes .*config"),
        (("al", C), {}, "missing .* 'arguments'"),
        ((C, A), {"users": "al"}, "unexpected .* 'users'"),
        ((C, A), {"config": C}, "multiple values for argument 'config'"),
        (("al", C, A), {"user": "bo"}, "is an object"),
        (("al", "{}", "{}"), {}, "is an object or None, not str"),
        ((C, A, 5, 6), {}, "too many"),
    ],
)
async def test_a_call_that_fits_no_form_says_why(values: tuple[Any, ...], named: dict[str, Any], said: str) -> None:
    """Arguments are never taken for others in silence."""
    call: Any = ToolServiceClient.__new__(ToolServiceClient).call
    with pytest.raises(TypeError, match=said):
        await call(*values, **named)


async def test_both_eras_in_one_program(place: Place) -> None:
    """Services and callers of both eras work together in all combinations; a caller without a user is that project's default user."""
    services = [Before(topic="before"), Since(topic="since"), Streaming(topic="pieces")]
    async with place.serving(*(each.as_service() for each in services)) as bus:
        before, since, pieces = (ToolServiceClient(REQUEST.format(each.topic), bus=bus) for each in services)
        assert await before.call("al", {"a": 1}, {}) == "before: al {'a': 1} {}"
        assert await before.call({"a": 1}, {}) == "before: trustgraph {'a': 1} {}"
        assert await since.call("al", {"a": 1}, {}) == await since.call({"a": 1}, {}) == "since: {'a': 1} {}"
        heard: list[str] = []

        async def hear(text: str) -> None:
            heard.append(text)

        assert await pieces.call_streaming({}, {"words": ["a", "b"]}, hear) == "ab"
        assert await pieces.call_streaming("al", {}, {"words": ["c"]}, hear, timeout=30) == "c"
        assert "".join(heard) == "abc"


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("base", ["DynamicToolService", "ToolServiceClient"]),
        ("base.dynamic_tool_service", ["DynamicToolService", "default_topic", "default_concurrency"]),
        ("base.tool_service_client", ["ToolServiceClient"]),
        ("schema", ["ToolServiceRequest", "ToolServiceResponse", "Error", "ToolRequest", "ToolResponse"]),
        ("exceptions", ["TooManyRequests"]),
        ("agent.react.tools", ["ToolServiceImpl"]),
        ("agent.tool_filter", ["filter_tools_by_group_and_state", "get_next_state", "validate_tool_config"]),
    ],
)
def test_modules_have_that_projects_paths(module: str, names: list[str]) -> None:
    """Renaming ``trustgraph.`` in the imports is enough."""
    found = importlib.import_module(f"toolbus.compat.trustgraph.{module}")
    assert [name for name in names if not hasattr(found, name)] == []


# -- filters ------------------------------------------------------------------------------------------

TOOL = {"type": "tool-service", "name": "t", "description": "d", "service": "s"}
FILTERS = {"group": ["read", "basic"], "state": "analysed", "applicable-states": ["undefined", "found"]}


def test_filters_are_no_config_values() -> None:
    """``group`` becomes the groups, the states are kept as extensions, and the document is read back the same."""
    service = parse_service({"id": "s", "config-params": ["style"]})
    found = parse_tool({**TOOL, **FILTERS, "style": "pun", "x-toolbus": {"cache": True}}, service)
    assert (found.groups, found.config) == (("read", "basic"), {"style": "pun"})
    assert found.extensions == {"cache": True, "state": "analysed", "applicable-states": ["undefined", "found"]}
    assert parse_tool(tool_document(found), service) == found
    assert parse_tool({**TOOL, **FILTERS}, None).config == {}


@pytest.mark.parametrize("key", sorted(FILTERS))
def test_a_config_param_named_like_a_filter_stays_one(key: str) -> None:
    """A service that declares such a param gets its value."""
    found = parse_tool({**TOOL, key: "NY"}, parse_service({"id": "s", "config-params": [key]}))
    assert (found.config, found.groups, found.extensions) == ({key: "NY"}, (), {})


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"group": "read"}, "$.group"),
        ({"group": [1]}, "$.group"),
        ({"group": None}, "$.group"),
        ({"group": ["a"], "groups": ["b"]}, "$.group"),
        ({"state": ["a"]}, "$.state"),
        ({"applicable-states": "a"}, "$.applicable-states"),
        ({"applicable-states": [None]}, "$.applicable-states"),
    ],
)
def test_a_filter_of_another_type_is_refused(keys: dict[str, Any], path: str) -> None:
    """The error names the key."""
    with pytest.raises(DescriptorError) as caught:
        parse_tool({**TOOL, **keys}, None)
    assert caught.value.path == path


async def test_agents_filter_tools_of_the_bus_by_group_and_state(place: Place) -> None:
    """Tools that operators put are filtered as in that project: the default group, ``*``, and the states in which they are offered."""
    documents = {
        "plain": {},
        "reads": {"group": ["read"]},
        "late": {"group": ["read"], "applicable-states": ["found"], "state": "done"},
    }
    async with place.serving(Since(topic="joke").as_service()) as bus:
        await bus.put("tool-service/s", msgspec.json.encode({"id": "s", "request-queue": REQUEST.format("joke")}))
        for name, keys in documents.items():
            await bus.put(f"tool/{name}", msgspec.json.encode({**TOOL, "name": name, **keys}))
        for name in documents:
            await bus.wait_for_tool(name)
        asked: list[tuple[list[str] | None, str | None]] = [(None, None), (["read"], ""), (["read", "default"], "found"), (["*"], "x")]
        assert [sorted(filter_tools_by_group_and_state(bus.tools, *each)) for each in asked] == [
            ["plain"],
            ["reads"],
            ["late", "plain", "reads"],
            ["plain", "reads"],
        ]
        assert [get_next_state(bus.tools[name], "found") for name in documents] == ["found", "found", "done"]
        assert sorted(bus.tools.filter(groups=["read"])) == ["late", "reads"]
        assert (await bus.call("late", {"a": 1})).output == "since: {} {'a': 1}"


def test_documents_are_filtered_and_checked() -> None:
    """Objects with a ``config`` are filtered, too, and a document with filters of another type is a ValueError."""
    held = {name: SimpleNamespace(config=keys) for name, keys in {"a": None, "b": {"group": "x"}, "c": FILTERS}.items()}
    assert list(filter_tools_by_group_and_state(held)) == ["a"]
    assert list(filter_tools_by_group_and_state(held, ["x", "read"], "undefined")) == ["b", "c"]
    validate_tool_config(FILTERS)
    wrong: list[dict[str, Any]] = [{"group": "a"}, {"group": [1]}, {"state": 1}, {"applicable-states": "a"}, {"applicable-states": [1]}]
    for config in wrong:
        with pytest.raises(ValueError, match="must be"):
            validate_tool_config(config)


# -- programs -----------------------------------------------------------------------------------------

PROGRAM = """from toolbus.compat.trustgraph.base import DynamicToolService


class Processor(DynamicToolService):
    async def invoke(self, config, arguments):
        return __name__
"""


async def test_two_programs_of_one_project_with_one_topic_are_told_apart(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused with the owner of the first, since callers would get the answers of either; replicas of one are not."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("told_jokes", "told_riddles"):
        (tmp_path / f"{name}.py").write_text(PROGRAM)
        monkeypatch.delitem(sys.modules, name, raising=False)
    jokes, riddles = (importlib.import_module(name).Processor for name in ("told_jokes", "told_riddles"))
    async with place.serving(jokes(topic="tool").as_service()) as bus, place.worker(jokes(topic="tool").as_service()):
        with pytest.raises(Exception, match=r"'mine:told_riddles:Processor'.* belongs to 'mine:told_jokes:Processor'"):
            async with place.worker(riddles(topic="tool").as_service()):
                pass
        assert await ToolServiceClient(REQUEST.format("tool"), bus=bus).call({}, {}) == "told_jokes"
